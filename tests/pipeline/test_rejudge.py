"""`validate --rejudge`: other tolerances on recorded measures, with the files where they belong."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from modelc.core.errors import UsageError
from modelc.core.verdict import Limits, State
from modelc.pipeline.manifest_file import read_manifest, write_manifest
from modelc.pipeline.order import Judging
from modelc.pipeline.rejudge import rejudge_folder

if TYPE_CHECKING:
    from pathlib import Path

    from modelc.core.manifest import Manifest

STRICT, USUAL = Judging(floor_factor=1.0), Judging(floor_factor=5.0)


@pytest.fixture
def folder(exported_digits: Path, tmp_path: Path) -> Path:
    return shutil.copytree(exported_digits, tmp_path / "out")


def manifest_in(folder: Path) -> Manifest:
    manifest = read_manifest(folder)
    assert manifest is not None
    return manifest


def states(manifest: Manifest) -> dict[str, State]:
    return {verdict.artifact: verdict.state for verdict in manifest.verdicts}


def test_stricter_limits_refuse_and_usual_ones_take_back(folder: Path) -> None:
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


def test_what_it_is_within_is_recorded(folder: Path) -> None:
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


def test_a_changed_file_is_refused_whatever_the_limits(folder: Path) -> None:
    name = next(a for a in manifest_in(folder).artifacts if a.target == "onnx").files[0].name
    with (folder / name).open("ab") as file:
        file.write(b"x")
    done = rejudge_folder(folder, Judging(min_sqnr=0.0))
    assert states(done)["rejected/onnx"] is State.FAILED
    assert "digest" in next(v for v in done.verdicts if v.artifact == "rejected/onnx").reason


def test_a_fault_that_no_tolerance_forgives_stays(folder: Path) -> None:
    from dataclasses import replace

    manifest = manifest_in(folder)
    verdicts = tuple(v.refused("a frozen branch") for v in manifest.verdicts)
    write_manifest(replace(manifest, verdicts=verdicts), folder)
    done = rejudge_folder(folder, Judging(min_sqnr=0.0, rtol=10.0))
    assert set(states(done).values()) == {State.FAILED}
    assert all("a frozen branch" in verdict.reason for verdict in done.verdicts)


def test_measures_of_an_older_modelc_are_not_believed(folder: Path) -> None:
    from dataclasses import replace

    manifest = manifest_in(folder)
    verdicts = tuple(replace(v, state=State.FAILED, reason="shape") for v in manifest.verdicts)
    write_manifest(replace(manifest, verdicts=verdicts), folder)
    with pytest.raises(UsageError, match="do not make its verdict again"):
        rejudge_folder(folder, USUAL)
