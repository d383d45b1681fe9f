"""Pooling to a given size in ONNX: as eager has it, at any size of the image, NaN and Inf too."""

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


def test_pools_take_images_of_any_size(job_of: JobOf) -> None:
    job = job_of(Pools(), SPEC, capture=Capture.EXPORT)
    onnx_model.convert(job)
    with onnx_model.open_runner(job.folder / "model.onnx", "cpu", job.signature) as runner:
        for seed, size in enumerate(SIZES):
            x = np.random.default_rng(seed).normal(size=(2, 2, *size)).astype(np.float32)
            wanted = Pools()(torch.tensor(x))
            found = runner.run({"x": x}).values()
            for (name, eager), one in zip(wanted.items(), found, strict=True):
                assert one.dtype == eager.numpy().dtype
                np.testing.assert_allclose(
                    one, eager, rtol=1e-5, atol=1e-6, err_msg=f"{name} at {size}"
                )


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_in_its_windows(job_of: JobOf, odd: float) -> None:
    job = job_of(Pools(), SPEC, capture=Capture.EXPORT)
    onnx_model.convert(job)
    with onnx_model.open_runner(job.folder / "model.onnx", "cpu", job.signature) as runner:
        for seed, size in enumerate(SIZES):
            drawn = np.random.default_rng(seed)
            x = drawn.normal(size=(2, 2, *size)).round().astype(np.float32)  # equal ones among them
            x[drawn.random(x.shape) < 0.2] = odd
            wanted = Pools()(torch.tensor(x))
            found = runner.run({"x": x}).values()
            for (name, eager), one in zip(wanted.items(), found, strict=True):
                np.testing.assert_allclose(
                    one, eager, rtol=1e-5, atol=1e-6, err_msg=f"{name} at {size}"
                )


class Large(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return functional.adaptive_max_pool2d(x, (20, 21))


def test_maxima_of_any_number_of_windows(job_of: JobOf) -> None:
    job = job_of(Large(), SPEC, capture=Capture.EXPORT)
    onnx_model.convert(job)
    with onnx_model.open_runner(job.folder / "model.onnx", "cpu", job.signature) as runner:
        for size in SIZES:
            x = torch.randn(2, 2, *size, generator=torch.Generator().manual_seed(0))
            (found,) = runner.run({"x": x.numpy()}).values()
            np.testing.assert_array_equal(found, Large()(x))


class Fixed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return functional.adaptive_avg_pool2d(x, (4, 2))


def test_windows_of_one_size_are_a_plain_pool(job_of: JobOf) -> None:
    import onnx

    job = job_of(Fixed(), "x:float32[batch=1..4,2,8,6]", capture=Capture.EXPORT)
    onnx_model.convert(job)
    made = onnx.load(job.folder / "model.onnx")
    assert [node.op_type for node in made.graph.node] == ["AveragePool"]


class PaddedPool(nn.Module):
    """A border of zeros around what may be negative, then a pool: as in BiT's stem."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.max_pool2d(functional.pad(x, (1, 1, 1, 1)), 3, 2)


@pytest.mark.parametrize("capture", [Capture.EXPORT, Capture.TRACE])
def test_a_border_of_zeros_counts_in_a_pool(capture: Capture, job_of: JobOf) -> None:
    job = job_of(PaddedPool(), SPEC, capture=capture)
    onnx_model.convert(job)
    with onnx_model.open_runner(job.folder / "model.onnx", "cpu", job.signature) as runner:
        for height, width in ((5, 5), (6, 9), (30, 1)):
            x = -1 - torch.rand(2, 2, height, width)
            (found,) = runner.run({"x": x.numpy()}).values()
            np.testing.assert_array_equal(found, PaddedPool()(x))
