"""Captures leave the user's module as it was, whatever its forward keeps."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from modelc.capture.capture_strategies import CAPTURES, capture_program
from modelc.capture.refusals import RefusedError
from modelc.core.contract import Job
from modelc.core.kinds import Capture

JobOf = Callable[..., Job]
SPEC = "x:float32[batch=1..4,3]"


class Keeps(nn.Module):
    """Keeps what it computes in an attribute, a list, a dict and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []
        self.by_name: dict[str, Tensor] = {}
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.last = x * 2
        self.seen.append(x)
        self.by_name["x"] = x
        self.calls += 1
        return self.last + 1


@pytest.mark.parametrize("capture", [Capture.EXPORT, Capture.EXPORT_STRICT, Capture.TRACE])
def test_what_forward_keeps_is_not_there_afterwards(job_of: JobOf, capture: Capture) -> None:
    module = Keeps()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of just that
        capture_program(job_of(module, SPEC, capture=capture))
    assert (module.seen, module.by_name, module.calls) == ([], {}, 0)
    assert not hasattr(module, "last")


def test_what_is_rejected_once_is_rejected_again_without_another_try(job_of: JobOf) -> None:
    class Counts(nn.Module):
        runs: ClassVar[list[int]] = []  # no capture puts back what is the class's

        def forward(self, x: Tensor) -> Tensor:
            self.runs.append(1)
            return x + 1 if x.mean() > 0 else x

    job = replace(job_of(Counts(), SPEC), programs={})
    messages = []
    for _ in range(2):
        with pytest.raises(RefusedError) as caught:
            capture_program(job)
        messages.append(caught.value.message)
    assert messages[0] == messages[1]
    assert len(Counts.runs) == 1


def test_every_capture_has_its_row() -> None:
    assert set(CAPTURES) == set(Capture)


def test_a_model_with_torch_cond_is_captured_after_eager_ran_it(job_of: JobOf) -> None:
    class Cond(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = torch.cond(x.mean() > 0, lambda y: y + 1, lambda y: y - 1, (x,))
            return found

    module = Cond()
    with torch.no_grad():
        module(torch.ones(2, 3))
    program = capture_program(job_of(module, SPEC))
    for feed in (torch.ones(3, 3), -torch.ones(3, 3)):
        assert torch.equal(program.program.module()(feed)[0], feed + feed.sign())  # type: ignore[union-attr]  # an Exported
