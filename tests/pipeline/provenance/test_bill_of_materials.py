"""A bill of materials follows the official schema and names every artifact by its digest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from modelc.core.errors import ErrorCode, UsageError
from modelc.core.manifest import Manifest
from modelc.pipeline.manifest_file import read_manifest
from modelc.pipeline.provenance.bill_of_materials import make_bill, write_bill

from ...reasons import has_code


@pytest.fixture(scope="module")
def manifest(int8_digits: Path) -> Manifest:
    found = read_manifest(int8_digits)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def text(int8_digits: Path) -> bytes:
    return make_bill(int8_digits)


@pytest.fixture
def document(text: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)
    return found


def faults(document: dict[str, Any]) -> object:
    return JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(document))


def test_a_bill_is_valid_cyclonedx(document: dict[str, Any]) -> None:
    assert faults(document) is None
    assert document["specVersion"] == "1.6"


def test_the_schema_rejects_an_invalid_card(document: dict[str, Any]) -> None:
    card = next(one["modelCard"] for one in document["components"] if "modelCard" in one)
    card["modelParameters"]["precision"] = "int8"
    assert faults(document) is not None


def test_every_artifact_is_a_model_with_its_digest_and_card(
    document: dict[str, Any], manifest: Manifest
) -> None:
    models = {c["bom-ref"]: c for c in document["components"]}
    assert manifest.artifacts
    for artifact in manifest.artifacts:
        model = models[f"artifact:{artifact.name}"]
        assert model["type"] == "machine-learning-model"
        assert model["hashes"] == [{"alg": "SHA-256", "content": artifact.digest}]
        measures = model["modelCard"]["quantitativeAnalysis"]["performanceMetrics"]
        assert {"verdict", "max_abs"} <= {one["type"] for one in measures}
        assert [one["value"] for one in model["modelCard"]["properties"]] == [artifact.precision]
        digests = {file["hashes"][0]["content"] for file in model.get("components", ())}
        assert digests == {file.sha256 for file in artifact.files[1:]}


def test_the_checkpoint_is_the_ancestor_of_all(
    document: dict[str, Any], manifest: Manifest
) -> None:
    cards = [one for one in document["components"] if "modelCard" in one]
    ancestors = [one["pedigree"]["ancestors"][0] for one in cards]
    digests = {one["hashes"][0]["content"] for one in ancestors}
    assert digests == {manifest.checkpoint.digest}


def test_packages_are_named_by_purl(document: dict[str, Any], manifest: Manifest) -> None:
    purls = {one["purl"] for one in document["components"] if "purl" in one}
    version = manifest.environment["torch"].replace("+", "%2B")
    assert f"pkg:pypi/torch@{version}" in purls
    tools = document["metadata"]["tools"]["components"]
    assert [one["purl"] for one in tools] == [f"pkg:pypi/modelc-toolchain@{manifest.modelc}"]


def test_the_same_folder_gives_the_same_bill(int8_digits: Path, text: bytes) -> None:
    assert make_bill(int8_digits) == text


def test_a_folder_with_a_changed_file_is_an_error(digits_copy: Path) -> None:
    with (digits_copy / "model.onnx").open("ab") as stream:
        stream.write(b"\0")
    with pytest.raises(UsageError, check=has_code(ErrorCode.FILE_CHANGED, naming="model.onnx")):
        make_bill(digits_copy)


def test_a_bill_replaces_only_a_bill(text: bytes, tmp_path: Path) -> None:
    path = tmp_path / "sbom.json"
    write_bill(text, path)
    write_bill(text, path)
    assert path.read_bytes() == text
    path.write_text("[]")
    with pytest.raises(UsageError, check=has_code(ErrorCode.FILE_EXISTS)):
        write_bill(text, path)
