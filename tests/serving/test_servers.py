"""Repositories of OpenVINO Model Server, KServe and MLflow."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from modelc.core.errors import ErrorCode, UsageError
from modelc.serving.ensembles import EnsembleSpec, EnsembleStep
from modelc.serving.pack_models import check_repository
from modelc.serving.repository_kinds import KSERVE, MLFLOW, OVMS, RepositoryKind, kind_of
from modelc.serving.repository_records import FaultCode, PackReport, ServingOptions

from ..reasons import has_code

Pack = Callable[..., PackReport]
# The server's schema of models and pipelines, in short.
SERVER_SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["model_config_list"],
    "properties": {
        "model_config_list": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["config"],
                "properties": {
                    "config": {
                        "type": "object",
                        "additionalProperties": False,
                        "required": ["name"],
                        "properties": {
                            "name": {"type": "string"},
                            "base_path": {"type": "string"},
                            "nireq": {"type": "integer", "minimum": 0},
                            "target_device": {"type": "string"},
                            "plugin_config": {
                                "type": "object",
                                "additionalProperties": {"type": ["string", "boolean", "number"]},
                            },
                            "model_version_policy": {
                                "type": "object",
                                "maxProperties": 1,
                                "properties": {
                                    "latest": {
                                        "type": "object",
                                        "required": ["num_versions"],
                                        "properties": {
                                            "num_versions": {"type": "integer", "minimum": 1}
                                        },
                                    }
                                },
                            },
                        },
                    }
                },
            },
        },
        "pipeline_config_list": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["name", "nodes", "inputs", "outputs"],
                "properties": {
                    "name": {"type": "string"},
                    "inputs": {"type": "array", "items": {"type": "string"}},
                    "outputs": {
                        "type": "array",
                        "items": {"type": "object", "minProperties": 1, "maxProperties": 1},
                    },
                    "nodes": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "additionalProperties": False,
                            "required": ["name", "model_name", "type", "inputs", "outputs"],
                            "properties": {
                                "name": {"type": "string"},
                                "model_name": {"type": "string"},
                                "type": {"enum": ["DL model"]},
                                "inputs": {"type": "array"},
                                "outputs": {"type": "array"},
                            },
                        },
                    },
                },
            },
        },
    },
}


@pytest.fixture
def server(detector: Path, pack: Pack, tmp_path: Path) -> Path:
    """A repository of OpenVINO Model Server, with an ensemble."""
    step = EnsembleStep(
        model="detector",
        inputs={"inputs.image": "picture", "inputs.meta": "numbers"},
        outputs={_first_output(detector): "scores"},
    )
    ensemble = EnsembleSpec(name="look", steps=(step,))
    repository = tmp_path / "repository"
    pack(detector, repository, kind=OVMS, only=("openvino",), ensembles=(ensemble,))
    return repository


def _first_output(folder: Path) -> str:
    found: str = json.loads((folder / "manifest.json").read_text())["signature"]["outputs"][0]
    return found


def test_the_server_config_is_of_its_schema(server: Path) -> None:
    config = json.loads((server / "config.json").read_text())
    Draft202012Validator(SERVER_SCHEMA).validate(config)
    assert {path.name for path in (server / "detector" / "1").iterdir()} == {
        "model.xml", "model.bin", "modelc.json",
    }  # fmt: skip
    assert check_repository(server).faults == ()


def test_the_server_computes_as_the_judge_did(server: Path) -> None:
    (entry,) = json.loads((server / "config.json").read_text())["model_config_list"]
    assert entry["config"]["plugin_config"]["INFERENCE_PRECISION_HINT"] == "f32"


def test_an_ensemble_is_a_pipeline(server: Path, detector: Path) -> None:
    (pipeline,) = json.loads((server / "config.json").read_text())["pipeline_config_list"]
    (node,) = pipeline["nodes"]
    assert {"inputs.image": {"node_name": "request", "data_item": "picture"}} in node["inputs"]
    assert node["outputs"] == [{"data_item": _first_output(detector), "alias": "scores"}]
    assert pipeline["outputs"] == [{"scores": {"node_name": "step0", "data_item": "scores"}}]


def test_entries_of_others_stay(server: Path, exported_digits: Path, pack: Pack) -> None:
    path = server / "config.json"
    config = json.loads(path.read_text())
    config["model_config_list"].append({"config": {"name": "theirs", "base_path": "/theirs"}})
    config["mediapipe_config_list"] = [{"name": "graph"}]
    path.write_text(json.dumps(config))
    pack(exported_digits, server, kind=OVMS, name="digits", only=("onnx",))
    after = json.loads(path.read_text())
    names = [one["config"]["name"] for one in after["model_config_list"]]
    assert names == ["detector", "theirs", "digits"]
    assert after["mediapipe_config_list"] == [{"name": "graph"}]


def _edit(repository: Path, change: Callable[[Any], object]) -> None:
    path = repository / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))


def _node(config: Any) -> Any:
    return config["pipeline_config_list"][0]["nodes"][0]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda c: c["model_config_list"][0]["config"].update(nirq=3), FaultCode.UNKNOWN_FIELD),
        (lambda c: c["model_config_list"][0]["config"].pop("name"), FaultCode.CONFIG),
        (lambda c: c["model_config_list"].append(c["model_config_list"][0]), FaultCode.NAME),
        (
            lambda c: c["model_config_list"][0]["config"].update(base_path="/other"),
            FaultCode.MISSING_FILE,
        ),
        (
            lambda c: c["model_config_list"][0]["config"].update(shape={"image": "(1,3)"}),
            FaultCode.TENSOR_NAME,
        ),
        (
            lambda c: c["model_config_list"][0]["config"].update(
                shape={"inputs.image": "(1,3,32)"}
            ),
            FaultCode.TENSOR_DIMS,
        ),
        (lambda c: _node(c).update(model_name="x"), FaultCode.ENSEMBLE),
        (lambda c: _node(c).pop("inputs"), FaultCode.ENSEMBLE),
        (lambda c: _node(c)["inputs"].pop(), FaultCode.ENSEMBLE),
        (lambda c: _node(c)["outputs"][0].update(data_item="x"), FaultCode.ENSEMBLE),
        (
            lambda c: _node(c)["inputs"][0]["inputs.image"].update(node_name="step7"),
            FaultCode.ENSEMBLE,
        ),
    ],
)
def test_a_fault_of_the_server_config_is_found(
    server: Path, change: Callable[[Any], object], code: FaultCode
) -> None:
    _edit(server, change)
    assert code in {fault.code for fault in check_repository(server).faults}


@pytest.mark.parametrize("kind", [OVMS, MLFLOW], ids=lambda kind: kind.name)
def test_a_model_of_another_interface_needs_another_name(
    detector: Path, exported_digits: Path, pack: Pack, tmp_path: Path, kind: RepositoryKind
) -> None:
    pack(detector, tmp_path / "repository", kind=kind, only=("onnx",))
    with pytest.raises(UsageError, check=has_code(ErrorCode.FOLDER_OCCUPIED, option="name")):
        pack(exported_digits, tmp_path / "repository", kind=kind, name="detector", only=("onnx",))
    again = pack(detector, tmp_path / "repository", kind=kind, only=("onnx",))
    assert [one.is_new for one in again.models] == [False]


@pytest.mark.parametrize("raw", [b"[" * 1_000_000, b"\xff\x00", b"[]", b'{"model_config_list": 3}'])
def test_a_hostile_server_config_is_a_fault(server: Path, raw: bytes) -> None:
    (server / "config.json").write_bytes(raw)
    found = check_repository(server)
    assert {fault.code for fault in found.faults} == {FaultCode.CONFIG}


def test_weights_of_another_model_are_found(server: Path) -> None:
    weights = server / "detector" / "1" / "model.bin"
    weights.write_bytes(weights.read_bytes()[::-1])
    (fault,) = check_repository(server).faults
    assert (fault.code, fault.place) == (FaultCode.OTHER_FILE, "model.bin")


def test_kserve_has_the_place_of_the_repository(detector: Path, pack: Pack, tmp_path: Path) -> None:
    options = ServingOptions(storage_uri="s3://bucket/models")
    repository = tmp_path / "My_Models"
    pack(detector, repository, kind=KSERVE, options=options)
    service = yaml.safe_load((repository / "inferenceservice.yaml").read_text())
    assert service["metadata"]["name"] == "my-models"
    model = service["spec"]["predictor"]["model"]
    assert (model["storageUri"], model["runtime"]) == ("s3://bucket/models", "kserve-tritonserver")
    assert (model["protocolVersion"], model["modelFormat"]) == ("v2", {"name": "triton"})
    assert check_repository(repository).kind == "kserve"
    assert check_repository(repository).faults == ()


def test_kserve_without_a_place_is_refused(detector: Path, pack: Pack, tmp_path: Path) -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.INVALID_VALUE, option="storage-uri")):
        pack(detector, tmp_path / "repository", kind=KSERVE)
    assert not (tmp_path / "repository").exists()


@pytest.fixture
def mlflow_models(detector: Path, pack: Pack, tmp_path: Path) -> Path:
    repository = tmp_path / "repository"
    pack(detector, repository, kind=MLFLOW)
    return repository


def test_mlflow_has_a_signature_of_tensors(mlflow_models: Path) -> None:
    place = mlflow_models / "detector" / "1"
    document = yaml.safe_load((place / "MLmodel").read_text())
    inputs = json.loads(document["signature"]["inputs"])
    assert inputs[0] == {
        "type": "tensor",
        "tensor-spec": {"dtype": "float32", "shape": [-1, 3, 32, 32]},
        "name": "inputs.image",
    }
    assert document["flavors"]["onnx"]["data"] == "model.onnx"
    needs = (place / "requirements.txt").read_text().split()
    assert f"onnx=={document['flavors']['onnx']['onnx_version']}" in needs
    assert yaml.safe_load((place / "conda.yaml").read_text())["dependencies"][2]["pip"] == needs
    assert kind_of(mlflow_models) is MLFLOW
    assert check_repository(mlflow_models).faults == ()


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("[-1, 3, 32, 32]", "[-1, 3, 64, 64]", FaultCode.TENSOR_DIMS),
        ("float32", "float64", FaultCode.TENSOR_DTYPE),
        ("inputs.image", "image", FaultCode.TENSOR_NAME),
        ('inputs: "[', 'inputs: "[[', FaultCode.CONFIG),
        ("signature:", "signature: [", FaultCode.CONFIG),
    ],
)
def test_a_fault_of_a_signature_is_found(
    mlflow_models: Path, old: str, new: str, code: FaultCode
) -> None:
    path = mlflow_models / "detector" / "1" / "MLmodel"
    path.write_text(path.read_text().replace(old, new))
    assert code in {fault.code for fault in check_repository(mlflow_models).faults}
