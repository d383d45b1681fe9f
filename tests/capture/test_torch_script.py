"""Scripts, whole or of the submodules with branches on data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor, nn

from modelc.capture.capture_strategies import capture_hybrid, capture_program
from modelc.capture.captured_program import ScriptCapture
from modelc.capture.refusals import RefusedError, is_redundant
from modelc.capture.size_constraints import NarrowError
from modelc.capture.torch_script import compile_script
from modelc.capture.torch_trace import capture_trace
from modelc.core.contract import Job
from modelc.core.kinds import Capture

if TYPE_CHECKING:
    from collections.abc import Sequence


JobOf = Callable[..., Job]
SPEC = "x:float32[batch=1..4,3]"
UP, DOWN = torch.ones(2, 3), -torch.ones(2, 3)


class Gate(nn.Module):
    """Two ways on data."""

    def forward(self, x: Tensor) -> Tensor:
        if bool(x.mean() > 0):
            return x + 1
        return x - 1


class Fork(nn.Module):
    """Two ways on data, in a form that TorchScript does not take."""

    def forward(self, *xs: Tensor) -> Tensor:
        return xs[0] * 2 if bool(xs[0].mean() > 0) else xs[0] * 3


class Holder(nn.Module):
    """Not for TorchScript itself; what it holds may be."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, *xs: Tensor) -> Tensor:
        (x,) = xs
        for part in self.parts:
            x = part(x)
        return x


class Sized(nn.Module):
    """A branch on sizes alone, which a tracer warns of as well; TorchScript does not take it."""

    def forward(self, *xs: Tensor) -> Tensor:
        return xs[0] + 1 if xs[0].shape[0] > 0 else xs[0]


def mixed_of(job_of: JobOf, module: nn.Module) -> Job:
    return job_of(module, SPEC, capture=Capture.MIXED)


def test_a_scripted_submodule_keeps_its_branch(job_of: JobOf) -> None:
    module = Holder(nn.Linear(3, 3), Gate())
    made = capture_hybrid(mixed_of(job_of, module))
    for feed in (UP, DOWN):
        assert torch.equal(made.module(feed)[0], module(feed))
    assert made.frozen == ()


def test_the_smallest_submodule_is_scripted_and_named(job_of: JobOf) -> None:
    made = capture_hybrid(mixed_of(job_of, Holder(nn.Linear(3, 3), Holder(Gate(), nn.ReLU()))))
    assert made.scripts == ("parts.1.parts.0",)


def test_a_module_used_twice_is_replaced_in_both_places(job_of: JobOf) -> None:
    gate = Gate()
    module = Holder(gate, nn.ReLU(), gate)
    made = capture_hybrid(mixed_of(job_of, module))
    assert made.frozen == ()
    for feed in (UP, DOWN):
        assert torch.equal(made.module(feed)[0], module(feed))


def test_what_will_not_script_stays_frozen_beside_what_will(job_of: JobOf) -> None:
    job = mixed_of(job_of, Holder(Fork(), Gate()))
    made = capture_hybrid(job)
    assert made.scripts == ("parts.1",)
    assert [Path(branch.file) for branch in made.frozen] == [Path(__file__)]
    assert len(capture_trace(job).frozen) == 2


def test_where_none_will_script_each_is_reported_with_its_reason(job_of: JobOf) -> None:
    with pytest.raises(RefusedError, match=r"parts\.0: torch\.jit\.script") as caught:
        capture_hybrid(mixed_of(job_of, Holder(Fork())))
    assert "Holder: torch.jit.script" in caught.value.message
    assert not is_redundant(caught.value)


def test_a_model_without_branches_on_data_is_left_to_the_trace(job_of: JobOf) -> None:
    with pytest.raises(RefusedError) as caught:
        capture_hybrid(mixed_of(job_of, Holder(nn.Linear(3, 3), Sized())))
    assert is_redundant(caught.value)


def test_the_users_module_is_as_it_was(job_of: JobOf) -> None:
    module = Holder(nn.Linear(3, 3), Gate())
    before = list(module.parts)
    capture_hybrid(mixed_of(job_of, module))
    assert list(module.parts) == before
    assert type(module.parts[1]) is Gate


def test_the_trace_that_it_needs_is_kept_for_the_other_captures(job_of: JobOf) -> None:
    job = replace(mixed_of(job_of, Holder(Gate())), programs={})
    capture_hybrid(job)
    assert isinstance(job.programs["trace"], ScriptCapture)


def test_a_trace_that_is_wrong_at_some_sizes_is_searched_once(job_of: JobOf) -> None:
    class Long(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2 if x.shape[0] > 20 else x

    job = replace(job_of(Long(), "x:float32[n=1..90,2]"), programs={})
    for capture in (Capture.TRACE, Capture.MIXED):
        with pytest.raises(NarrowError) as caught:
            capture_program(replace(job, capture=capture))
        assert caught.value.interval is not None
        assert isinstance(job.programs[str(capture)], NarrowError)
    job.programs["trace"] = NarrowError("known", hint="before")
    with pytest.raises(NarrowError, match="known"):
        capture_program(replace(job, capture=Capture.TRACE))


class Table(nn.Module):
    """Annotations of attributes are texts in this file."""

    alphas: Tensor
    names: Sequence[str]

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("alphas", torch.arange(4.0))
        self.names = ("a", "b")

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        return x * self.alphas[int(step.item())]


def test_annotations_that_are_texts_are_read() -> None:
    found = compile_script(Table())
    assert torch.equal(found(torch.ones(2), torch.tensor(3)), torch.full((2,), 3.0))


def test_the_users_class_is_as_it_was() -> None:
    compile_script(Table())
    assert Table.__annotations__ == {"alphas": "Tensor", "names": "Sequence[str]"}
