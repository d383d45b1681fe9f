"""Ways to get a model that nobody judged past `modelc verify --key`, and folders that hold."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519

from modelc.core.records import FileRecord, sha256_of
from modelc.pipeline.manifest_file import MANIFEST_FILE as MANIFEST
from modelc.pipeline.manifest_file import SIGNATURE_FILE, encode_json, write_manifest
from modelc.pipeline.order import Order, Source, Wanted
from modelc.pipeline.provenance.artifact_checks import (
    CheckOutcome,
    ProvenanceCheck,
    describe_change,
)
from modelc.pipeline.provenance.seals import seal_document
from modelc.pipeline.provenance.signing import sign_record
from modelc.pipeline.recorded_run import load_manifest
from modelc.pipeline.run_order import run
from modelc.projects.project_records import ModelOutcome
from modelc.projects.run_record import RUN_FILE, make_record, write_record
from modelc.projects.verify_project import verify_results

KEY = ed25519.Ed25519PrivateKey.generate()
STRANGER = b"\x08\x0a a stranger's model"
MODEL = "model.torchscript.pt"


@pytest.fixture
def signed(exports: Callable[[str], Path], tmp_path: Path) -> Path:
    """A run of two models, each record signed by `KEY`."""
    out = tmp_path / "out"
    ended = []
    for name in ("one", "two"):
        shutil.copytree(exports("gate"), out / name)
        sign_record(out / name, KEY)
        ended.append(ModelOutcome(name=name, folder=name, manifest=load_manifest(out / name)))
    write_record(make_record(ended, seconds=1.0), out, KEY)
    return out


def failed(folder: Path, *, key: bool = True) -> list[ProvenanceCheck]:
    found = verify_results(folder, key=KEY.public_key() if key else None)
    checks = [check for model in found.models for check in model.checks] + list(found.run)
    wrong = [check for check in checks if check.found is CheckOutcome.FAILED]
    assert found.passed == (not wrong)
    return wrong


def put(path: Path, data: bytes = STRANGER) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def put_all(folder: Path, names: Iterable[str], data: bytes) -> None:
    for name in names:
        put(folder / name, data)


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a record and make its seal anew, as anybody can."""
    document = json.loads(path.read_bytes())
    change(document)
    path.write_bytes(seal_document(encode_json({**document, "seal": ""})))


def forge(folder: Path) -> None:
    """Another model under the recorded name, with the record put right."""
    put(folder / MODEL)

    def put_right(document: dict[str, Any]) -> None:
        for one in document["artifacts"]:
            for file in one["files"]:
                path = folder / file["name"]
                file.update(size=path.stat().st_size, sha256=sha256_of(path))

    edit(folder / MANIFEST, put_right)


