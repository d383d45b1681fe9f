"""Metadata of model files: read without the framework; a hostile file is rejected."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from modelc.converters import archive_records, onnx_files, openvino_reader, tensorrt_engine
from modelc.converters.registry import TARGETS, target_named
from modelc.converters.trt.engine_records import EngineSidecar, write_sidecar
from modelc.core.contract import RECORD
from modelc.core.errors import ErrorCode, RunnerError
from modelc.core.records import record_of
from modelc.core.target_extensions import Carrying
from modelc.pipeline.manifest_file import read_manifest

from ..reasons import has_code

NAMES = [target.NAME for target in TARGETS]


@pytest.mark.parametrize("name", NAMES)
def test_every_target_embeds_metadata(name: str) -> None:
    assert isinstance(target_named(name), Carrying)


def test_metadata_agrees_with_inspect(exported_digits: Path) -> None:
    manifest = read_manifest(exported_digits)
    assert manifest is not None
    for artifact in manifest.artifacts:
        target = target_named(artifact.target)
        assert isinstance(target, Carrying)
        path = exported_digits / artifact.files[0].name
        found = {k.removeprefix("modelc."): v for k, v in target.inspect(path).metadata.items()}
        embedded = target.read_metadata(path)
        assert embedded.items() <= found.items()
        assert embedded["checkpoint"] == manifest.checkpoint.digest
        assert embedded["parent"] == artifact.parent


def test_metadata_of_an_engine_is_in_its_sidecar(tmp_path: Path) -> None:
    engine = tmp_path / "model.engine"
    engine.write_bytes(b"ftrt and what follows")
    sidecar = EngineSidecar(
        engine=record_of(engine), onnx=record_of(engine), gpu="g", capability="9.0", memory=1,
        cuda="13", tensorrt="10", builder="python", inputs=(), outputs=(), profiles=(), layers=(),
        origin={"checkpoint": "abc"},
    )  # fmt: skip
    write_sidecar(sidecar, engine)
    assert tensorrt_engine.read_metadata(engine) == {"checkpoint": "abc"}
    engine.write_bytes(b"ftrt and something else")
    with pytest.raises(RunnerError, check=has_code(ErrorCode.FILE_CHANGED, naming=engine.name)):
        tensorrt_engine.read_metadata(engine)


IR = (
    "<net><layers/><rt_info><other><checkpoint value='x'/></other>"
    "<modelc>{}</modelc></rt_info></net>"
)


def test_metadata_of_an_ir_is_read_from_its_place_only(tmp_path: Path) -> None:
    path = tmp_path / "model.xml"
    path.write_text(IR.format('<checkpoint value="abc"/>'))
    assert openvino_reader.read_ir_metadata(path) == {"checkpoint": "abc"}
    path.write_text("<net><modelc><checkpoint value='abc'/></modelc></net>")
    assert openvino_reader.read_ir_metadata(path) == {}


@pytest.mark.parametrize(
    "text",
    [
        '<!DOCTYPE net [<!ENTITY a "aaaa">]><net>&a;</net>',
        '<!DOCTYPE net SYSTEM "file:///etc/passwd"><net/>',
        IR.format('<checkpoint value="a"/><checkpoint value="b"/>'),
        "<net><rt_info>",
        "no xml",
        "",
    ],
)
def test_a_malformed_ir_is_rejected(tmp_path: Path, text: str) -> None:
    path = tmp_path / "model.xml"
    path.write_text(text)
    with pytest.raises(RunnerError, match="not an OpenVINO IR"):
        openvino_reader.read_ir_metadata(path)


def archive(path: Path, **records: str) -> Path:
    with zipfile.ZipFile(path, "w") as made:
        for root, text in records.items():
            made.writestr(f"{root}/extra/{RECORD}", text)
    return path


def test_metadata_of_an_archive_omits_the_call(tmp_path: Path) -> None:
    record = json.dumps({"checkpoint": "abc", "call": "flat", "inputs": ["x"]})
    assert archive_records.read_torch_metadata(archive(tmp_path / "m.pt2", m=record)) == {
        "checkpoint": "abc"
    }
    assert archive_records.read_torch_metadata(archive(tmp_path / "empty.pt2")) == {}


@pytest.mark.parametrize(
    ("records", "why"),
    [
        ({"a": "{}", "b": "{}"}, "2 records"),
        ({"a": "[]"}, "no valid modelc metadata"),
        ({"a": "{"}, "m.pt2"),
        ({"a": " " * (1 << 26) + "{}"}, "1 records"),
    ],
)
def test_an_archive_without_one_valid_record_is_rejected(
    tmp_path: Path, records: dict[str, str], why: str
) -> None:
    with pytest.raises(RunnerError, match=why):
        archive_records.read_torch_metadata(archive(tmp_path / "m.pt2", **records))


def test_a_foreign_file_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(b"\xff" * 100)
    with pytest.raises(RunnerError):
        archive_records.read_torch_metadata(path)
    with pytest.raises(RunnerError):
        onnx_files.read_onnx_metadata(path)
