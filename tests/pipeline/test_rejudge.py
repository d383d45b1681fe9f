"""`validate --rejudge`: other tolerances on recorded measures, with the files where they belong."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from modelc.core.errors import ErrorCode, UsageError
from modelc.core.kinds import ReasonCode
from modelc.core.manifest import Failure
from modelc.core.verdict import Limits, State
from modelc.pipeline.manifest_file import write_manifest
from modelc.pipeline.order import Judging
from modelc.pipeline.validate_file import rejudge_folder
from modelc.pipeline.validate_folder import validate_folder
from modelc.validators.ruling import Ruling, decide

from ..reasons import because, has_code, reason_codes
from .test_validate_folder import read as manifest_in
from .test_validate_folder import states

if TYPE_CHECKING:
    from pathlib import Path


STRICT, USUAL = Judging(floor_factor=1.0), Judging(floor_factor=5.0)


@pytest.fixture
def folder(digits_copy: Path) -> Path:
    return digits_copy


def test_stricter_limits_reject_and_usual_ones_restore(folder: Path) -> None:
    before = manifest_in(folder)
    names = {a.files[0].name for a in before.artifacts}
    strict = rejudge_folder(folder, STRICT)
    refused = [a for a in strict.artifacts if a.rejected]
    assert refused
    assert strict.exit_code == 1
    for artifact in refused:
        assert (folder / artifact.files[0].name).is_file()
        assert not (folder / artifact.files[0].name.removeprefix("rejected/")).exists()
    back = rejudge_folder(folder, USUAL)
    assert {a.files[0].name for a in back.artifacts} == names
    assert states(back) == states(before)
    assert back.exit_code == 0
    assert all((folder / name).is_file() for name in names)
    assert manifest_in(folder) == back


def test_the_applied_tolerance_is_recorded(folder: Path) -> None:
    done = rejudge_folder(folder, Judging(min_sqnr=60.0))
    for artifact in done.artifacts:
        verdict = done.verdict_of(artifact.name)
        assert verdict is not None
        assert artifact.tolerance == verdict.tolerance
        assert verdict.tolerance.min_sqnr == 60
        assert verdict.tolerance.floor_factor is None


def test_limits_of_one_output_are_its_own(folder: Path) -> None:
    by_output = {"output": Limits(min_sqnr=300.0)}
    done = rejudge_folder(folder, Judging(by_output=by_output))
    failed = [v for v in done.verdicts if v.state is State.FAILED]
    assert failed
    assert all("'output'" in v.reason and "< 300" in v.reason for v in failed)


def test_a_fault_at_any_tolerance_stays(folder: Path) -> None:
    manifest = manifest_in(folder)
    verdicts = tuple(
        decide(v, [Ruling.fault(ReasonCode.BRANCH_FROZEN, "a frozen branch")])
        for v in manifest.verdicts
    )
    write_manifest(replace(manifest, verdicts=verdicts), folder)
    done = rejudge_folder(folder, Judging(min_sqnr=0.0, rtol=10.0))
    assert set(states(done).values()) == {State.FAILED}
    assert all(ReasonCode.BRANCH_FROZEN in reason_codes(verdict) for verdict in done.verdicts)


def test_measurements_of_an_older_modelc_are_rejected(folder: Path) -> None:
    manifest = manifest_in(folder)
    verdicts = tuple(
        replace(v, state=State.FAILED, reasons=because("shape")) for v in manifest.verdicts
    )
    write_manifest(replace(manifest, verdicts=verdicts), folder)
    with pytest.raises(UsageError, check=has_code(ErrorCode.INVALID_MANIFEST)):
        rejudge_folder(folder, USUAL)


@pytest.mark.parametrize("validated", [False, True])
def test_a_changed_file_stays_rejected_whatever_the_limits(folder: Path, validated: bool) -> None:
    name = next(a for a in manifest_in(folder).artifacts if a.target == "onnx").files[0].name
    with (folder / name).open("ab") as file:
        file.write(b"x")
    first = validate_folder(folder) if validated else rejudge_folder(folder, USUAL)
    again = rejudge_folder(folder, Judging(min_sqnr=0.0))
    assert states(again) == states(first)
    verdict = again.verdict_of("rejected/onnx")
    assert verdict is not None
    assert reason_codes(verdict) == [ReasonCode.CHANGED_FILE]
    assert (folder / "rejected" / name).is_file()


def test_a_tolerance_for_an_unknown_output_is_rejected(folder: Path) -> None:
    with pytest.raises(UsageError, match="logit"):
        rejudge_folder(folder, Judging(by_output={"logit": Limits(min_sqnr=300.0)}))


def test_failed_steps_stay_on_record(folder: Path) -> None:
    lost = Failure(step="openvino-int8", message="broke", hint="see its log", exit_code=5)
    write_manifest(replace(manifest_in(folder), failures=(lost,)), folder)
    done = rejudge_folder(folder, USUAL)
    assert done.failures == (lost,)
    assert not done.passed
    assert done.exit_code == 0


def test_a_rejected_artifact_does_not_replace_one_of_its_name(folder: Path) -> None:
    """`onnx` fails now, and an older refused `onnx` would pass: each keeps its own verdict."""
    manifest = manifest_in(folder)
    passed = next(a for a in manifest.artifacts if a.target == "onnx")
    kept = manifest.verdict_of("onnx")
    assert kept is not None
    name = passed.files[0].name
    (folder / "rejected").mkdir(exist_ok=True)
    shutil.copy(folder / name, folder / "rejected" / name)
    twin = replace(
        passed,
        name="rejected/onnx",
        files=(replace(passed.files[0], name=f"rejected/{name}"),),
        rejected=True,
    )
    broken = replace(
        decide(kept, [Ruling.fault(ReasonCode.OUTPUT_DIFFERS, "wrong at batch 3")]),
        artifact="onnx",
    )
    verdicts = (
        *(broken if v is kept else v for v in manifest.verdicts),
        replace(kept, artifact="rejected/onnx"),
    )
    artifacts = (*manifest.artifacts, twin)
    write_manifest(replace(manifest, artifacts=artifacts, verdicts=verdicts), folder)
    done = rejudge_folder(folder, USUAL)
    assert not (folder / name).exists()
    names = [a.name for a in done.artifacts if a.name in ("onnx", "rejected/onnx")]
    assert names == ["rejected/onnx"]
    (verdict,) = (v for v in done.verdicts if v.artifact == "rejected/onnx")
    assert verdict.state is State.FAILED
    assert "batch 3" in verdict.reason


def test_a_verdict_without_measures_never_passes(folder: Path) -> None:
    manifest = manifest_in(folder)
    empty = tuple(
        replace(v, outputs=(), channels=(), state=State.FAILED, reasons=because("gone"))
        for v in manifest.verdicts
    )
    write_manifest(replace(manifest, verdicts=empty), folder)
    done = rejudge_folder(folder, Judging(min_sqnr=0.0))
    assert set(states(done).values()) == {State.FAILED}


def test_the_noise_floor_applies_to_fp32_only(int8_digits: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(int8_digits, tmp_path / "int8")
    before = manifest_in(folder)
    done = rejudge_folder(folder, Judging(floor_factor=4.0))
    for artifact in done.artifacts:
        verdict = done.verdict_of(artifact.name)
        assert verdict is not None
        wanted = 4.0 if artifact.precision == "fp32" else None
        assert verdict.tolerance.floor_factor == wanted
    assert states(done) == states(before)


def test_a_limit_for_all_replaces_recorded_limits_of_single_outputs(folder: Path) -> None:
    done = rejudge_folder(folder, Judging(by_output={"output": Limits(min_sqnr=300.0)}))
    assert State.FAILED in states(done).values()
    done = rejudge_folder(folder, Judging(min_sqnr=10.0))
    assert set(states(done).values()) == {State.PASSED}
