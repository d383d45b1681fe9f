"""`manifest.json` is written atomically and checked when it is read."""

from __future__ import annotations

import json
from collections.abc import Callable
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


def test_a_written_manifest_is_read_back(exported_digits: Path, tmp_path: Path) -> None:
    assert read_manifest(tmp_path) is None
    manifest = read_manifest(exported_digits)
    assert manifest is not None
    write_manifest(manifest, tmp_path)
    assert read_manifest(tmp_path) == manifest
    assert (tmp_path / MANIFEST_FILE).read_bytes() == (exported_digits / MANIFEST_FILE).read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == [MANIFEST_FILE]


def test_a_manifest_follows_the_schema(document: dict[str, Any]) -> None:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    validator.validate(document)
    lacking = {key: value for key, value in document.items() if key != "checkpoint"}
    (missing,) = validator.iter_errors(lacking)
    assert missing.validator == "required"
    wrong = json.loads(json.dumps(document))
    wrong["verdicts"][0]["state"] = "fine"
    assert list(validator.iter_errors(wrong))


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
def test_invalid_content_is_a_usage_error_with_a_hint(content: bytes, tmp_path: Path) -> None:
    (tmp_path / MANIFEST_FILE).write_bytes(content)
    with pytest.raises(UsageError, check=has_code(ErrorCode.INVALID_MANIFEST)) as caught:
        read_manifest(tmp_path)
    assert caught.value.hint


def test_json_ends_with_a_newline_and_is_indented() -> None:
    assert encode_json({"a": [1]}) == b'{\n "a": [\n  1\n ]\n}\n'


@pytest.mark.parametrize("name", ["../model.onnx", "/etc/model.onnx", "a/../../model.onnx"])
def test_a_file_outside_of_the_folder_is_an_error(
    exported_digits: Path, tmp_path: Path, name: str
) -> None:
    text = (exported_digits / MANIFEST_FILE).read_text().replace('"model.onnx"', f'"{name}"')
    (tmp_path / MANIFEST_FILE).write_text(text)
    with pytest.raises(UsageError, check=has_code(ErrorCode.UNSAFE_PATH)):
        read_manifest(tmp_path)


@pytest.mark.parametrize("name", ["model\0.onnx", "n" * 300, "ä" * 150 + "/model.onnx"])
def test_an_invalid_file_name_is_an_error(
    document: dict[str, Any], tmp_path: Path, name: str
) -> None:
    wrong = json.loads(json.dumps(document))
    wrong["artifacts"][0]["files"][0]["name"] = name
    (tmp_path / MANIFEST_FILE).write_text(json.dumps(wrong))
    with pytest.raises(UsageError, check=has_code(ErrorCode.UNSAFE_PATH)):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("edit", "code"),
    [
        (lambda d: d.update(verdicts="fine"), ErrorCode.INVALID_MANIFEST),
        (lambda d: d["artifacts"][0].update(files=[]), ErrorCode.INVALID_MANIFEST),
        (lambda d: d["artifacts"][0].update(name="../../theirs"), ErrorCode.UNSAFE_PATH),
        (lambda d: d["verdicts"][0].update(artifact="../../theirs"), ErrorCode.UNSAFE_PATH),
        (lambda d: d["verdicts"][0]["worst"].update(file="/etc/a.npz"), ErrorCode.UNSAFE_PATH),
    ],
)
def test_an_invalid_record_is_an_error(
    document: dict[str, Any], tmp_path: Path, edit: Callable[[dict[str, Any]], object],
    code: ErrorCode,
) -> None:  # fmt: skip
    wrong = json.loads(json.dumps(document))
    edit(wrong)
    (tmp_path / MANIFEST_FILE).write_text(json.dumps(wrong))
    with pytest.raises(UsageError, check=has_code(code)):
        read_manifest(tmp_path)