def link(path: Path, end: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(end)


def drop_from_run(out: Path) -> None:
    for name in (MANIFEST, SIGNATURE_FILE):
        (out / "two" / name).unlink()
    put(out / "two" / MODEL)
    edit(out / RUN_FILE, lambda d: d.update(models=d["models"][:1]))


def sign_otherwise(out: Path) -> None:
    forge(out / "one")
    sign_record(out / "one", ed25519.Ed25519PrivateKey.generate())


def take_signature(out: Path) -> None:
    forge(out / "one")
    shutil.copy(out / "two" / SIGNATURE_FILE, out / "one" / SIGNATURE_FILE)


def repeat_key(out: Path) -> None:
    path = out / "one" / MANIFEST
    path.write_bytes(b'{\n "artifacts": [],' + path.read_bytes()[1:])


def go_back(out: Path) -> None:
    """An older folder of the same model, signed by the same key, in place of what this run made."""
    folder = out / "one"
    manifest = load_manifest(folder)
    first, *others = manifest.artifacts
    file = replace(first.files[0], sha256="0" * 64)
    older = replace(first, files=(file, *first.files[1:]), seal="")
    write_manifest(replace(manifest, artifacts=(older, *others)), folder)
    sign_record(folder, KEY)


def nest_a_forged_model(out: Path) -> None:
    shutil.copytree(out / "two", out / "one" / "inner")
    forge(out / "one" / "inner")


def nest_a_forged_run(out: Path) -> None:
    old = shutil.copytree(out, out.parent / "old")
    edit(old / RUN_FILE, lambda d: d.update(models=[]))
    shutil.move(old, out / "old")


def link_records(out: Path) -> None:
    link(out / "c" / MANIFEST, f"../one/{MANIFEST}")
    link(out / "c" / SIGNATURE_FILE, f"../one/{SIGNATURE_FILE}")
    put(out / "c" / MODEL)


def lay_manifest_folder(out: Path) -> None:
    (out / "c" / MANIFEST).mkdir(parents=True)
    put(out / "c" / "model.onnx")


def link_out(out: Path) -> None:
    put(out.parent / "elsewhere" / "model.onnx")
    link(out / "c", "../elsewhere")


def link_to_a_part(out: Path) -> None:
    (out / "one" / "rejected").mkdir()
    link(out / "release", "one/rejected")


def copy_a_program(out: Path) -> None:
    shutil.copy(out / "one" / MODEL, out / "one" / "best.pt")


ATTACKS: dict[str, Callable[[Path], object]] = {
    "a model dropped from the run's record": drop_from_run,
    "a manifest put right": lambda out: forge(out / "one"),
    "the signature of another": take_signature,
    "the signature of another key": sign_otherwise,
    "a longer signature": lambda out: (
        (out / RUN_FILE).with_name(f"{RUN_FILE}.sig").write_bytes(b"x" * 65)
    ),
    "a key that is there twice": repeat_key,
    "an older folder with the same key": go_back,
    "a stray folder": lambda out: put(out / "c" / "model.onnx"),
    "a folder called replaced": lambda out: put(out / "one" / "replaced" / "model.onnx"),
    "a folder called rejected": lambda out: put(out / "one" / "rejected" / "model.onnx"),
    "a folder called worst": lambda out: put(out / "one" / "worst" / "model.onnx"),
    "external data": lambda out: put(out / "one" / "model.onnx.data"),
    "capitals": lambda out: put(out / "one" / "MODEL.ONNX"),
    "wide letters": lambda out: put(out / "one" / "\uff4dodel.bin"),
    "letters that are not seen": lambda out: put(out / "one" / "mo\u200bdel.bin"),
    "letters of another script": lambda out: put(out / "one" / "m\u043edel.onnx"),
    "a hidden file": lambda out: put(out / "one" / ".model.bin"),
    "a space in the name": lambda out: put(out / "one" / "model.onnx "),
    "another name": lambda out: put(out / "one" / "best.onnx"),
    "an IR of another name": lambda out: put(out / "c" / "best.xml", b'<?xml?><net name="x">'),
    "an IR in capitals": lambda out: put(out / "c" / "best.XML", b'<?xml?><net name="x">'),
    "a program of another name": copy_a_program,
    "another program's format": lambda out: put(out / "one" / "best.tflite"),
    "a folder with a model's name": lambda out: put(out / "one" / "best.onnx" / "weights"),
    "two manifests, the inner one forged": nest_a_forged_model,
    "a run in a run, with a forged record": nest_a_forged_run,
    "records that are links": link_records,
    "a manifest that is a folder": lay_manifest_folder,
    "a pipe in place of a manifest": lambda out: pipe(out / "c" / MANIFEST),
    "a pipe in place of a signature": lambda out: pipe(out / "one" / SIGNATURE_FILE),
    "a pipe with a model's name": lambda out: pipe(out / "one" / "model.onnx"),
    "a link to a folder outside": link_out,
    "a link to part of a folder": link_to_a_part,
    "a link to a file of another name": lambda out: link(out / "one" / "model.fp16.onnx", MODEL),
    "a link of no model's name": lambda out: link(out / "one" / "best", MODEL),
    "a link in a circle": lambda out: link(out / "model.onnx", "model.onnx"),
    "a link to nothing": lambda out: link(out / "c" / MANIFEST, "nothing"),
}


def pipe(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    os.mkfifo(path)


@pytest.mark.parametrize("attack", ATTACKS)
def test_nothing_that_was_not_judged_passes(signed: Path, attack: str) -> None:
    ATTACKS[attack](signed)
    assert failed(signed)


def test_an_older_folder_with_the_same_key_is_told_by_the_runs_record(signed: Path) -> None:
    go_back(signed)
    assert ("one", "verdict") in {(check.of, check.what) for check in failed(signed)}


@pytest.mark.parametrize("genuine_first", [True, False])
def test_what_is_said_of_a_record_is_of_one_reading_of_it(
    signed: Path, monkeypatch: pytest.MonkeyPatch, genuine_first: bool
) -> None:
    """Whoever reads by turns the signed text and a forged one is not taken in."""
    read = Path.read_bytes
    genuine = {path: read(path) for path in signed.rglob("*.json")}
    for name in ("one", "two"):
        forge(signed / name)
    turns = dict.fromkeys(genuine, genuine_first)

    def by_turns(path: Path) -> bytes:
        shown = turns.get(path, False)
        if path in turns:
            turns[path] = not shown
        return genuine[path] if shown else read(path)

    monkeypatch.setattr(Path, "read_bytes", by_turns)
    wrong = {(check.of, check.what) for check in failed(signed)}
    assert wrong & {("manifest", "signature"), ("torchscript", "files")}


def test_a_folder_that_cannot_be_read_fails(signed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(signed / "c" / "model.onnx")
    scan = os.scandir

    def refuse(path: str) -> Any:
        if Path(path).name == "c":
            raise PermissionError(13, "Permission denied", path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert [(check.of, check.what) for check in failed(signed)] == [("c", "files")]


def test_a_model_by_another_name_is_told_without_a_key_and_does_not_fail(signed: Path) -> None:
    put(signed / "one" / "best.onnx")
    assert not failed(signed, key=False)
    checks = verify_results(signed).models[0].checks
    assert [check.of for check in checks if check.found is CheckOutcome.UNCHECKED][
        -1
    ] == "best.onnx"


GOOD: dict[str, Callable[[Path], object]] = {
    "as it was made": lambda out: (out / "one" / "logs").mkdir(exist_ok=True),
    "a link to a folder of the run": lambda out: link(out / "latest", "one"),
    "reports and notes": lambda out: put_all(
        out, ("junit.xml", "report.html", "one/README.md"), b"<testsuites/>"
    ),
    "feeds": lambda out: put(out / "one" / "worst" / "onnx.npz", b"PK\x03\x04 arrays"),
    "another program's records": lambda out: put_all(
        out / "page", (MANIFEST, RUN_FILE), b'{"name": "page"}'
    ),
    "an older signed folder of a model": lambda out: shutil.copytree(out / "one", out / "old"),
}


@pytest.mark.parametrize("change", GOOD)
def test_a_folder_as_modelc_makes_it_holds(signed: Path, change: str) -> None:
    GOOD[change](signed)
    assert not failed(signed)


def test_what_is_no_model_is_named_as_not_looked_into(signed: Path) -> None:
    put(signed / "one" / "weights.dat", bytes(100))
    assert not failed(signed)
    found = verify_results(signed, key=KEY.public_key()).models[0].checks
    (other,) = [check.detail for check in found if check.of == "other files"]
    assert (other.split()[0], other.split()[-1]) == ("1", "weights.dat")


@pytest.fixture
def overwritten(
    exports: Callable[[str], Path], sources: Callable[[str], Source], tmp_path: Path
) -> Path:
    """A signed folder that held another checkpoint's artifacts, which `--overwrite` moved aside."""
    from safetensors.torch import load_file, save_file

    out = shutil.copytree(exports("gate"), tmp_path / "out")
    source = sources("gate")
    other = tmp_path / "other.safetensors"
    save_file({k: v * 1.5 for k, v in load_file(source.checkpoint).items()}, other)
    order = Order(
        source=replace(source, checkpoint=other),
        wanted=(Wanted(target="torchscript"),),
        out=out,
        overwrite=True,
    )
    for _ in range(2):  # the second run goes on with the record of the first
        run(order)
    sign_record(out, KEY)
    return out


def test_what_overwrite_moved_aside_holds_and_is_not_claimed(overwritten: Path) -> None:
    assert (overwritten / "replaced" / MODEL).is_file()
    assert not failed(overwritten)
    checks = verify_results(overwritten).models[0].checks
    assert [c.found for c in checks if c.of == "replaced"] == [CheckOutcome.UNCHECKED]


def test_what_overwrite_moved_aside_may_be_removed(overwritten: Path) -> None:
    shutil.rmtree(overwritten / "replaced")
    assert not failed(overwritten)


def test_another_model_in_place_of_what_was_moved_aside_fails(overwritten: Path) -> None:
    put(overwritten / "replaced" / MODEL)
    assert [(c.of, c.what) for c in failed(overwritten)] == [(f"replaced/{MODEL}", "files")]


def test_a_stray_beside_what_was_moved_aside_fails(overwritten: Path) -> None:
    put(overwritten / "replaced" / "model.bf16.onnx")
    wrong = [(c.of, c.what) for c in failed(overwritten)]
    assert wrong == [("replaced/model.bf16.onnx", "verdict")]


@pytest.mark.parametrize("name", [MANIFEST, RUN_FILE])
def test_a_record_that_is_nested_too_deep_fails(name: str, signed: Path) -> None:
    put(signed / "sub" / name, b"[" * 200_000)
    put(signed / "sub" / "model.onnx")
    assert failed(signed)


def test_a_manifest_that_is_nested_too_deep_is_refused(tmp_path: Path) -> None:
    put(tmp_path / MANIFEST, b'{"a":' * 200_000)
    assert failed(tmp_path, key=False)


def test_a_link_that_leads_to_itself_is_no_crash(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").symlink_to("model.onnx")
    record = FileRecord(name="model.onnx", size=1, sha256="0" * 64)
    assert describe_change(record, tmp_path).split() == ["model.onnx", "is", "missing"]


ONNX = b"\x08\x0a\x12\x07pytorch"  # as each begins: the version of its IR, then who wrote it


@pytest.mark.parametrize("name", ["model.html", "model", "model.json", "sub/model.txt"])
def test_a_model_that_is_named_as_a_document_fails_without_a_key(signed: Path, name: str) -> None:
    put(signed / "stray" / name, ONNX)
    found = [(c.of, c.what) for c in failed(signed, key=False)]
    assert found == [(f"stray/{name}", "verdict")]


@pytest.mark.parametrize("name", ["index.html", "net", "worst.npz", "junit.xml"])
def test_a_model_of_another_name_is_named_without_a_key_and_fails_with_one(
    signed: Path, name: str
) -> None:
    put(signed / "stray" / name, ONNX)
    found = [c.found for c in verify_results(signed).run if c.of == f"stray/{name}"]
    assert found == [CheckOutcome.UNCHECKED]
    assert f"stray/{name}" in [c.of for c in failed(signed)]


def test_files_that_no_record_names_are_counted_without_a_key(signed: Path) -> None:
    put(signed / "stray" / "data.bin", bytes(100))
    put(signed / "stray" / "report.html", b"<p>plain</p>")
    (line,) = [c for c in verify_results(signed).run if c.of == "other files"]
    assert line.found is CheckOutcome.UNCHECKED
    assert "data.bin" in line.detail
    assert "report.html" not in line.detail
