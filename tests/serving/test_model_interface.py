"""Interfaces of artifacts: dims, batches, and whether rows depend on each other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any

import numpy as np
import pytest
import torch

from modelc.checkpoints.box_suppression import suppress_boxes
from modelc.core.contract import Feed, Inspection, Outputs, Readiness, TensorInfo
from modelc.core.kinds import Precision
from modelc.core.postprocess import Suppression
from modelc.serving import describe_models
from modelc.serving.model_interface import (
    batch_dim,
    make_interface,
    observe_runs,
    plain_dtype,
    probe_sizes,
)

from ..open_models import signature_of


class FunctionRunner:
    """A runner that calls a function with the arrays of a feed."""

    def __init__(self, function: Callable[..., dict[str, Any]]) -> None:
        self.inputs: tuple[str, ...] = ()
        self._function = function

    def run(self, feed: Feed) -> Outputs:
        return self._function(**feed)

    def __enter__(self) -> FunctionRunner:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None


ROWS = signature_of("x:float32[batch=1..8,3]", outputs=["y"])


@pytest.mark.parametrize(
    ("inputs", "found"),
    [
        (("x:float32[batch=1..8,3]",), "batch"),
        (("x:float32[batch=1..8,3]", "m:int64[batch=1..8]"), "batch"),
        (("x:float32[batch=1..8,3]", "m:int64[seq=1..8]"), None),
        (("x:float32[2,batch=1..8]",), None),
        (("x:float32[batch=2..8,3]",), None),  # a server would send single rows
        (("x:float32[n=1..8,n]",), None),  # a square: the batch is another dim, too
    ],
)
def test_the_batch_is_the_first_dim_of_every_input(
    inputs: tuple[str, ...], found: str | None
) -> None:
    dim = batch_dim(signature_of(*inputs))
    assert (None if dim is None else dim.name) == found


def test_each_dim_is_varied_alone() -> None:
    signature = signature_of("x:float32[batch=1..4,h=8..32,w=8..32]")
    first, *others = probe_sizes(signature)
    changed = [{k for k in first if one[k] != first[k]} for one in others]
    assert changed == [{"batch"}, {"h"}, {"w"}, {"batch"}]


@pytest.mark.parametrize(
    ("function", "apart"),
    [
        (lambda x: {"y": x * 2 + 1}, True),
        (lambda x: {"y": x - x.mean(0)}, False),
        (lambda x: {"y": x if x.mean() > 0 else -x}, False),
        (lambda x: {"y": np.cumsum(x, axis=0)}, False),
        (lambda x: {"y": x if x.sum() > 0.1 else x * 1.5}, False),
        (lambda x: {"y": x / np.abs(x).max()}, False),
        (lambda x: {"y": x + x[4:].sum(0)}, False),  # in batches of more than four alone
        # scores beside boxes in pixels, which are a thousand times as large
        (lambda x: {"y": np.concatenate([x * 0 + 2000, x / np.abs(x).max(0)], 1)}, False),
        (lambda x: {"y": np.argmax(x, axis=1)}, True),
    ],
)
def test_rows_that_depend_on_each_other_are_found(
    function: Callable[..., dict[str, Any]], apart: bool
) -> None:
    evidence = observe_runs(FunctionRunner(function), ROWS, Precision.FP32)
    assert evidence.rows_apart is apart


@pytest.mark.parametrize(("coupling", "apart"), [(0.0, True), (1e-2, False)], ids=["none", "weak"])
def test_a_weak_dependence_is_found_in_half_precision(coupling: float, apart: bool) -> None:
    """A row alone may differ as much by another kernel; beside other rows it may not."""

    def run(x: Any) -> dict[str, Any]:
        noise = 5e-3 if len(x) == 1 else 0.0
        return {"y": x + noise + coupling * x.mean(0)}

    evidence = observe_runs(FunctionRunner(run), ROWS, Precision.FP16)
    assert evidence.rows_apart is apart


@pytest.mark.parametrize(
    ("change", "apart"),
    [
        (lambda x: np.where(len(x) == 1, 1e-6, 0.0) * np.sin(np.arange(40) * 9.0), True),
        (lambda x: 1e-2 * len(x), False),  # all scores depend on the size of the batch
        (lambda x: 1e-2 * x.mean(), False),
        (lambda x: np.where(np.arange(40) % 5 == len(x) % 5, 1.0, 0.0), False),  # other choices
    ],
)
def test_roundoff_in_suppression_is_no_dependence(change: Callable[..., Any], apart: bool) -> None:
    """Nearly equal scores, which other kernels for a row alone order otherwise."""

    def run(x: Any) -> dict[str, Any]:
        scores = 0.5 + 1e-6 * np.sin(np.arange(40) + x[:, :1]) + 0.1 * (np.arange(40) % 4)
        scores = torch.from_numpy(np.asarray(scores + change(x))[:, :, None])
        corner = torch.arange(40.0)[None, :, None].expand(len(x), -1, 2) * 3
        boxes = torch.cat([corner, corner + 4], dim=2)
        steps = Suppression(iou=0.01, score=0.1, most=40, candidates=40)
        return {name: one.numpy() for name, one in suppress_boxes(boxes, scores, steps).items()}

    evidence = observe_runs(FunctionRunner(run), ROWS, Precision.FP32)
    assert evidence.rows_apart is apart


def test_an_output_without_the_batch_makes_no_batch() -> None:
    signature = signature_of("x:float32[batch=1..8,3]", outputs=["y", "z"])
    runner = FunctionRunner(lambda x: {"y": x, "z": x.mean(0)})
    evidence = observe_runs(runner, signature, Precision.FP32)
    inspection = _inspection([("x", ("batch", "3"))], [("y", ("batch", "3")), ("z", ("3",))])
    assert make_interface(inspection, signature, evidence).batch == 0


def test_dims_that_the_file_leaves_open_are_those_of_all_runs() -> None:
    runner = FunctionRunner(lambda x: {"y": np.zeros((len(x), 7), np.float32)})
    evidence = observe_runs(runner, ROWS, Precision.FP32)
    interface = make_interface(_inspection([("x", ("?", "3"))], [("y", ())]), ROWS, evidence)
    assert interface.outputs[0].dims == (-1, 7)
    assert interface.outputs[0].dtype == "float32"


def test_other_names_in_the_file_are_matched_by_position() -> None:
    found = _inspection([("INPUT", ("batch", "3"))], [("OUT", ("batch", "3"))])
    interface = make_interface(found, ROWS, None)
    assert [(one.name, one.source) for one in interface.tensors] == [("INPUT", "x"), ("OUT", "y")]


def test_dtypes_have_numpys_names() -> None:
    assert [plain_dtype(one) for one in ("float", "double", "boolean", "int64", "Tensor")] == [
        "float32", "float64", "bool", "int64", "",
    ]  # fmt: skip


def _inspection(
    inputs: list[tuple[str, tuple[str, ...]]], outputs: list[tuple[str, tuple[str, ...]]]
) -> Inspection:
    def infos(tensors: list[tuple[str, tuple[str, ...]]]) -> tuple[TensorInfo, ...]:
        return tuple(TensorInfo(name=name, dtype="", dims=dims) for name, dims in tensors)

    return Inspection(
        target="any", inputs=infos(inputs), outputs=infos(outputs), facts={}, weights={},
        operators={}, metadata={},
    )  # fmt: skip


class MachineCode(SimpleNamespace):
    """A target whose files run their maker's code."""

    def distrust_reason(self, *given: Any) -> str:
        return "" if given[-1].get("trust_engine") else "machine code"


@pytest.mark.parametrize("trust", [False, True])
def test_machine_code_runs_only_if_trusted(
    trust: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    opened: list[object] = []

    def open_runner(*given: object) -> FunctionRunner:
        opened.append(given)
        return FunctionRunner(lambda x: {"y": x})

    target = MachineCode(
        DEVICES=("cpu",),
        readiness=lambda: Readiness(ready=True),
        inspect=lambda _: _inspection([("x", ("batch", "3"))], [("y", ("batch", "3"))]),
        open_runner=open_runner,
    )
    monkeypatch.setattr(describe_models, "target_named", lambda _: target)
    monkeypatch.setattr(describe_models, "Native", MachineCode)
    request = describe_models.DescribeRequest(
        path=tmp_path / "f", target="code", signature=ROWS, trust=trust
    )
    found = describe_models.describe_model(request)
    assert found.interface is not None
    assert (found.interface.has_run, len(opened)) == (trust, int(trust))
    assert found.interface.rows_apart is (True if trust else None)
