"""Reductions in ONNX beside eager: scatter, index_reduce and medians."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from modelc.core.kinds import Capture

from .eager_agreement import JobOf, assert_agrees

pytestmark = [pytest.mark.needs("onnx"), pytest.mark.filterwarnings("ignore")]
SPECS = ("x:float32[n=1..20,4]", "index:int64[n]{0..4}")
SIZES = (1, 2, 7, 20)


class Reduces(nn.Module):
    base: Tensor
    whole: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("base", torch.linspace(-1, 1, 20).reshape(5, 4))
        self.register_buffer("whole", torch.tensor([3, -4, 5, 7, 9]))

    def reduce(self, x: Tensor, index: Tensor, how: str) -> Tensor:
        wide, whole = index.unsqueeze(1).expand_as(x), index * 3 - 7
        found = [
            self.base.scatter_reduce(0, wide, x, how, include_self=False),
            self.base.scatter_reduce(0, wide, x, how, include_self=True),
            self.base.scatter_reduce(-2, wide[:, :3], x, how, include_self=False),  # 3 of 4 columns
            self.whole.scatter_reduce(0, index, whole, how, include_self=False)[:, None],
            self.whole.scatter_reduce(0, index, whole, how, include_self=True)[:, None],
        ]
        return torch.cat(found, 1)

    def forward(self, x: Tensor, index: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        return (
            self.reduce(x, index, "mean"),
            self.reduce(x, index, "amax"),
            self.reduce(x, index, "amin"),
            self.reduce(x, index, "prod"),
            self.reduce(x, index, "sum"),
        )


class Rows(nn.Module):
    def forward(self, x: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        base = torch.full((4, 5), 0.3)
        return (
            base.index_reduce(1, index, x.t(), "mean", include_self=False),
            base.index_reduce(-1, index, x.t(), "amax", include_self=True),
        )


def feeds() -> list[dict[str, Any]]:
    found = []
    for count in SIZES:
        for odd in (0.0, math.nan, math.inf, -math.inf):
            drawn = np.random.default_rng(count)
            x = drawn.normal(size=(count, 4)).astype(np.float32)
            x[drawn.random(x.shape) < 0.3] = odd
            found.append({"x": x, "index": drawn.integers(0, 5, count)})
    return found


@pytest.mark.parametrize("capture", [Capture.EXPORT, Capture.SCRIPT])
@pytest.mark.parametrize("net", [Reduces, Rows])
def test_reduction(job_of: JobOf, net: type[nn.Module], capture: Capture) -> None:
    assert_agrees(job_of(net(), *SPECS, capture=capture), feeds())


SPEC = "x:float32[batch=1..4,seq=1..12,3]"
LAYOUTS = ((1, 1), (4, 12), (3, 5), (2, 6))


class Medians(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        middle, place = x.median(1)
        whole = (x.nan_to_num(0.0, 3.0, -3.0) * 100).to(torch.int64)
        return (
            middle,
            place,
            x.median(),
            x.nanmedian(-1, keepdim=True)[0],
            x.nanmedian(),
            whole.median(0)[0],
        )


@pytest.mark.parametrize("odd", [None, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("capture", [Capture.EXPORT, Capture.SCRIPT])
def test_median(job_of: JobOf, capture: Capture, odd: float | None) -> None:
    found = []
    for batch, length in LAYOUTS:
        drawn = torch.Generator().manual_seed(length)
        x = torch.randn(batch, length, 3, generator=drawn)
        if odd is not None:
            x[torch.rand(x.shape, generator=drawn) < 0.3] = odd
        found.append({"x": x.numpy()})
    ties = odd is not None and math.isinf(odd)  # of equal values eager takes any
    job = job_of(Medians(), SPEC, capture=capture)
    assert_agrees(job, found, rtol=0, atol=0, ignore=frozenset({1} if ties else ()))
