"""Reductions in ONNX beside eager: scatter, index_reduce and medians."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from modelc.converters import onnx_model
from modelc.core.contract import Job
from modelc.core.kinds import Capture

JobOf = Callable[..., Job]
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
def test_a_reduction_is_eagers(job_of: JobOf, net: type[nn.Module], capture: Capture) -> None:
    job = job_of(net(), *SPECS, capture=capture)
    onnx_model.convert(job)
    with onnx_model.open_runner(job.folder / "model.onnx", "cpu", job.signature) as runner:
        for feed in feeds():
            wanted = net()(torch.tensor(feed["x"]), torch.tensor(feed["index"]))
            for at, (one, eager) in enumerate(zip(runner.run(feed).values(), wanted, strict=True)):
                np.testing.assert_allclose(
                    one, eager, rtol=1e-5, atol=1e-6, err_msg=f"{at} of {len(feed['index'])}"
                )


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
def test_a_median_is_eagers(job_of: JobOf, capture: Capture, odd: float | None) -> None:
    job = job_of(Medians(), SPEC, capture=capture)
    onnx_model.convert(job)
    with onnx_model.open_runner(job.folder / "model.onnx", "cpu", job.signature) as runner:
        for batch, length in LAYOUTS:
            drawn = torch.Generator().manual_seed(length)
            x = torch.randn(batch, length, 3, generator=drawn)
            if odd is not None:
                x[torch.rand(x.shape, generator=drawn) < 0.3] = odd
            middle, place, *others = runner.run({"x": x.numpy()}).values()
            wanted, first, *rest = Medians()(x)
            for one, eager in zip((middle, *others), (wanted, *rest), strict=True):
                assert one.dtype == eager.numpy().dtype
                np.testing.assert_array_equal(one, eager)
            if odd is None or math.isnan(odd):  # of equal values eager takes any
                np.testing.assert_array_equal(place, first)
