"""Suppression inside a model: judged in every format, wrong lists rejected, ties settled."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from modelc.checkpoints import box_suppression, enclosed_module
from modelc.core.errors import CheckpointError, ErrorCode, UsageError
from modelc.core.kinds import Capture, ReasonCode
from modelc.core.model_meta import ModelMeta
from modelc.core.postprocess import Postprocess, Suppression
from modelc.pipeline import suppression_choices
from modelc.pipeline.order import Order, Source
from modelc.pipeline.run_order import run

Orders = Callable[..., Order]
NETS = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 24 * 7)
    def forward(self, x):
        y = self.a(x).reshape(-1, 24, 7)
        middle, half = 6 * y[..., :2].tanh(), 2 + y[..., 2:4].tanh()
        return {"places": torch.cat([middle - half, middle + half], 2), "logits": y[..., 4:]}
class Several(Net):
    def forward(self, x):
        return {**super().forward(x), "count": x.sum(1)}
class Sides(Net):
    def forward(self, x):
        found = super().forward(x)
        return {**found, "logits": found["logits"][:, :20]}
class Half(Net):
    def forward(self, x):
        found = super().forward(x)
        return {**found, "logits": found["logits"].half()}
class Classes(Net):
    def forward(self, x):
        return {"logits": super().forward(x)["logits"][:, 0], "first": x[:, 0]}
"""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Source]:
    monkeypatch.chdir(tmp_path)
    before, name = list(sys.path), f"boxes_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(NETS)
    sys.path.insert(0, str(tmp_path))
    torch.manual_seed(0)
    torch.save(__import__(name).Net().state_dict(), tmp_path / "net.pt")
    yield Source(
        checkpoint=tmp_path / "net.pt",
        model=f"{name}:Net",
        inputs=("x:float32[batch=1..3,8]",),
        postprocess="sigmoid,nms,iou=0.4,score=0.5,max=10,boxes=places,scores=logits",
    )
    sys.path[:] = before


def _module(source: Source) -> str:
    return (source.model or "").partition(":")[0]


@pytest.mark.slow
@pytest.mark.parametrize("target", ["onnx", "openvino", "torchscript"])
def test_every_format_gives_padded_boxes(order: Orders, source: Source, target: str) -> None:
    manifest = run(order(target, source=source, meta=ModelMeta(classes=("a", "b", "c"))))
    assert manifest.passed
    assert manifest.meta.classes_output == "class_ids"
    assert manifest.signature is not None
    assert manifest.signature.outputs == ("boxes", "scores", "class_ids", "count")


Suppress = Callable[[torch.Tensor, torch.Tensor, Suppression], dict[str, torch.Tensor]]


def _with(**change: float) -> Suppress:
    return lambda boxes, scores, steps: REAL(boxes, scores, replace(steps, **change))  # type: ignore[arg-type]


def _one_less(
    boxes: torch.Tensor, scores: torch.Tensor, steps: Suppression
) -> dict[str, torch.Tensor]:
    left = torch.arange(steps.most)[None] < steps.most - 1
    found = REAL(boxes, scores, steps)
    found |= {name: found[name] * left for name in ("scores", "class_ids")}
    return {
        **found,
        "boxes": found["boxes"] * left[..., None],
        "count": found["scores"].gt(0).sum(1),
    }


def _across_classes(
    boxes: torch.Tensor, scores: torch.Tensor, steps: Suppression
) -> dict[str, torch.Tensor]:
    best, kinds = scores.max(2, keepdim=True)
    found = REAL(torch.cat([boxes, boxes * 0], 1), torch.cat([best, best * 0], 1), steps)
    return {**found, "class_ids": found["class_ids"] + kinds[:, : steps.most, 0]}


def _noise(
    boxes: torch.Tensor, scores: torch.Tensor, steps: Suppression
) -> dict[str, torch.Tensor]:
    return REAL(boxes * (1 + 1e-7), scores * (1 - 1e-7), steps)


REAL = box_suppression.suppress_boxes
FAULTS = [_with(iou=0.45), _with(iou=0.35), _with(candidates=7), _with(most=9), _one_less]


@pytest.fixture
def capture_with(monkeypatch: pytest.MonkeyPatch) -> Callable[[Suppress], None]:
    """Suppress in another way where the model is captured, and as declared in eager."""

    def plant(fault: Suppress) -> None:
        def choose(*args: Any) -> dict[str, torch.Tensor]:
            return (REAL if torch._C._get_tracing_state() is None else fault)(*args)

        monkeypatch.setattr(enclosed_module, "suppress_boxes", choose)

    return plant


