"""Medians in ONNX: of odd and even numbers of values, of NaN and Inf, of integers, in scripts."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from modelc.converters import onnx_model
from modelc.core.contract import Job
from modelc.core.kinds import Capture

JobOf = Callable[..., Job]
pytestmark = [pytest.mark.needs("onnx"), pytest.mark.filterwarnings("ignore")]
SPEC = "x:float32[batch=1..4,seq=1..12,3]"
SIZES = ((1, 1), (4, 12), (3, 5), (2, 6))


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
        for batch, length in SIZES:
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
