"""`run.json` is there whole, is of the last run, or is not there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from modelc.core.errors import ErrorCode, UsageError
from modelc.pipeline.manifest_file import encode_json
from modelc.projects.ci_documents import clear_documents
from modelc.projects.project_records import ModelOutcome
from modelc.projects.run_record import RUN_FILE, RunRecord, clear_record, make_record, write_record

from ..reasons import has_code


def test_a_place_that_cannot_be_written_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file of somebody's")
    record = make_record((), seconds=0.0)
    with pytest.raises(
        UsageError, check=has_code(ErrorCode.NOT_WRITABLE, naming="out: File exists")
    ):
        write_record(record, tmp_path / "out")
    for clear in (clear_record, clear_documents):
        with pytest.raises(
            UsageError, check=has_code(ErrorCode.NOT_WRITABLE, naming="out: Not a directory")
        ):
            clear(tmp_path / "out")


def test_a_step_without_an_artifact_was_not_made(records: ModuleType) -> None:
    steps = ("onnx", "openvino", "torchscript", "pt2", "tensorrt-fp16")
    manifest = replace(records.full(), steps=steps)
    ended = ModelOutcome(name="net", folder="out/net", manifest=manifest)
    (model,) = make_record((ended,), seconds=1.0).models
    sources = {one.name: one.source for one in model.artifacts}
    assert [name for name in steps if sources[name] == "made"] == [
        "onnx",
        "openvino",
        "torchscript",
    ]
    assert [name for name in steps if sources[name] == ""] == ["pt2", "tensorrt-fp16"]


def test_each_artifact_has_its_warnings_on_record(records: ModuleType) -> None:
    manifest = replace(records.full(), steps=("onnx-int8", "openvino"))
    ended = ModelOutcome(name="net", folder="out/net", manifest=manifest)
    (model,) = make_record((ended,), seconds=1.0).models
    int8, openvino = (one.notes for one in model.artifacts)
    calibration, *others = int8
    (artifact,) = [one for one in manifest.artifacts if one.name == "onnx-int8"]
    assert artifact.calibration is not None
    assert calibration.endswith(artifact.calibration.findings)
    assert others == [*artifact.notes]
    verdict = manifest.verdict_of("rejected/openvino")
    assert verdict is not None
    assert set(verdict.notes) <= set(openvino)


def test_a_record_of_before_there_were_warnings_is_read(records: ModuleType) -> None:
    manifest = replace(records.full(), steps=("onnx-int8",))
    record = make_record((ModelOutcome(name="net", folder="o", manifest=manifest),), seconds=1.0)
    document = msgspec.json.decode(encode_json(record))
    for one in (document["models"][0], *document["models"][0]["artifacts"]):
        del one["notes"]
    again = msgspec.json.decode(msgspec.json.encode(document), type=RunRecord)
    assert again.models[0].artifacts[0].notes == ()


def test_the_record_of_an_earlier_run_goes_and_none_is_needed(tmp_path: Path) -> None:
    write_record(make_record((), seconds=0.0), tmp_path)
    clear_record(tmp_path)
    clear_record(tmp_path)
    assert not (tmp_path / RUN_FILE).exists()
