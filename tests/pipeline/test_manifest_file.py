"""manifest.json: written whole, read with its schema checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from modelc.core.errors import ErrorCode, UsageError
from modelc.pipeline.manifest_file import (
    MANIFEST_FILE,
    encode_json,
    json_schema,
    read_manifest,
    write_manifest,
)

from ..reasons import has_code


@pytest.fixture(scope="module")
def document(exported_digits: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((exported_digits / MANIFEST_FILE).read_text())
    return found


def test_what_is_written_is_read_back_the_same(exported_digits: Path, tmp_path: Path) -> None:
    manifest = read_manifest(exported_digits)
    assert manifest is not None
    write_manifest(manifest, tmp_path)
    assert read_manifest(tmp_path) == manifest
    assert (tmp_path / MANIFEST_FILE).read_bytes() == (exported_digits / MANIFEST_FILE).read_bytes()


def test_writing_leaves_no_draft(exported_digits: Path, tmp_path: Path) -> None:
    manifest = read_manifest(exported_digits)
    assert manifest is not None
    write_manifest(manifest, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [MANIFEST_FILE]


def test_no_manifest_is_none(tmp_path: Path) -> None:
    assert read_manifest(tmp_path) is None


def test_a_real_manifest_holds_to_the_schema(document: dict[str, Any]) -> None:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(document)


def test_the_schema_refuses_a_manifest_with_a_part_missing(document: dict[str, Any]) -> None:
    lacking = {key: value for key, value in document.items() if key != "checkpoint"}
    with pytest.raises(jsonschema.ValidationError, match="'checkpoint' is a required property"):
        jsonschema.Draft202012Validator(json_schema()).validate(lacking)


def test_the_schema_refuses_an_unknown_state(document: dict[str, Any]) -> None:
    wrong = json.loads(json.dumps(document))
    wrong["verdicts"][0]["state"] = "fine"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(json_schema()).validate(wrong)


@pytest.mark.parametrize("version", [0, 1, 3, "2", None])
def test_another_schema_version_is_a_usage_error(
    document: dict[str, Any], version: object, tmp_path: Path
) -> None:
    (tmp_path / MANIFEST_FILE).write_text(json.dumps({**document, "schema_version": version}))
    with pytest.raises(UsageError, check=has_code(ErrorCode.INVALID_MANIFEST)):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"schema_version": 2}', b"text"]
)
def test_garbage_is_a_usage_error_with_a_hint(content: bytes, tmp_path: Path) -> None:
    (tmp_path / MANIFEST_FILE).write_bytes(content)
    with pytest.raises(UsageError, check=has_code(ErrorCode.INVALID_MANIFEST)) as caught:
        read_manifest(tmp_path)
    assert caught.value.hint


def test_a_verdict_of_another_type_is_a_usage_error(
    document: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / MANIFEST_FILE).write_text(json.dumps({**document, "verdicts": "fine"}))
    with pytest.raises(UsageError, check=has_code(ErrorCode.INVALID_MANIFEST)):
        read_manifest(tmp_path)


def test_json_ends_with_a_newline_and_is_indented() -> None:
    assert encode_json({"a": [1]}) == b'{\n "a": [\n  1\n ]\n}\n'


@pytest.mark.parametrize("name", ["../model.onnx", "/etc/model.onnx", "a/../../model.onnx"])
def test_a_manifest_that_names_a_file_outside_its_folder_is_refused(
    exported_digits: Path, tmp_path: Path, name: str
) -> None:
    text = (exported_digits / MANIFEST_FILE).read_text().replace('"model.onnx"', f'"{name}"')
    (tmp_path / MANIFEST_FILE).write_text(text)
    with pytest.raises(UsageError, check=has_code(ErrorCode.UNSAFE_PATH)):
        read_manifest(tmp_path)


@pytest.mark.parametrize("name", ["model\0.onnx", "n" * 300, "ä" * 150 + "/model.onnx"])
def test_a_name_that_no_file_can_have_is_refused(
    document: dict[str, Any], tmp_path: Path, name: str
) -> None:
    wrong = json.loads(json.dumps(document))
    wrong["artifacts"][0]["files"][0]["name"] = name
    (tmp_path / MANIFEST_FILE).write_text(json.dumps(wrong))
    with pytest.raises(UsageError, check=has_code(ErrorCode.UNSAFE_PATH)):
        read_manifest(tmp_path)


def test_an_artifact_of_no_file_is_refused(document: dict[str, Any], tmp_path: Path) -> None:
    wrong = json.loads(json.dumps(document))
    wrong["artifacts"][0]["files"] = []
    (tmp_path / MANIFEST_FILE).write_text(json.dumps(wrong))
    with pytest.raises(UsageError, check=has_code(ErrorCode.INVALID_MANIFEST)):
        read_manifest(tmp_path)


@pytest.mark.parametrize("part", ["artifact", "verdict", "worst"])
def test_a_manifest_whose_names_lead_out_of_its_folder_is_refused(
    document: dict[str, Any], tmp_path: Path, part: str
) -> None:
    wrong = json.loads(json.dumps(document))
    if part == "artifact":
        wrong["artifacts"][0]["name"] = "../../theirs"
    elif part == "verdict":
        wrong["verdicts"][0]["artifact"] = "../../theirs"
    else:
        wrong["verdicts"][0]["worst"]["file"] = "/etc/theirs.npz"
    (tmp_path / MANIFEST_FILE).write_text(json.dumps(wrong))
    with pytest.raises(UsageError, check=has_code(ErrorCode.UNSAFE_PATH)):
        read_manifest(tmp_path)
