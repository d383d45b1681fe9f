"""Sizes at which the model takes another branch are found, whichever number the code names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from modelc.capture.size_checks import OUTSIDE
from modelc.capture.torch_export import capture_export
from modelc.capture.torch_trace import capture_trace
from modelc.core.contract import Job
from modelc.core.errors import ConversionError

JobOf = Callable[..., Job]
X = "x:float32[n=1..1000,2]"


class At300(nn.Module):
    """Of one size in the middle of a range something else is made."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.shape[0] == 300 else x + 1


class Alike(nn.Module):
    """Asks for a size, and does the same either way."""

    def forward(self, x: Tensor) -> Tensor:
        return 1 + x if x.shape[0] == 300 else x + 1


def test_export_does_not_pass_a_size_that_it_excludes(job_of: JobOf) -> None:
    with pytest.raises(ConversionError, match="n != 300"):
        capture_export(job_of(At300(), X))


def test_a_size_that_makes_no_difference_is_noted(job_of: JobOf) -> None:
    (note,) = capture_export(job_of(Alike(), X)).notes
    assert "n != 300" in note


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_a_trace_after_a_refused_export_is_tried_at_that_size(job_of: JobOf) -> None:
    job = job_of(At300(), X)
    with pytest.raises(ConversionError):
        capture_export(job)
    with pytest.raises(ConversionError, match="n=300"):
        capture_trace(job)


def test_a_trace_is_kept_where_the_size_makes_no_difference(job_of: JobOf) -> None:
    job = replace(job_of(Alike(), X), programs={OUTSIDE: ({"n": 300},)})
    assert torch.equal(capture_trace(job).module(torch.ones(300, 2))[0], torch.full((300, 2), 2.0))
