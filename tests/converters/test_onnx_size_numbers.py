"""Whole numbers of sizes in ONNX: as Python computes them, at sizes where float32 gives others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

from modelc.converters import onnx_model
from modelc.converters.onnx_size_numbers import _decimal_value
from modelc.core.contract import Job
from modelc.core.kinds import Capture

from .eager_agreement import JobOf, assert_agrees

pytestmark = [pytest.mark.needs("onnx"), pytest.mark.filterwarnings("ignore")]
SPEC = "x:float32[batch=1..4,n=8..20..300]"
APART = {0.57: 100, 0.29: 200, 0.7: 90, 1.1: 70}  # a size at which float32 gives another


def has_table(job: Job) -> bool:
    nodes = onnx.load(job.folder / "model.onnx").graph.node
    return any(node.op_type == "Gather" and "::gather" in node.name for node in nodes)


class Share(nn.Module):
    """The largest values of a row, as many as a share of it."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        return x.topk(int((x.shape[1] - 1) * self.share) // 2 + 1, 1)[0]


class SymbolicShare(Share):
    """The same as torch.export takes it."""

    def forward(self, x: Tensor) -> Tensor:
        whole: int = torch.sym_int((x.shape[1] - 1) * self.share)  # type: ignore[no-untyped-call]  # torch's own
        return x.topk(whole // 2 + 1, 1)[0]


@pytest.mark.parametrize("share", APART)
@pytest.mark.parametrize(
    ("net", "capture"), [(Share, Capture.SCRIPT), (SymbolicShare, Capture.EXPORT)]
)
def test_numbers_of_sizes_are_pythons(
    net: type[Share], capture: Capture, share: float, job_of: JobOf
) -> None:
    job = job_of(net(share), SPEC, capture=capture)
    feeds = [
        {"x": np.random.default_rng(size).normal(size=(2, size)).astype(np.float32)}
        for size in (8, 9, 101, 300, APART[share], APART[share] + 1)
    ]
    assert_agrees(replace(job, feeds=tuple(feeds)), feeds, rtol=0, atol=0)


class Rounded(nn.Module):
    """Whole numbers of the data, which no table holds."""

    def forward(self, x: Tensor) -> Tensor:
        return (x * 0.57).long()


class OfBoth(nn.Module):
    """As many values as follow from two sizes."""

    def forward(self, x: Tensor) -> Tensor:
        count: int = torch.sym_int(x.shape[1] * 0.57 + x.shape[2] * 0.3)  # type: ignore[no-untyped-call]  # torch's own
        return x.flatten(1)[:, :count]


def test_numbers_of_two_sizes_are_pythons(job_of: JobOf) -> None:
    job = job_of(OfBoth(), "x:float32[batch=1..2,h=4..60,w=4..60]", capture=Capture.EXPORT)
    feeds = [
        {"x": np.ones((1, height, width), np.float32)}
        for height in range(4, 61)
        for width in range(4, 61, 3)
    ]
    assert_agrees(replace(job, feeds=({"x": np.zeros((2, 60, 60), np.float32)},)), feeds)
    assert has_table(job)


@pytest.mark.parametrize(
    ("net", "capture"),
    [(Share(0.75), Capture.SCRIPT), (Rounded(), Capture.TRACE)],
    ids=["float32 is exact", "numbers of data"],
)
def test_other_numbers_have_no_table(job_of: JobOf, net: nn.Module, capture: Capture) -> None:
    job = job_of(net, SPEC, capture=capture)
    onnx_model.convert(job)
    assert not has_table(job)


@pytest.mark.parametrize("number", [0.57, 0.29, 0.125, 1.1, 1 / 3, 2 / 3, 1 / 7, 1 / 9, 10.0, 3e-5])
def test_a_factor_is_what_was_written(number: float) -> None:
    assert _decimal_value(np.float32(number)) == number
