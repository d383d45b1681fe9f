"""A capture whose conditions on sizes do not end is stopped, and nothing of it stays in torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental import symbolic_shapes

from modelc.capture.torch_export import SolverTimeoutError, capture_export, limit_solver
from modelc.core.contract import Job

JobOf = Callable[..., Job]
X = "x:float32[b=1..4,n=8..40]"


class Padded(nn.Module):
    """Pads to a multiple of four, again and again."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            size = x.shape[1]
            missing = (-(-size // 4)) * 4 - size
            x = nn.functional.pad(x, [0, max(missing, 0)])[:, ::2]
        return x


def test_a_capture_beyond_the_limit_is_stopped_and_the_next_unaffected(job_of: JobOf) -> None:
    before = symbolic_shapes._maybe_evaluate_static_worker
    with pytest.raises(SolverTimeoutError) as caught:
        capture_export(replace(job_of(Padded(), X), capture_timeout=1e-9))
    assert not caught.value.lasting
    assert "--capture-timeout" in caught.value.hint
    assert symbolic_shapes._maybe_evaluate_static_worker is before
    made = capture_export(job_of(nn.Linear(8, 4), "input:float32[b=1..4,8]"))
    assert made.program.module()(torch.ones(3, 8))[0].shape == (3, 4)


def test_time_within_the_limit_changes_nothing(job_of: JobOf) -> None:
    with limit_solver(60.0):
        made = capture_export(job_of(nn.Linear(8, 4), "input:float32[b=1..4,8]"))
    assert made.program.range_constraints
