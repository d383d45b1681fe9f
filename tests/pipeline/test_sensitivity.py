"""Planted faults: found, missed or equivalent, and where nothing is planted."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest
import torch

from modelc.converters import onnx_model
from modelc.core.errors import ErrorCode, UsageError
from modelc.core.findings import FaultOutcome, Sensitivity
from modelc.core.kinds import Precision
from modelc.core.manifest import Manifest
from modelc.pipeline import fault_sensitivity
from modelc.pipeline.order import Judging, Order, Source, Wanted
from modelc.pipeline.run_order import run
from modelc.pipeline.validate_file import validate_file
from modelc.pipeline.validate_folder import validate_folder
from modelc.reports.result_rows import sensitivity_lines

from ..reasons import has_code

CODE = '''
import torch
from torch import nn


class Small(nn.Module):
    """Two layers with a norm between them, less the input."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x):
        return self.last(torch.relu(self.norm(self.first(x)))) - x[:, :3]


class Dead(Small):
    """Its output is its input: no weight changes it."""

    def forward(self, x):
        return x + self.first(x).sum() * 0



class Masked(nn.Module):
    """What the mask hides is halved and negated."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)

    def forward(self, x, mask):
        y = self.first(x)
        return torch.where(mask, y, -y / 2)


class Never(Dead):
    """No value is that large."""

    def forward(self, x):
        return (self.first(x) > 1e9).float()


class Endless(Dead):
    """Goes on until its numbers are small."""

    def forward(self, x):
        y = self.first(x)
        while bool(y.abs().max() > 0.1):
            y = y * 0.9
        return y


class Counted(Dead):
    """Goes on for as long as there are rows."""

    def forward(self, x):
        y = self.first(x)
        for _ in range(x.shape[0]):
            if bool(y.abs().max() > 0.1):
                y = y * 0.9
        return y
'''


@pytest.fixture
def exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Manifest]:
    """`exported("Small", "onnx", sensitivity=8)` -> the manifest in tmp_path/out."""
    (tmp_path / "fault_nets.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "fault_nets", raising=False)
    import fault_nets  # type: ignore[import-not-found]

    def make(
        name: str,
        *targets: str,
        sensitivity: int | None,
        specs: tuple[str, ...] = ("x:float32[batch=1..40,4]",),
    ) -> Manifest:
        torch.manual_seed(0)
        weights = tmp_path / "weights.pt"
        torch.save(getattr(fault_nets, name)().state_dict(), weights)
        source = Source(checkpoint=weights, model=f"fault_nets:{name}", inputs=specs)
        wanted = tuple(map(Wanted.parse, targets))
        judging = Judging(sensitivity=sensitivity)
        order = Order(source=source, wanted=wanted, out=tmp_path / "out", judging=judging)
        return run(order)

    return make


def found_in(manifest: Manifest, name: str) -> Sensitivity:
    verdict = manifest.verdict_of(name)
    assert verdict is not None
    assert verdict.passed, verdict.reason
    assert verdict.sensitivity is not None
    return verdict.sensitivity


@pytest.mark.parametrize("target", ["torchscript", "onnx", "openvino", "pt2"])
def test_faults_of_every_kind_are_planted_and_most_are_found(
    exported: Callable[..., Manifest], target: str
) -> None:
    found = found_in(exported("Small", target, sensitivity=10), target)
    assert found.planted == 10
    assert found.found + len(found.faults_missed) == 10
    kinds = {fault.kind for fault in found.faults}
    assert {"weight", "swap"} <= kinds
    assert "epsilon" in kinds
    # Sizes are 1..40 and few of them run: a fault at one size alone may be missed, and no other.
    assert {fault.kind for fault in found.faults_missed} <= {"size"}


def test_a_fault_at_a_size_that_no_feed_has_is_missed_and_listed(
    exported: Callable[..., Manifest],
) -> None:
    manifest = exported("Small", "onnx", sensitivity=30)
    found = found_in(manifest, "onnx")
    missed = [fault for fault in found.faults_missed if fault.kind == "size"]
    assert missed
    assert missed[0].error == pytest.approx(0.5)
    first, second = sensitivity_lines(manifest.verdicts)
    assert first.endswith(f"onnx {found.found} of 30")
    assert all(fault.where in second for fault in missed)


def test_a_fault_without_effect_is_equivalent_and_not_counted(
    exported: Callable[..., Manifest],
) -> None:
    found = found_in(exported("Dead", "torchscript", sensitivity=4), "torchscript")
    assert found.equivalent
    weights = [fault for fault in found.faults if fault.kind == "weight"]
    assert {fault.outcome for fault in weights} == {FaultOutcome.EQUIVALENT}
    assert found.planted == found.found + len(found.faults_missed)


def test_a_note_says_that_no_fault_changed_an_output(exported: Callable[..., Manifest]) -> None:
    manifest = exported("Never", "torchscript", sensitivity=2)
    found, verdict = found_in(manifest, "torchscript"), manifest.verdict_of("torchscript")
    assert (found.planted, found.equivalent) == (0, len(found.faults))
    assert verdict is not None
    assert any(note.startswith(f"{len(found.faults)} planted ") for note in verdict.notes)


def test_none_are_planted_with_a_sensitivity_of_zero(exported: Callable[..., Manifest]) -> None:
    verdict = exported("Small", "onnx", sensitivity=0).verdict_of("onnx")
    assert verdict is not None
    assert verdict.passed
    assert verdict.sensitivity is None


@pytest.mark.parametrize("target", ["torchscript", "onnx", "openvino"])
def test_none_are_planted_in_a_loop_that_data_ends(
    exported: Callable[..., Manifest], target: str
) -> None:
    assert found_in(exported("Endless", target, sensitivity=24), target).planted == 0


@pytest.mark.parametrize("target", ["torchscript", "onnx", "openvino"])
def test_faults_are_planted_in_a_counted_loop(
    exported: Callable[..., Manifest], target: str
) -> None:
    assert found_in(exported("Counted", target, sensitivity=2), target).planted == 2


@pytest.mark.plants_faults
def test_eight_are_planted_by_default_if_a_run_is_cheap(
    exported: Callable[..., Manifest], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert found_in(exported("Small", "onnx", sensitivity=None), "onnx").planted == 8
    monkeypatch.setattr("modelc.pipeline.fault_sensitivity._CHEAP_FLOPS", 10)
    verdict = exported("Small", "onnx", sensitivity=None).verdict_of("onnx")
    assert verdict is not None
    assert verdict.sensitivity is None


def test_weights_in_a_file_of_their_own_count(
    exported: Callable[..., Manifest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported("Small", "onnx", sensitivity=0)
    model = onnx.load(tmp_path / "out" / "model.onnx")
    path = tmp_path / "apart.onnx"
    onnx.save(model, path, save_as_external_data=True, location="apart.data", size_threshold=0)
    monkeypatch.setattr(fault_sensitivity, "_CHEAP_BYTES", path.stat().st_size)
    candidate: Any = SimpleNamespace(path=path)
    unused: Any = None  # eager is not run for a large file
    assert not fault_sensitivity._is_cheap(candidate, onnx_model, unused)


def test_validate_plants_them_in_a_folder_and_in_a_file(
    exported: Callable[..., Manifest], tmp_path: Path
) -> None:
    exported("Small", "onnx", sensitivity=0)
    judging = Judging(sensitivity=3)
    again = validate_folder(tmp_path / "out", judging=judging)
    assert found_in(again, "onnx").planted == 3
    single = validate_file(tmp_path / "out" / "model.onnx", judging=judging)
    assert single.sensitivity is not None
    assert single.sensitivity.planted == 3
    assert not list((tmp_path / "out").rglob("fault-*"))


@pytest.mark.needs("openvino")
def test_an_artifact_of_less_precision_has_its_own_limits(
    exported: Callable[..., Manifest],
) -> None:
    manifest = exported("Small", f"openvino:{Precision.FP16}", sensitivity=6)
    assert found_in(manifest, "openvino-fp16").planted == 6


def test_a_mask_along_an_inner_axis_shows_what_it_hides(exported: Callable[..., Manifest]) -> None:
    specs = ("x:float32[batch=1..4,seq=1..20,4]", "mask:bool[batch,seq,1]")
    found = found_in(exported("Masked", "onnx", sensitivity=20, specs=specs), "onnx")
    assert {fault.kind for fault in found.faults_missed} <= {"size"}
    assert any("Div" in fault.place for fault in found.faults)


@pytest.mark.parametrize("count", [-1, 1001])
def test_a_number_out_of_range_is_rejected(count: int) -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.INVALID_VALUE, option="sensitivity")):
        Judging(sensitivity=count)
