"""Nearest resizes to sizes, and linspace, in ONNX: bit by bit as eager has them, at every size."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from modelc.converters import onnx_model
from modelc.core.kinds import Capture

from .eager_agreement import JobOf, assert_agrees

pytestmark = [pytest.mark.needs("onnx"), pytest.mark.filterwarnings("ignore")]
SPEC = "x:float32[batch=1..2,2,h=2..160,3]"
EXPORTERS = (Capture.EXPORT, Capture.TRACE)


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


class Whole(nn.Module):
    """Integers between numbers that follow from a size: left to the exporter."""

    def forward(self, x: Tensor) -> Tensor:
        steps = torch.linspace(0, x.shape[2] * 4, 5, dtype=torch.int64)
        return steps.float() + x[0, 0, :1, 0] * 0  # the exporter of traces keeps no integers


@pytest.mark.parametrize(
    ("net", "capture"),
    [
        *((net, capture) for net in (Resized, Steps, Whole) for capture in EXPORTERS),
        (Many, Capture.TRACE),
    ],
)
def test_resizes_and_steps_at_every_size(
    job_of: JobOf, net: type[nn.Module], capture: Capture
) -> None:
    feeds = [{"x": np.ones((2, 2, size, 3), np.float32)} for size in range(2, 161)]
    assert_agrees(job_of(net(), SPEC, capture=capture), feeds, rtol=0, atol=0)


@pytest.mark.parametrize("capture", EXPORTERS)
def test_a_resize_by_a_whole_scale_stays_one(job_of: JobOf, capture: Capture) -> None:
    job = job_of(nn.Upsample(scale_factor=2), SPEC, capture=capture)
    onnx_model.convert(job)
    kinds = {node.op_type for node in onnx.load(job.folder / "model.onnx").graph.node}
    assert "Resize" in kinds
    assert "Gather" not in kinds
