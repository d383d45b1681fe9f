"""Comparisons of int64 in ONNX Runtime: by the whole word, not by its low half."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

from modelc.converters import onnx_model
from modelc.core.kinds import Capture

from .eager_agreement import JobOf, assert_agrees

pytestmark = [pytest.mark.needs("onnx"), pytest.mark.filterwarnings("ignore")]
APART = 2**33  # values so far apart differ in the low half by anything


class Extremes(nn.Module):
    """Each comparison that ONNX Runtime 1.24 makes of the low words."""

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        return (
            torch.maximum(a, b),
            torch.minimum(a, b),
            a.clamp(min=0),
            a.clamp(max=7),
            a.clamp(-5, 2**34),
            torch.sign(a),
            a.amax(1),
            a.amin(0, keepdim=True),
            a.amax((0, 1)),
            a.max(),
            a.max(1).values,
        )


def inputs(most: int) -> list[str]:
    return [f"{name}:int64[n=1..4,6]{{{-most}..{most}}}" for name in "ab"]


@pytest.mark.parametrize("capture", [Capture.EXPORT, Capture.TRACE])
def test_wide_integers_are_compared_as_a_whole(capture: Capture, job_of: JobOf) -> None:
    job = job_of(Extremes(), *inputs(APART), capture=capture)
    rng = np.random.default_rng(2)
    feeds = [{name: rng.integers(-APART, APART, (rows, 6)) for name in "ab"} for rows in (1, 3, 4)]
    assert_agrees(job, feeds, rtol=0, atol=0)
    known = {node.op_type for node in onnx.load(job.folder / "model.onnx").graph.node}
    assert not known & {"Max", "Min", "Clip", "Sign", "ReduceMax", "ReduceMin"}


def test_small_integers_keep_their_operators(job_of: JobOf) -> None:
    job = job_of(Extremes(), *inputs(30_000), capture=Capture.EXPORT)
    onnx_model.convert(job)
    known = {node.op_type for node in onnx.load(job.folder / "model.onnx").graph.node}
    assert known & {"Max", "Min", "Clip"}
