"""Runs that never end are ended, and nothing else is."""

from __future__ import annotations

import gc
import sys
import time
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from modelc.checkpoints.eager_model import Eager
from modelc.checkpoints.run_limits import (
    DeadlineExceededError,
    StepCounter,
    flops_exceed,
    limit_steps,
)
from modelc.core.call import bind_inputs, parameters_of
from modelc.core.errors import CheckpointError


class Root(nn.Module):
    """Newton's square root until it is right to 1e-4, which float32 cannot be of large numbers."""

    def forward(self, x: Tensor) -> Tensor:
        root = torch.ones_like(x)
        while bool((root * root - x).abs().max() > 1e-4):
            root = 0.5 * (root + x / root)
        return root


SMALL, HUGE = ({"x": np.full(3, value, np.float32)} for value in (2.0, 3e9))


def eager(module: nn.Module, step_limit: int) -> Eager:
    names = bind_inputs(("x",), parameters_of(Root().forward))
    return Eager(module.eval(), ("x",), names, step_limit=step_limit)


@pytest.mark.parametrize("module", [Root(), torch.jit.script(Root())], ids=["python", "script"])
def test_a_run_that_never_ends_is_ended_and_said(module: nn.Module) -> None:
    with pytest.raises(CheckpointError, match=r"3,000 steps.*x:float32\[3\]"):
        eager(module, 3000).run_with_deadline(HUGE)


def test_a_run_that_ends_in_time_is_as_without_a_limit() -> None:
    found = eager(Root(), 100_000)
    assert np.array_equal(found.run_with_deadline(SMALL)["output"], found.run(SMALL)["output"])


def test_a_model_of_many_steps_gets_more() -> None:
    class Long(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x
            for _ in range(100 if float(x[0]) < 3 else 1000):
                y = y + 1
            return y

    found = eager(Long(), 10)
    found.run(SMALL)
    assert np.array_equal(found.run_with_deadline(HUGE)["output"], found.run(HUGE)["output"])


def test_a_run_that_only_takes_long_is_not_ended() -> None:
    class Slow(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            time.sleep(0.5)
            return x * 2

    found = eager(Slow(), 1000).run_with_deadline(HUGE)
    assert np.array_equal(found["output"], HUGE["x"] * 2)


def test_a_run_is_ended_after_the_same_step_each_time() -> None:
    turns: list[int] = []

    def run() -> None:
        while True:
            turns.append(1)

    counts = []
    gc.disable()  # finalizers of what other tests left take steps of their own
    try:
        for _ in range(5):
            turns.clear()
            with pytest.raises(DeadlineExceededError), limit_steps(StepCounter(1000)):
                run()
            counts.append(len(turns))
    finally:
        gc.enable()
    assert len(set(counts)) == 1
    assert 400 < counts[0] < 1000


def test_what_was_done_in_time_is_not_reported_afterwards() -> None:
    eager(Root(), 100_000).run_with_deadline(SMALL)
    time.sleep(0.2)  # nobody raises anything here


def catching() -> None:
    """What a model may do, for ever."""
    while True:
        with suppress(BaseException):
            torch.ones(3).sum()


def catching_until(turns: int) -> None:
    """The same, for so many turns."""
    for _ in range(turns):
        with suppress(BaseException):
            torch.ones(3).sum()


def test_a_loop_that_catches_everything_is_ended_all_the_same() -> None:
    with pytest.raises(DeadlineExceededError), limit_steps(StepCounter(1000, repeat_seconds=0.02)):
        catching()


def test_a_float64_reference_that_never_ends_is_none() -> None:
    found = eager(Root(), 3000)
    assert found.run_exact({"x": np.linspace(1e30, 9e30, 7, dtype=np.float32)}) is None
    assert "3,000 steps" in found.no_float64


def test_a_function_that_is_traced_afterwards_runs() -> None:
    def follow(*_: object) -> None:
        """Nothing is followed."""

    for steps in (100_000, 10):
        with suppress(DeadlineExceededError), limit_steps(StepCounter(steps, repeat_seconds=0.01)):
            catching_until(100)
        before = sys.gettrace()
        sys.settrace(follow)
        try:
            assert eager(Root(), 1000).inputs == ("x",)
        finally:
            sys.settrace(before)


@pytest.mark.filterwarnings("ignore")  # torch.compile's own
def test_the_work_of_torch_cond_is_counted_and_that_of_a_loop_is_too_much() -> None:
    weight = torch.ones(16, 4)

    def branch(x: Tensor) -> object:
        return torch.cond(x.mean() > 0, lambda y: y @ weight, lambda y: y @ weight + 1, (x,))

    def loop(x: Tensor) -> object:
        from torch._higher_order_ops import while_loop

        repeat: Any = while_loop  # not typed
        return repeat(lambda y: y.sum() < 10, lambda y: (y + 1,), (x,))

    x = torch.ones(8, 16)
    with torch.no_grad():
        assert [flops_exceed(lambda: branch(x), most) for most in (100, 10_000)] == [True, False]
        assert flops_exceed(lambda: loop(x), 10_000)
        assert torch.equal(branch(-x), -x @ weight + 1)  # type: ignore[arg-type]  # a tensor
