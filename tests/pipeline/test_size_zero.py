"""Size 0 in a range: the first step of a decoder, whose cache is empty."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from modelc.core.errors import CheckpointError
from modelc.core.events import Event, Noted
from modelc.pipeline.order import Order, Source
from modelc.pipeline.run_order import run

Orders = Callable[..., Order]

NETS = """
import torch
from torch import nn

class Step(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(8, 24)
    def forward(self, x, past, mask=None, position_ids=None):
        if position_ids is not None:
            x = x + 0.1 * position_ids[..., None]
        q, k, v = self.line(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        keys = torch.cat([past, k], dim=2)
        scores = q @ keys.transpose(-1, -2)
        if mask is not None:
            scores = scores + mask[:, None, None, :]
        return (scores.softmax(-1) @ keys).flatten(1), keys

class Largest(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(8, 8)
    def forward(self, x):
        return self.line(x).amax(1)

class Froze(Step):
    def forward(self, x, past, mask=None):
        if past.shape[2] == 0:
            return super().forward(x * 2, past, mask)
        return super().forward(x, past, mask)
"""


@pytest.fixture
def source(tmp_path: Path, write_module: Callable[[str], str]) -> Callable[..., Source]:
    name = write_module(NETS)

    def of(kind: str, *inputs: str) -> Source:
        sizes = (8, 8) if kind == "Largest" else (8, 24)
        torch.manual_seed(0)
        line = torch.nn.Linear(*sizes).state_dict()
        torch.save({f"line.{key}": value for key, value in line.items()}, tmp_path / "net.pt")
        return Source(checkpoint=tmp_path / "net.pt", model=f"{name}:{kind}", inputs=inputs)

    return of


STEP = ("x:float32[batch=1..2,1,8]", "past:float32[batch,2,past=0..12,4]")


@pytest.mark.parametrize("target", ["onnx", "openvino", "torchscript", "pt2"])
def test_an_empty_cache_is_judged_in_every_format(
    order: Orders, source: Callable[..., Source], target: str
) -> None:
    manifest = run(order(target, source=source("Step", *STEP)))
    assert manifest.passed
    (verdict,) = (one for one in manifest.verdicts if one.artifact == target)
    assert any(row.sizes.get("past") == 0 for row in manifest.feeds.drawn or ())
    assert verdict.passed


def test_the_artifact_runs_on_an_empty_cache(order: Orders, source: Callable[..., Source]) -> None:
    import onnxruntime

    run(order("onnx", source=source("Step", *STEP)))
    session = onnxruntime.InferenceSession(order("onnx").out / "model.onnx")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 1, 8)).astype(np.float32)
    _, keys = session.run(None, {"x": x, "past": np.zeros((1, 2, 0, 4), np.float32)})
    assert keys.shape == (1, 2, 1, 4)
    _, keys = session.run(None, {"x": x, "past": keys})
    assert keys.shape == (1, 2, 2, 4)


def test_a_relation_to_an_empty_cache(order: Orders, source: Callable[..., Source]) -> None:
    inputs = (*STEP, "mask:float32[batch,total=past+1]{-4..0}")
    assert run(order("torchscript", source=source("Step", *inputs))).passed


PARTS = ("x:float32[batch=1..2,seq=1..5,8]", "past:float32[batch,2,past=0..12,4]")
SUM = "mask:float32[batch,total=past+seq]{-4..0}"


@pytest.mark.parametrize("target", ["pt2", "onnx"])
def test_a_sum_with_an_empty_cache(
    order: Orders, source: Callable[..., Source], target: str
) -> None:
    manifest = run(order(target, source=source("Step", *PARTS, SUM)))
    assert manifest.passed
    (domain,) = (one.domain for one in manifest.artifacts if one.name == target)
    assert domain is not None
    assert domain.describe().startswith("batch 1..2, seq 1..5, past 0..12, total=past+seq")


@pytest.mark.parametrize(("values", "warned"), [("0..0", True), ("0..total-1", False)])
def test_positions_at_one_value_are_a_warning(
    order: Orders, source: Callable[..., Source], values: str, warned: bool
) -> None:
    told: list[Event] = []
    places = f"position_ids:int64[batch,seq]{{{values}}}"
    run(order("torchscript", source=source("Step", *PARTS, SUM, places)), told.append)
    notes = [one.text for one in told if isinstance(one, Noted) and one.warning]
    assert any(one.startswith("position_ids is") for one in notes) is warned


def test_a_branch_on_size_zero_is_not_frozen(order: Orders, source: Callable[..., Source]) -> None:
    manifest = run(order("torchscript", source=source("Froze", *STEP)))
    assert not manifest.passed


def test_the_hint_excludes_size_zero_if_eager_rejects_it(
    order: Orders, source: Callable[..., Source]
) -> None:
    with pytest.raises(CheckpointError) as caught:
        run(order("torchscript", source=source("Largest", "x:float32[batch=1..2,n=0..6,8]")))
    assert "n=1..6" in caught.value.hint
