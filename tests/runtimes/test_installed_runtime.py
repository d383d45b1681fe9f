"""Artifacts are judged in other releases of their runtime; wrong ones are found."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from modelc.core.errors import ErrorCode, RunnerError, UsageError
from modelc.core.kinds import Precision
from modelc.core.manifest import Manifest
from modelc.core.signature import Signature
from modelc.core.verdict import State
from modelc.pipeline.installed_runtimes import provide_runtimes
from modelc.pipeline.manifest_file import read_manifest, write_manifest
from modelc.pipeline.order import Judging, Order, Source, Wanted
from modelc.pipeline.provenance.verify_folder import verify_folder
from modelc.pipeline.run_order import run
from modelc.pipeline.validate_external import validate_external
from modelc.reports.html_page import render_html
from modelc.runtimes.installed_runtime import InstalledRuntime, install_runtime
from modelc.runtimes.runtime_requirement import parse_requirement

from .conftest import CRASHING, DOUBLED, RIGHT

pytestmark = [
    pytest.mark.usefixtures("index"),
    pytest.mark.skipif(os.name == "nt", reason="the wheels are for POSIX"),
]

SAMPLES = Path(__file__).parents[2] / "sample_models"


def make(source: Source, out: Path, *targets: str, **parts: object) -> Path:
    wanted = tuple(map(Wanted.parse, targets))
    plain = Order(source=source, wanted=wanted, out=out, judging=Judging())
    run(replace(plain, **parts))  # type: ignore[arg-type]  # the fields are Order's own
    return out


@pytest.fixture
def folder(gate_source: Source, tmp_path: Path) -> Path:
    return make(gate_source, tmp_path / "out", "onnx")


def recorded(folder: Path) -> Manifest:
    manifest = read_manifest(folder)
    assert manifest is not None
    return manifest


def test_an_artifact_passes_in_a_right_release(folder: Path, cache: Path) -> None:
    there = install_runtime(f"onnxruntime=={RIGHT}", cache)

    report = validate_external(folder, [there], drift=True)

    (one,) = report.judged
    assert (one.verdict.state, one.runtime) == (State.PASSED, f"onnxruntime=={RIGHT}")
    assert one.versions["onnxruntime"] == RIGHT
    assert one.verdict.sqnr == recorded(folder).verdicts[0].sqnr
    assert [(d.first, d.second, d.beyond) for d in report.drift] == [("here", one.runtime, False)]


def test_a_release_that_doubles_outputs_is_found(folder: Path, cache: Path) -> None:
    there = [install_runtime(f"onnxruntime=={version}", cache) for version in (RIGHT, DOUBLED)]

    report = validate_external(folder, there, drift=True)

    states = {one.runtime.rpartition("=")[2]: one.verdict.state for one in report.judged}
    assert states == {RIGHT: State.PASSED, DOUBLED: State.FAILED}
    assert report.exit_code == 1
    doubled = f"onnxruntime=={DOUBLED}"
    assert [doubled in (d.first, d.second) for d in report.drift] == [
        d.beyond for d in report.drift
    ]
    assert len(report.drift) == 3


@pytest.mark.slow
def test_a_release_that_crashes_has_no_passed_verdict(folder: Path, cache: Path) -> None:
    report = validate_external(folder, [install_runtime(f"onnxruntime=={CRASHING}", cache)])

    assert {one.verdict.state for one in report.judged} == {State.ERROR}


def test_verdicts_on_another_file_are_stale(folder: Path, cache: Path) -> None:
    there = install_runtime(f"onnxruntime=={RIGHT}", cache)
    validate_external(folder, [there])

    def outcome() -> list[str]:
        return [str(one.found) for one in verify_folder(folder).checks if one.what == "runtimes"]

    assert outcome() == ["holds"]
    manifest = recorded(folder)
    assert ">stale<" not in render_html(manifest).replace(" ", "")
    stale = replace(manifest, external=(replace(manifest.external[0], sha256="0" * 64),))
    write_manifest(stale, folder)
    assert outcome() == ["unchecked"]
    assert ">stale<" in render_html(stale).replace("</b> ", ">")


def test_a_model_that_is_too_new_is_explained_by_the_limits_of_the_release(
    folder: Path, cache: Path
) -> None:
    there = install_runtime(f"onnxruntime=={RIGHT}", cache)
    (artifact,) = recorded(folder).artifacts
    path = folder / artifact.files[0].name
    model = onnx.load(path)
    model.ir_version = 99
    onnx.save(model, path)

    there.prepare(path, artifact)
    with pytest.raises(RunnerError, match=r"--for onnxruntime==1\.20"):
        there.open(path, artifact, Signature(inputs=()))


@pytest.mark.slow
def test_half_precision_and_external_weights_run_there(tmp_path: Path, cache: Path) -> None:
    digits = Source(
        checkpoint=SAMPLES / "digits.safetensors",
        model="modelc.sample_models.digits:build",
        inputs=("x:float32[batch=1..8,1,8,8]",),
    )
    out = make(digits, tmp_path / "out", "onnx", "onnx:fp16", external_data=True)

    report = validate_external(out, [install_runtime(f"onnxruntime=={RIGHT}", cache)])

    assert {one.verdict.artifact: one.verdict.state for one in report.judged} == {
        "onnx": State.PASSED,
        "onnx-fp16": State.PASSED,
    }


def test_nothing_is_installed_for_a_runtime_that_opens_no_artifact(
    folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        provide_runtimes(folder, ["openvino==2025.3.0"], tmp_path / "cache")

    assert caught.value.code is ErrorCode.UNSUPPORTED
    assert not (tmp_path / "cache").exists()


def test_bfloat16_is_declined_as_there_are_no_kernels(folder: Path, cache: Path) -> None:
    there = InstalledRuntime(requirement=parse_requirement("onnxruntime==1.22.0"), cache=cache)
    (artifact,) = recorded(folder).artifacts

    assert not there.decline_reason(artifact)
    assert "bfloat16" in there.decline_reason(replace(artifact, precision=Precision.BF16))


def test_a_runtime_is_provided_once(folder: Path, cache: Path) -> None:
    text = f"onnxruntime=={RIGHT}"
    assert provide_runtimes(folder, [text, text], cache) == (
        InstalledRuntime(requirement=parse_requirement(text), cache=cache),
    )
