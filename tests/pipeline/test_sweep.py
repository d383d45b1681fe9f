"""Rounded floats that follow from sizes and integers alone: run at each size, over the values."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as in every tutorial

from modelc.checkpoints.eager_probes import DiscreteOrigin
from modelc.core.contract import Array
from modelc.core.kinds import Capture
from modelc.core.verdict import Verdict
from modelc.pipeline.order import Order, Source, Wanted
from modelc.pipeline.run_order import run

from ..open_models import open_module


class Buckets(nn.Module):
    """Ten parts of a row, by positions between 0 and 1."""

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        return x + (torch.arange(n) / n * 10).long()[None, :, None]


class Share(nn.Module):
    """The front of a row up to a share of its length that is no number of float32."""

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        return x * (torch.arange(n) < n * 0.3)[None, :, None]


class Nearest(nn.Module):
    """An image as small as another."""

    def forward(self, x: Tensor) -> Tensor:
        return F.interpolate(x.transpose(1, 2), size=7, mode="nearest")


class Doubled(nn.Module):
    """An image of twice the size."""

    def forward(self, x: Tensor) -> Tensor:
        return F.interpolate(x.transpose(1, 2), scale_factor=2.0, mode="nearest")


class Counted(nn.Module):
    """Positions counted in ones of the row's form."""

    def forward(self, x: Tensor) -> Tensor:
        return x + (torch.ones_like(x).cumsum(1) / x.shape[1] * 10).floor()


class Plain(nn.Module):
    """No float is rounded, but data is compared."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x > 0.3, x, x.floor() + torch.arange(x.shape[1])[None, :, None])


class Percent(nn.Module):
    """The percentage of two counts, whole."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(101, 4)

    def forward(self, part: Tensor, whole: Tensor) -> Tensor:
        found: Tensor = self.table((part / whole).clamp(max=1).mul(100).floor().long())
        return found


ROWS = {"x": np.ones((2, 12, 3), np.float32)}
COUNTS = {name: np.array([3, 4]) for name in ("part", "whole")}


@pytest.mark.parametrize(
    ("net", "feed", "origins"),
    [
        (Buckets, ROWS, {DiscreteOrigin.SIZES}),
        (Share, ROWS, {DiscreteOrigin.SIZES}),
        (Nearest, ROWS, {DiscreteOrigin.SIZES}),
        (Doubled, ROWS, set()),
        (Counted, ROWS, {DiscreteOrigin.SIZES}),
        (Plain, ROWS, set()),
        (Percent, COUNTS, {DiscreteOrigin.INTEGERS}),
    ],
)
def test_what_a_rounded_float_follows_from(
    net: type[nn.Module], feed: Mapping[str, Array], origins: set[DiscreteOrigin]
) -> None:
    inputs = [f"{name}:{one.dtype}{list(one.shape)}" for name, one in feed.items()]
    eager, _ = open_module(net(), *inputs)
    assert eager.find_discrete_origins(feed) == origins


def made(net: type[nn.Module], folder: Path, *inputs: str, to: str) -> Verdict:
    """The verdict of one artifact that was made by a trace."""
    module, checkpoint = f"swept_{net.__name__}", folder / "net.pt"
    sys.modules[module] = sys.modules[__name__]
    torch.save(net().state_dict(), checkpoint)
    source = Source(checkpoint=checkpoint, model=f"{module}:{net.__name__}", inputs=inputs)
    wanted = (Wanted.parse(to),)
    manifest = run(Order(source=source, wanted=wanted, out=folder / "out", capture=Capture.TRACE))
    return manifest.verdicts[-1]


def failed(verdict: Verdict) -> set[str]:
    return {one.feed for one in verdict.outputs if not one.passed}


class Traced(nn.Module):
    """A trace has 10 / n in float32, where Python has float64: wrong at 9 sizes of 160."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 3)

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        found: Tensor = x + self.table((torch.arange(n) * (10 / n)).floor().long())
        return found


def test_a_wrong_size_among_many_is_found(tmp_path: Path) -> None:
    verdict = made(Traced, tmp_path, "x:float32[batch=1..4,n=1..12..160,3]", to="torchscript")
    assert not verdict.passed
    assert failed(verdict) <= {
        f"sweep:n={size}" for size in (25, 50, 55, 94, 100, 110, 115, 122, 142)
    }


@pytest.mark.needs("openvino")
def test_values_of_integers_are_run(tmp_path: Path) -> None:
    """Until its divisions are exact, OpenVINO has 99 % of 41 of 41."""
    inputs = ("part:int64[batch=1..8]{0..1000}", "whole:int64[batch]{1..1000}")
    verdict = made(Percent, tmp_path, *inputs, to="openvino")
    assert verdict.passed or all(one.startswith("sweep:values-") for one in failed(verdict))
