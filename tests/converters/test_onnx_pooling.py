"""Pooling to a given size in ONNX: as eager has it, at any size of the image, NaN and Inf too."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from torch import Tensor, nn
from torch.nn import functional

from modelc.converters import onnx_model
from modelc.core.contract import Feed
from modelc.core.kinds import Capture

from .eager_agreement import JobOf, assert_agrees

pytestmark = [pytest.mark.needs("onnx"), pytest.mark.filterwarnings("ignore")]
SPEC = "x:float32[batch=1..4,2,h=1..30,w=1..30]"
SIZES = ((1, 1), (2, 7), (5, 5), (6, 4), (13, 29), (21, 14))


class Pools(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        top, places = functional.adaptive_max_pool2d(x, (3, 2), return_indices=True)
        return {
            "average": functional.adaptive_avg_pool2d(x, (3, 2)),
            "one_row": functional.adaptive_avg_pool2d(x, (1, 5)),
            "unchanged": functional.adaptive_avg_pool2d(x, (None, 4)),
            "line": functional.adaptive_avg_pool1d(x.flatten(2), 3),
            "block": functional.adaptive_avg_pool3d(x[:, None], (2, 3, 2)),
            "whole": functional.adaptive_avg_pool2d(x, 1),
            "area": functional.interpolate(x, size=(7, 5), mode="area"),
            "top": top,
            "places": places,
            "top_of_line": functional.adaptive_max_pool1d(x.flatten(2), 4),
            "top_of_block": functional.adaptive_max_pool3d(x[:, None], (1, 2, 2)),
        }


def draw_images(odd: float | None = None) -> list[Feed]:
    """Images of all sizes with equal values in them, and with odd values among them if asked."""
    found: list[Feed] = []
    for seed, size in enumerate(SIZES):
        drawn = np.random.default_rng(seed)
        x = drawn.normal(size=(2, 2, *size)).astype(np.float32)
        if odd is not None:
            x = x.round()
            x[drawn.random(x.shape) < 0.2] = odd
        found.append({"x": x})
    return found


@pytest.mark.parametrize("odd", [None, np.nan, np.inf, -np.inf])
def test_pools_of_images_of_any_size(job_of: JobOf, odd: float | None) -> None:
    assert_agrees(job_of(Pools(), SPEC), draw_images(odd))


def test_maxima_of_any_number_of_windows(job_of: JobOf) -> None:
    job = job_of(nn.AdaptiveMaxPool2d((20, 21)), SPEC.replace("x:", "input:"))
    feeds = [{"input": feed["x"]} for feed in draw_images()]
    assert_agrees(job, feeds, rtol=0, atol=0)


def test_windows_of_one_size_are_a_plain_pool(job_of: JobOf) -> None:
    job = job_of(nn.AdaptiveAvgPool2d((4, 2)), "input:float32[batch=1..4,2,8,6]")
    onnx_model.convert(job)
    made = onnx.load(job.folder / "model.onnx")
    assert [node.op_type for node in made.graph.node] == ["AveragePool"]


class PaddedPool(nn.Module):
    """A border of zeros around what may be negative, then a pool: as in BiT's stem."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.max_pool2d(functional.pad(x, (1, 1, 1, 1)), 3, 2)


@pytest.mark.parametrize("capture", [Capture.EXPORT, Capture.TRACE])
def test_a_border_of_zeros_counts_in_a_pool(capture: Capture, job_of: JobOf) -> None:
    feeds = [{"x": -1 - np.abs(feed["x"])} for feed in draw_images() if feed["x"].shape[2] > 1]
    assert_agrees(job_of(PaddedPool(), SPEC, capture=capture), feeds, rtol=0, atol=0)


class Windows(nn.Module):
    """Windows as large as the image and larger, as in EfficientNet, and one that is smaller."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {
            "equal": functional.avg_pool2d(x, 30, ceil_mode=True),
            "larger": functional.avg_pool2d(x, 500, ceil_mode=True, count_include_pad=False),
            "smaller": functional.avg_pool2d(x, (30, 29), ceil_mode=True),
            "steps": functional.avg_pool2d(x, 30, 10, ceil_mode=True),
        }


@pytest.mark.parametrize("capture", [Capture.EXPORT, Capture.TRACE])
def test_a_window_that_holds_the_whole_image_is_a_global_pool(
    capture: Capture, job_of: JobOf
) -> None:
    spec = SPEC.replace("h=1..30", "h=21..30").replace("w=1..30", "w=21..30")
    job = job_of(Windows(), spec, capture=capture, outputs=("equal", "larger", "smaller", "steps"))
    shapes = [(2, 2, 21, 21), (1, 2, 30, 30), (4, 2, 25, 29)]
    draw = np.random.default_rng(1)
    assert_agrees(job, [{"x": draw.normal(size=shape).astype(np.float32)} for shape in shapes])
    made = onnx.load(job.folder / "model.onnx")
    pools = [node.op_type for node in made.graph.node if node.op_type.endswith("AveragePool")]
    assert pools == ["GlobalAveragePool", "GlobalAveragePool", "AveragePool", "AveragePool"]
