"""`modelc verify` of a run of several models: each folder, and what `run.json` says of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519

from modelc.core.errors import ErrorCode, UsageError
from modelc.core.verdict import State
from modelc.pipeline.manifest_file import MANIFEST_FILE as MANIFEST
from modelc.pipeline.manifest_file import SIGNATURE_FILE, encode_json, write_manifest
from modelc.pipeline.provenance.artifact_checks import CheckOutcome
from modelc.pipeline.provenance.seals import seal_document, unbind_artifact
from modelc.pipeline.provenance.signing import sign_record
from modelc.pipeline.recorded_run import load_manifest
from modelc.projects.project_records import ModelOutcome
from modelc.projects.run_record import RUN_FILE, clear_record, make_record, write_record
from modelc.projects.verify_project import verify_results
from modelc.reports.result_rows import Outcome

from ..reasons import has_code

KEY = ed25519.Ed25519PrivateKey.generate()


@pytest.fixture
def ran(exports: Callable[[str], Path], tmp_path: Path) -> Path:
    """A run of two models, and of a third that was not come to."""
    out = tmp_path / "out"
    ended = []
    for name in ("one", "two"):
        shutil.copytree(exports("gate"), out / name)
        manifest = load_manifest(out / name)
        ended.append(ModelOutcome(name=name, folder=f"elsewhere/{name}", manifest=manifest))
    ended.append(ModelOutcome(name="three", folder="elsewhere/three", started=False))
    write_record(make_record(ended, seconds=1.0), out)
    return out


def test_a_run_holds_and_what_was_not_run_is_not_claimed(ran: Path) -> None:
    found = verify_results(ran)
    assert found.passed
    assert [model.name for model in found.models] == ["one", "two"]
    unclaimed = [one for one in found.run if one.found is CheckOutcome.UNCHECKED]
    assert [(one.of, one.what) for one in unclaimed] == [("three", "verdict"), ("run", "signature")]


def test_a_run_in_which_nothing_passed_claims_nothing(
    exports: Callable[[str], Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(exports("gate"), out / "one")
    ended = [ModelOutcome(name="one", folder="elsewhere/one", manifest=load_manifest(out / "one"))]
    record = make_record(ended, seconds=1.0)
    ends = tuple(replace(one, state=Outcome.REJECTED) for one in record.models[0].artifacts)
    model = replace(record.models[0], state=Outcome.REJECTED, artifacts=ends)
    write_record(replace(record, models=(model,)), out)
    of_model = [one for one in verify_results(out).run if one.of == "one"]
    assert [one.found for one in of_model] == [CheckOutcome.UNCHECKED]
    assert str(Outcome.REJECTED) in of_model[0].detail


def test_a_flipped_bit_in_the_runs_record_fails(ran: Path) -> None:
    whole = (ran / RUN_FILE).read_bytes()
    for place in (0, len(whole) // 3, len(whole) // 2, len(whole) - 80, len(whole) - 20):
        data = bytearray(whole)
        data[place] ^= 2
        (ran / RUN_FILE).write_bytes(data)
        assert not verify_results(ran).passed, place


def test_one_changed_artifact_fails_the_whole(ran: Path) -> None:
    with (ran / "two" / "model.torchscript.pt").open("ab") as stream:
        stream.write(b"\0")
    found = verify_results(ran)
    assert not found.passed
    assert [model.passed for model in found.models] == [True, False]


def test_a_changed_artifact_of_a_model_that_the_last_run_left_out_fails(ran: Path) -> None:
    ended = ModelOutcome(name="one", folder="elsewhere/one", manifest=load_manifest(ran / "one"))
    write_record(make_record([ended], seconds=1.0), ran)
    found = verify_results(ran)
    assert found.passed
    assert [model.name for model in found.models] == ["one", "two"]
    with (ran / "two" / "model.torchscript.pt").open("ab") as stream:
        stream.write(b"\0")
    assert [model.passed for model in verify_results(ran).models] == [True, False]


def test_a_model_whose_folder_is_gone_fails(ran: Path) -> None:
    shutil.rmtree(ran / "one")
    found = verify_results(ran)
    assert not found.passed
    (missing,) = [check for check in found.run if (check.of, check.what) == ("one", "form")]
    assert missing.found is CheckOutcome.FAILED
    assert "manifest.json" in missing.detail


def test_a_verdict_that_the_run_says_otherwise_fails(ran: Path) -> None:
    manifest = load_manifest(ran / "one")
    first, *others = manifest.verdicts
    now = replace(manifest, verdicts=(replace(first, state=State.FAILED), *others))
    write_manifest(unbind_artifact(now, first.artifact), ran / "one")
    failed = [one for one in verify_results(ran).run if one.found is CheckOutcome.FAILED]
    assert [one.of for one in failed] == ["one"]


@pytest.mark.parametrize("name", ["../one", "n" * 300])
def test_a_name_that_leads_out_of_the_folder_or_is_none_fails(ran: Path, name: str) -> None:
    ended = ModelOutcome(name=name, folder="", manifest=load_manifest(ran / "one"))
    write_record(make_record([ended], seconds=1.0), ran)
    found = verify_results(ran)
    assert not found.passed
    assert found.run[0].found is CheckOutcome.FAILED
    assert name[:40] in found.run[0].detail


def test_a_record_that_is_none_fails(ran: Path) -> None:
    (ran / RUN_FILE).write_text('{"models": 3}')
    assert not verify_results(ran).passed


def test_a_folder_of_neither_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.NO_MANIFEST, naming=str(tmp_path))):
        verify_results(tmp_path)


@pytest.fixture
def signed(ran: Path) -> Path:
    """The run with each record signed by `KEY`."""
    for name in ("one", "two"):
        sign_record(ran / name, KEY)
    sign_record(ran, KEY, file=RUN_FILE)
    return ran


def failed_checks(folder: Path) -> set[tuple[str, str]]:
    found = verify_results(folder, key=KEY.public_key())
    checks = [check for model in found.models for check in model.checks] + list(found.run)
    wrong = {(check.of, check.what) for check in checks if check.found is CheckOutcome.FAILED}
    assert found.passed == (not wrong)
    return wrong


def test_a_signed_run_holds(signed: Path) -> None:
    assert not failed_checks(signed)


def test_a_run_record_that_is_not_signed_fails_with_a_key(signed: Path) -> None:
    (signed / f"{RUN_FILE}.sig").unlink()
    assert failed_checks(signed) == {("run", "signature")}


def test_a_model_dropped_from_the_record_and_sealed_again_fails(signed: Path) -> None:
    (signed / "two" / MANIFEST).unlink()
    (signed / "two" / SIGNATURE_FILE).unlink()
    (signed / "two" / "model.torchscript.pt").write_bytes(b"another model")
    record = json.loads((signed / RUN_FILE).read_bytes())
    record["models"] = [one for one in record["models"] if one["name"] != "two"]
    (signed / RUN_FILE).write_bytes(seal_document(encode_json({**record, "seal": ""})))
    wrong = failed_checks(signed)
    assert {("run", "signature"), ("two/model.torchscript.pt", "verdict")} <= wrong


@pytest.mark.parametrize(
    "name", ["three/model.onnx", "one/a/b/model.pt2", "model.xml", ".hidden/model.engine"]
)
def test_a_model_that_no_record_claims_fails_wherever_it_lies(signed: Path, name: str) -> None:
    (signed / name).parent.mkdir(parents=True, exist_ok=True)
    (signed / name).write_bytes(b"a stranger")
    assert {(PurePosixPath(of).name, what) for of, what in failed_checks(signed)} == {
        (PurePosixPath(name).name, "verdict")
    }


def test_a_folder_behind_a_link_out_of_the_run_fails(signed: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (signed / "latest").symlink_to(signed / "one")  # what is there is looked at where it lies
    assert not failed_checks(signed)
    (signed / "three").symlink_to(tmp_path / "elsewhere")
    assert failed_checks(signed) == {("three", "files")}


def test_a_model_of_an_earlier_run_deeper_down_must_be_signed(signed: Path) -> None:
    shutil.copytree(signed / "one", signed / "old" / "one")
    assert not failed_checks(signed)
    (signed / "old" / "one" / SIGNATURE_FILE).unlink()
    assert failed_checks(signed) == {("manifest", "signature")}


def test_a_new_record_and_a_cleared_one_have_no_signature(signed: Path) -> None:
    write_record(make_record([], seconds=1.0), signed)
    assert not (signed / f"{RUN_FILE}.sig").exists()
    sign_record(signed, KEY, file=RUN_FILE)
    clear_record(signed)
    assert not (signed / f"{RUN_FILE}.sig").exists()
