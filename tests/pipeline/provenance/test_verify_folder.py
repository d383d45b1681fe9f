"""`verify_folder` fails on any difference to the manifest, and reports what it did not check."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from modelc.core.errors import ErrorCode, UsageError
from modelc.core.records import record_of
from modelc.core.verdict import State
from modelc.pipeline.manifest_file import MANIFEST_FILE, encode_json, write_manifest
from modelc.pipeline.order import Judging, Order, Source, Wanted
from modelc.pipeline.provenance.artifact_checks import CheckOutcome
from modelc.pipeline.provenance.seals import seal_document, unbind_artifact
from modelc.pipeline.provenance.verify_folder import verify_folder
from modelc.pipeline.recorded_run import load_manifest
from modelc.pipeline.run_order import run
from modelc.pipeline.validate_file import rejudge_folder

from ...reasons import has_code


def failing(folder: Path) -> set[tuple[str, str]]:
    """What failed: of what, and which check."""
    found = verify_folder(folder)
    wrong = {(check.of, check.what) for check in found.checks if check.found is CheckOutcome.FAILED}
    assert found.passed == (not wrong)
    return wrong


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest's JSON and leave its form as modelc writes it."""
    document = json.loads((folder / MANIFEST_FILE).read_bytes())
    change(document)
    (folder / MANIFEST_FILE).write_bytes(encode_json(document))


def reseal(folder: Path) -> None:
    """What somebody does who knows how seals are made."""
    document = json.loads((folder / MANIFEST_FILE).read_bytes())
    (folder / MANIFEST_FILE).write_bytes(seal_document(encode_json({**document, "seal": ""})))


@pytest.fixture
def int8_copy(int8_digits: Path, tmp_path: Path) -> Path:
    return shutil.copytree(int8_digits, tmp_path / "out")


def test_all_checks_of_an_export_hold(digits_copy: Path) -> None:
    found = verify_folder(digits_copy)
    other = {check.what for check in found.checks if check.found is not CheckOutcome.HOLDS}
    assert found.passed
    assert other == {"signature"}


def test_int8_holds_with_its_quantizer_and_the_capture_of_its_parent(int8_copy: Path) -> None:
    found = verify_folder(int8_copy)
    inside = {check.of: check.found for check in found.checks if check.what == "inside"}
    assert set(inside.values()) == {CheckOutcome.HOLDS}
    assert len(inside) > 1


def test_nothing_in_the_folder_is_changed(
    digits_copy: Path, contents: Callable[[Path], object]
) -> None:
    before = contents(digits_copy)
    verify_folder(digits_copy)
    assert contents(digits_copy) == before