@pytest.mark.slow
@pytest.mark.parametrize("fault", [FAULTS[0], _one_less, _across_classes])
def test_a_fault_in_the_captured_copy_is_rejected(
    order: Orders, source: Source, capture_with: Callable[[Suppress], None], fault: Suppress
) -> None:
    capture_with(fault)
    manifest = run(order("torchscript", source=source, capture=Capture.TRACE))
    assert not manifest.passed
    assert manifest.artifacts[0].rejected


def test_an_artifact_is_rejected_if_no_feed_gives_a_box(
    order: Orders, source: Source, capture_with: Callable[[Suppress], None]
) -> None:
    capture_with(lambda boxes, scores, steps: REAL(boxes * 7, scores * 0, steps))
    none = replace(source, postprocess=(source.postprocess or "").replace("=0.5", "=1.5"))
    manifest = run(order("torchscript", source=none, capture=Capture.TRACE))
    assert [one.code for one in manifest.verdicts[-1].reasons] == [ReasonCode.NOT_MEASURED]


def test_one_ill_conditioned_value_loosens_no_other() -> None:
    movements = [np.full(24, 1e-7), np.full(24, -1e-7)]
    for one in movements:
        one[0] = 0.3
    errors = suppression_choices._error_of(movements)
    assert errors[0] > 0.3
    assert errors[1:].max() < 1e-6


@pytest.mark.slow
def test_roundoff_in_the_captured_copy_is_no_fault(
    order: Orders, source: Source, capture_with: Callable[[Suppress], None]
) -> None:
    capture_with(_noise)
    assert run(order("torchscript", source=source, capture=Capture.TRACE)).passed


@pytest.mark.parametrize("fault", [*FAULTS, _across_classes])
def test_a_fault_in_our_own_steps_stops_the_run(
    order: Orders, source: Source, monkeypatch: pytest.MonkeyPatch, fault: Suppress
) -> None:
    monkeypatch.setattr(enclosed_module, "suppress_boxes", fault)
    with pytest.raises(CheckpointError) as caught:
        run(order("torchscript", source=source))
    assert caught.value.code is ErrorCode.STEPS_DIFFER


@pytest.mark.parametrize(
    ("model", "steps", "named"),
    [
        ("Net", "nms,boxes=logits", "logits"),
        ("Net", "nms,boxes=boxes,scores=logits", "boxes"),
        ("Sides", "nms", "logits"),
        ("Several", "nms", "count"),
    ],
)
def test_outputs_that_do_not_fit_are_named(
    order: Orders, source: Source, model: str, steps: str, named: str
) -> None:
    source = replace(source, model=f"{_module(source)}:{model}", postprocess=steps)
    with pytest.raises(UsageError) as caught:
        run(order("torchscript", source=source))
    assert repr(named) in caught.value.message


@pytest.mark.parametrize(
    ("model", "steps", "problem", "hint"),
    [
        ("Half", "nms,score=1e20", "overflow", "--postprocess sigmoid,nms"),
        ("Classes", "topk=9,output=logits", "topk=9 of 3 classes",
         "--postprocess topk=3,output=logits"),
        ("Classes", "softmax,output=first", "'first' (1) is not scores (N, C)", "forward"),
    ],
)  # fmt: skip
def test_steps_that_cannot_run_are_named_and_not_the_input(
    order: Orders, source: Source, model: str, steps: str, problem: str, hint: str
) -> None:
    source = replace(source, model=f"{_module(source)}:{model}", postprocess=steps)
    with pytest.raises((CheckpointError, UsageError)) as caught:
        run(order("torchscript", source=source))
    assert caught.value.option == "postprocess"
    assert problem in caught.value.message
    assert hint in str(caught.value.hint)


def test_boxes_and_scores_are_found_by_their_dims() -> None:
    find = enclosed_module.find_class_output, enclosed_module.find_box_output
    steps = Postprocess.parse("nms")
    assert steps.nms is not None
    tensors = {"scores": torch.zeros(1, 9, 3), "places": torch.zeros(1, 9, 4)}
    assert find[0](tensors, steps) == "scores"
    assert find[1](tensors, "scores", steps.nms) == "places"
    with pytest.raises(UsageError) as caught:  # which are the boxes?
        find[0]({**tensors, "scores": torch.zeros(1, 9, 4)}, steps)
    assert caught.value.option == "postprocess"
