"""Nearest resizes to sizes, and linspace, in ONNX: bit by bit as eager has them, at every size."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from modelc.converters import onnx_model
from modelc.core.contract import Job
from modelc.core.kinds import Capture

JobOf = Callable[..., Job]
pytestmark = [pytest.mark.needs("onnx"), pytest.mark.filterwarnings("ignore")]
SPEC = "x:float32[batch=1..2,2,h=2..160,3]"
CAPTURES = pytest.mark.parametrize("capture", [Capture.EXPORT, Capture.TRACE])


class Resized(nn.Module):
    """To a size that follows from another, and to a number."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        rows = torch.arange(x.shape[2], dtype=torch.float32)[:, None] + x * 0
        line = rows[..., 0]
        return (
            functional.interpolate(rows, size=(x.shape[2] * 3 // 2 + 7, 24)),
            functional.interpolate(rows, size=(24, 6)),
            functional.interpolate(rows, scale_factor=2),
            functional.interpolate(line, size=43),
            functional.interpolate(rows, size=(24, 24), mode="nearest-exact"),
            functional.interpolate(rows, scale_factor=1.5, mode="nearest-exact"),
        )


class Steps(nn.Module):
    """Between numbers that follow from a size."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        n = x.shape[2]
        nothing = x[0, 0, :1, 0] * 0
        return (
            nothing + torch.linspace(0, n - 1, 8),
            nothing + torch.linspace(0.1, n, 24),
            nothing + torch.linspace(-1, n * 3, 1),
        )


class Many(nn.Module):
    """As many steps as there are rows."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.linspace(0, 1, x.shape[2]) + x[:, 0, :, 0] * 0


def wrong_sizes(job: Job, net: nn.Module, low: int = 2) -> list[tuple[int, int]]:
    """The sizes at which an output of ONNX Runtime is another than eager's, and its place."""
    onnx_model.convert(job)
    found = []
    with onnx_model.open_runner(job.folder / "model.onnx", "cpu", job.signature) as runner:
        for size in range(low, 161):
            x = np.ones((2, 2, size, 3), np.float32)
            wanted = net(torch.tensor(x))
            wanted = wanted if isinstance(wanted, tuple) else (wanted,)
            for at, (eager, one) in enumerate(
                zip(wanted, runner.run({"x": x}).values(), strict=True)
            ):
                if not np.array_equal(eager.numpy(), one):
                    found.append((size, at))
    return found


@CAPTURES
def test_a_resize_takes_the_elements_that_eager_takes(job_of: JobOf, capture: Capture) -> None:
    job = job_of(Resized(), SPEC, capture=capture)
    assert wrong_sizes(job, Resized()) == []


@CAPTURES
def test_a_resize_by_a_whole_scale_stays_one(job_of: JobOf, capture: Capture) -> None:
    import onnx

    job = job_of(nn.Upsample(scale_factor=2), SPEC, capture=capture)
    onnx_model.convert(job)
    kinds = {node.op_type for node in onnx.load(job.folder / "model.onnx").graph.node}
    assert "Resize" in kinds
    assert "Gather" not in kinds


@CAPTURES
def test_steps_between_sizes_are_those_of_eager(job_of: JobOf, capture: Capture) -> None:
    assert wrong_sizes(job_of(Steps(), SPEC, capture=capture), Steps()) == []


def test_so_many_steps_are_those_of_eager(job_of: JobOf) -> None:
    assert wrong_sizes(job_of(Many(), SPEC, capture=Capture.TRACE), Many()) == []


class Whole(nn.Module):
    """Integers between numbers that follow from a size."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.linspace(0, x.shape[2] * 4, 5, dtype=torch.int64) + (x[0, 0, :1, 0] * 0).long()


@CAPTURES
def test_whole_steps_are_left_to_the_exporter(job_of: JobOf, capture: Capture) -> None:
    assert wrong_sizes(job_of(Whole(), SPEC, capture=capture), Whole()) == []
