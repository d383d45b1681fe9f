"""A run over a project as a table: what is counted, and how many of it."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from rich.console import Console

from modelc.cli.render_manifest import show_manifest
from modelc.cli.render_run import show_plans, show_run
from modelc.core.manifest import Manifest
from modelc.pipeline.order import Order, Source, Wanted
from modelc.projects.project_records import Breach, ModelOrder, ModelOutcome
from modelc.projects.run_record import ArtifactRun, ModelRun, RunRecord, make_record
from modelc.projects.setting_keys import RunSettings
from modelc.reports.result_rows import Outcome
from modelc.reports.summary import random_warning

if TYPE_CHECKING:
    import pytest

MADE = ArtifactRun(name="onnx", state=Outcome.PASSED, source="made", size=5000, sqnr=120.0)
NOT_MADE = ArtifactRun(
    name="openvino", state=Outcome.SKIPPED, source="", reason="onnx was rejected"
)
NOTE = "drawn feeds do not count (SQNR 4.2 dB)"
BREACH = Breach(artifact="onnx", gate="max-size", message="5.0 kB > max-size 1 kB", told=None)


def told(*models: ModelRun) -> list[str]:
    record = RunRecord(modelc="1", exit_code=1, seconds=1.0, models=models)
    stream = io.StringIO()
    ended = [ModelOutcome(name=one.name, folder=one.folder) for one in models]
    show_run(ended, record, Path("out"), console=Console(file=stream, width=200))
    return stream.getvalue().splitlines()


def model(*artifacts: ArtifactRun, state: Outcome = Outcome.REJECTED, error: str = "") -> ModelRun:
    return ModelRun(
        name="net", folder="out/net", state=state, exit_code=1, seconds=1.0,
        artifacts=artifacts, error=error,
        breaches=(BREACH,) if artifacts else (),
    )  # fmt: skip


def test_a_skipped_step_is_not_counted_as_built() -> None:
    lines = told(model(MADE, NOT_MADE))
    (row,) = [line for line in lines if "openvino" in line]
    assert row.split() == ["openvino", "skipped"]
    assert lines[-1].split(" · ")[:2] == [
        ", ".join(("1 passed", "0 rejected", "1 skipped", "1 gate broken")), "1 built",
    ]  # fmt: skip


def test_counts_of_one_are_singular(capsys: pytest.CaptureFixture[str]) -> None:
    assert "1 of 1 model failed" in told(model(state=Outcome.FAILED, error="cut short"))[-1]
    assert "1 of 1 model skipped" in told(model(state=Outcome.SKIPPED))[-1]
    wanted = (Wanted(target="onnx"),)
    order = Order(source=Source(checkpoint=Path("net.pt")), wanted=wanted, out=Path("out/net"))
    show_plans(
        [ModelOrder(name="net", order=order, plan=())],
        Path("modelc.toml"),
        RunSettings(),
        json=False,
    )
    assert "0 artifacts of 1 model " in capsys.readouterr().out


def told_of(manifest: Manifest, *kept: str) -> list[str]:
    ended = (ModelOutcome(name="net", folder="out/net", manifest=manifest, kept=kept),)
    stream = io.StringIO()
    record = make_record(ended, seconds=1.0)
    show_run(ended, record, Path("out"), console=Console(file=stream, width=200))
    return stream.getvalue().splitlines()


def calibrated(records: ModuleType) -> Manifest:
    """Two INT8 artifacts that passed, with a finding; the samples of one are random."""
    one = records.int8_artifact()
    other = replace(one, name="openvino-int8", calibration=replace(one.calibration, kind="random"))
    names = (one.name, other.name)
    verdicts = tuple(records.judged(name, records.measured("a", 9.0), notes=(NOTE,))
                     for name in names)  # fmt: skip
    made: Manifest = records.manifest(artifacts=(one, other), verdicts=verdicts, steps=names)
    return made


def test_warnings_of_reused_artifacts_are_shown_once(records: ModuleType) -> None:
    manifest = calibrated(records)
    lines = told_of(manifest, "onnx-int8", "openvino-int8")
    calibration = manifest.artifacts[1].calibration
    assert calibration is not None
    at = lines.index("net  out/net/manifest.json")
    assert lines[at + 1 : -1] == [
        f"  calibration: {calibration.findings[0]}",
        f"  openvino-int8: {random_warning(calibration)}",
        f"  onnx-int8, openvino-int8: {NOTE}",
        f"  onnx-int8, openvino-int8: {manifest.artifacts[0].notes[0]}",
    ]
    assert re.search(r"\b0 built, 2 ", lines[-1])


def test_warnings_that_models_share_are_shown_once_below_their_names(records: ModuleType) -> None:
    manifest = calibrated(records)
    own = replace(manifest.artifacts[0], notes=("of this model alone",))
    other = replace(manifest, artifacts=(own, *manifest.artifacts[1:]))
    ended = [
        ModelOutcome(name=name, folder=f"out/{name}", manifest=one)
        for name, one in (("a", manifest), ("b", manifest), ("c", other))
    ]
    stream = io.StringIO()
    record = make_record(ended, seconds=1.0)
    show_run(ended, record, Path("out"), console=Console(file=stream, width=200))
    lines = stream.getvalue().splitlines()
    shared = f"  onnx-int8, openvino-int8: {NOTE}"
    assert [line for line in lines if NOTE in line] == [shared]
    assert lines.index("a, b, c") < lines.index(shared)
    alone = f"  onnx-int8: {own.notes[0]}"
    assert alone in lines[lines.index("c  out/c/manifest.json") :]
    assert not any(line.startswith("a  out") for line in lines)


def test_a_run_shows_the_warnings_of_export(
    records: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = calibrated(records)
    show_manifest(manifest, "out/net")
    exported = capsys.readouterr().out.splitlines()
    assert (
        "  onnx-int8: calibrated with 300 of 400 samples (random), judged on 16 others" in exported
    )
    lines = told_of(manifest)
    assert not any("judged on 16 others" in line for line in lines)  # for information
    warnings = lines[lines.index("net  out/net/manifest.json") + 1 : -1]
    assert set(warnings) < set(exported)


def test_a_model_without_warnings_has_no_lines(records: ModuleType) -> None:
    verdict = records.judged("onnx", records.measured("a", 9.0))
    floor = replace(verdict, tolerance=replace(verdict.tolerance, floor_factor=5.0))
    manifest = records.manifest(
        artifacts=(records.artifact("onnx"),), verdicts=(floor,), steps=("onnx",)
    )
    assert not any("manifest.json" in line for line in told_of(manifest))


def test_an_undecided_gate_is_a_warning_on_screen_and_in_the_record(records: ModuleType) -> None:
    manifest = calibrated(records)
    doubt = Breach(artifact="onnx-int8", gate="max-latency-ratio", message="1.01 x", told=None)
    outcome = ModelOutcome(name="net", folder="out/net", manifest=manifest, doubts=(doubt,))
    record, stream = make_record([outcome], seconds=1.0), io.StringIO()
    show_run([outcome], record, Path("out"), console=Console(file=stream, width=200))
    assert "net/onnx-int8: gate undecided: 1.01 x" in stream.getvalue()
    (noted,) = [one for one in record.models[0].artifacts if "1.01 x" in str(one.notes)]
    assert noted.name == "onnx-int8"