@pytest.fixture(name="contents")
def contents_fixture() -> Callable[[Path], object]:
    return lambda folder: {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.slow
def test_a_flipped_bit_anywhere_in_any_file_fails(int8_copy: Path) -> None:
    chance = random.Random(6)
    names = [file.name for file in load_manifest(int8_copy).files]
    assert len(names) > 5
    for name in names:
        path = int8_copy / name
        whole = path.read_bytes()
        for place in [0, len(whole) - 1, *(chance.randrange(len(whole)) for _ in range(4))]:
            data = bytearray(whole)
            data[place] ^= 1 << chance.randrange(8)
            path.write_bytes(data)
            assert failing(int8_copy), f"{name} at {place}"
        path.write_bytes(whole)
    assert not failing(int8_copy)


@pytest.mark.slow
def test_a_flipped_bit_anywhere_in_the_manifest_fails(int8_copy: Path) -> None:
    chance = random.Random(7)
    path = int8_copy / MANIFEST_FILE
    whole = path.read_bytes()
    tail = range(len(whole) - 90, len(whole))  # the seal itself, and all around it
    for place in [0, *tail, *(chance.randrange(len(whole)) for _ in range(150))]:
        data = bytearray(whole)
        data[place] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        assert failing(int8_copy), f"at {place}: {whole[place - 20 : place + 20]!r}"


def test_a_missing_file_fails(digits_copy: Path) -> None:
    for file in load_manifest(digits_copy).files:
        if file.role == "debug":  # that may stay behind, as documented
            continue
        (digits_copy / file.name).rename(digits_copy / "aside")
        assert {what for _, what in failing(digits_copy)} == {"files"}, file.name
        (digits_copy / "aside").rename(digits_copy / file.name)


def test_two_swapped_artifacts_fail_though_the_manifest_is_edited(digits_copy: Path) -> None:
    one, other = digits_copy / "model.onnx", digits_copy / "model.fp16.onnx"
    one.rename(digits_copy / "aside")
    other.rename(one)
    (digits_copy / "aside").rename(other)
    assert failing(digits_copy) == {("onnx", "files"), ("onnx-fp16", "files")}

    def swap(document: dict[str, Any]) -> None:
        for artifact in document["artifacts"]:
            if artifact["name"] in ("onnx", "onnx-fp16"):
                for file in artifact["files"]:
                    now = record_of(digits_copy / file["name"])
                    file.update(size=now.size, sha256=now.sha256)

    edit(digits_copy, swap)
    reseal(digits_copy)
    wrong = failing(digits_copy)
    assert {("onnx", "inside"), ("onnx-fp16", "inside")} <= wrong
    assert {("onnx", "seal"), ("onnx-fp16", "seal")} <= wrong


def test_an_edited_verdict_fails_though_the_manifest_was_sealed_again(digits_copy: Path) -> None:
    def praise(document: dict[str, Any]) -> None:
        document["verdicts"][0]["outputs"][0]["max_abs"] = 1e-30

    name = load_manifest(digits_copy).verdicts[0].artifact
    edit(digits_copy, praise)
    assert failing(digits_copy) == {("manifest", "seal"), (name, "seal")}
    reseal(digits_copy)
    assert failing(digits_copy) == {(name, "seal")}


def test_an_edited_verdict_fails_after_a_later_run_wrote_the_manifest(
    digits_copy: Path,
) -> None:
    edit(digits_copy, lambda d: d["verdicts"][0].update(device="a better one"))
    write_manifest(load_manifest(digits_copy), digits_copy)
    assert failing(digits_copy) == {(load_manifest(digits_copy).verdicts[0].artifact, "seal")}


@pytest.mark.parametrize("state", [State.FAILED, None])
def test_an_artifact_whose_verdict_failed_or_is_missing_fails(
    digits_copy: Path, state: State | None
) -> None:
    manifest = load_manifest(digits_copy)
    first, *others = manifest.verdicts
    verdicts = others if state is None else [replace(first, state=state), *others]
    now = replace(manifest, verdicts=tuple(verdicts))
    write_manifest(unbind_artifact(now, first.artifact), digits_copy)
    assert failing(digits_copy) == {(first.artifact, "verdict")}


def test_an_unclaimed_model_fails(digits_copy: Path) -> None:
    shutil.copy(digits_copy / "model.onnx", digits_copy / "model.bf16.copy.onnx")
    assert failing(digits_copy) == {("model.bf16.copy.onnx", "verdict")}


@pytest.mark.parametrize(
    ("change", "exact"),
    [
        (lambda d: d["artifacts"][0].update(parent="0" * 64), False),
        (lambda d: d["artifacts"][0].update(precision="bf16"), False),
        (lambda d: d["checkpoint"].update(digest="0" * 64), False),
        (lambda d: d["signature"]["inputs"][0].update(name="y"), True),
    ],
)
def test_a_manifest_that_contradicts_the_metadata_fails(
    digits_copy: Path, change: Callable[[dict[str, Any]], object], *, exact: bool
) -> None:
    edit(digits_copy, change)
    reseal(digits_copy)
    found = {what for _, what in failing(digits_copy)}
    assert found == {"inside", "seal"} if exact else "inside" in found


def test_a_changed_checkpoint_fails_and_a_missing_one_is_unchecked(
    gate_source: Source, tmp_path: Path
) -> None:
    mine = tmp_path / "gate.safetensors"
    shutil.copy(gate_source.checkpoint, mine)
    source = replace(gate_source, checkpoint=mine)
    out = tmp_path / "out"
    run(Order(source=source, wanted=(Wanted(target="torchscript"),), out=out))
    mine.write_bytes(mine.read_bytes()[:-1] + b"\x01")
    assert failing(out) == {("checkpoint", "files")}
    mine.unlink()
    found = {(check.of, check.what): check.found for check in verify_folder(out).checks}
    assert found["checkpoint", "files"] is CheckOutcome.UNCHECKED


def test_a_link_that_leads_out_of_the_folder_fails(digits_copy: Path, tmp_path: Path) -> None:
    (digits_copy / "model.onnx").rename(tmp_path / "elsewhere.onnx")
    (digits_copy / "model.onnx").symlink_to(tmp_path / "elsewhere.onnx")
    assert failing(digits_copy) == {("onnx", "files")}


def test_a_cyclic_lineage_fails(digits_copy: Path) -> None:
    manifest = load_manifest(digits_copy)
    first, *others = manifest.artifacts
    now = replace(manifest, artifacts=(replace(first, parent=first.digest), *others))
    write_manifest(now, digits_copy)
    assert (first.name, "chain") in failing(digits_copy)


def test_an_unfinished_commit_fails(digits_copy: Path) -> None:
    (digits_copy / ".modelc.commit").mkdir()
    assert failing(digits_copy) == {("manifest", "form")}


def test_a_rejected_artifact_is_not_claimed(digits_copy: Path) -> None:
    rejudge_folder(digits_copy, Judging(min_sqnr=100.0))  # the halves are far from that
    found = verify_folder(digits_copy)
    rejected = [c for c in found.checks if c.what == "verdict" and c.of.startswith("rejected/")]
    assert found.passed
    assert {check.found for check in rejected} == {CheckOutcome.UNCHECKED}


def test_an_artifact_that_is_judged_again_is_sealed_again(digits_copy: Path) -> None:
    rejudge_folder(digits_copy, Judging(min_sqnr=20.0))
    found = {(c.of, c.what): c for c in verify_folder(digits_copy).checks}
    assert found["onnx", "seal"].found is CheckOutcome.HOLDS
    assert "again since" in found["onnx", "inside"].detail


def test_a_folder_without_a_manifest_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.NO_MANIFEST)):
        verify_folder(tmp_path)


def test_a_manifest_of_an_older_modelc_lacks_seals_and_does_not_fail(
    digits_copy: Path,
) -> None:
    def age(document: dict[str, Any]) -> None:
        del document["seal"]
        for artifact in document["artifacts"]:
            del artifact["seal"]

    edit(digits_copy, age)
    found = verify_folder(digits_copy)
    lacking = {(c.of, c.what) for c in found.checks if c.found is CheckOutcome.LACKING}
    assert found.passed
    assert {("manifest", "seal"), ("onnx", "seal")} <= lacking
