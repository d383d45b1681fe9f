"""A tracer warns of values of sizes as of values of data; only these are frozen branches."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from modelc.capture.torch_trace import capture_trace
from modelc.core.contract import Job
from modelc.core.kinds import Capture

JobOf = Callable[..., Job]
SPEC = "x:float32[batch=1..4,3]"


def of_sizes(x: Tensor) -> Tensor:
    return x + 1 if x.shape[0] > 1 else x


def of_sums_of_sizes(x: Tensor) -> Tensor:
    return x + 1 if torch.zeros(x.shape[0]).sum() > 3 else x


def of_sizes_while_traced(x: Tensor) -> Tensor:
    wide: object = x.shape[0] > 1
    if isinstance(wide, Tensor):  # only a tracer makes it one
        wide = wide.item()
    return x + 1 if wide else x


def of_data(x: Tensor) -> Tensor:
    return x + 1 if x.mean() > 0 else x


def of_counted_data(x: Tensor) -> Tensor:
    return x + 1 if (x > 0).nonzero().shape[0] > 3 else x


def of_masked_data(x: Tensor) -> Tensor:
    return x + 1 if x[x > 0].shape[0] > 3 else x


def of_both_on_a_line(x: Tensor) -> Tensor:
    return x + 1 if x.shape[0] > 1 and x.mean() > 0 else x


def net(function: Callable[[Tensor], Tensor]) -> nn.Module:
    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return function(x)

    return Net()


@pytest.mark.parametrize("function", [of_sizes, of_sums_of_sizes, of_sizes_while_traced])
def test_a_value_of_sizes_is_not_frozen_data(
    job_of: JobOf, function: Callable[[Tensor], Tensor]
) -> None:
    made = capture_trace(job_of(net(function), SPEC, capture=Capture.TRACE))
    assert made.warned
    assert made.frozen == ()


@pytest.mark.parametrize("function", [of_data, of_counted_data, of_masked_data, of_both_on_a_line])
def test_a_value_of_data_is_frozen(job_of: JobOf, function: Callable[[Tensor], Tensor]) -> None:
    made = capture_trace(job_of(net(function), SPEC, capture=Capture.TRACE))
    assert [branch.file for branch in made.frozen] == [__file__]


def test_a_trace_that_differs_the_second_time_shows_no_sizes(job_of: JobOf) -> None:
    class Once(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.runs: list[int] = []

        def forward(self, x: Tensor) -> Tensor:
            self.runs.append(1)
            if len(self.runs) == 2:
                raise ValueError("not again")
            return x + 1 if x.shape[0] > 1 else x

    made = capture_trace(job_of(Once(), SPEC, capture=Capture.TRACE))
    assert len(made.frozen) == 1
