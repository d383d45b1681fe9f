"""Write and check models of MLflow: a folder with `MLmodel` and the ONNX flavour."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from .. import __version__
from ..core.errors import first_line
from .describe_models import DescribeRequest
from .repository_reader import CheckedVersion, RepositoryReader
from .repository_records import FaultCode, ModelInterface, ServedModel, ServedTensor
from .version_folders import PlannedFile, list_versions

MODEL_FILE = "MLmodel"
TARGETS = ("onnx",)  # a pytorch flavour is read by `torch.load`, which refuses TorchScript archives
_DATA = "model.onnx"
_RUNTIME = "onnxruntime"
_PROVIDER = "CPUExecutionProvider"
_PACKAGES = ("onnx", _RUNTIME)  # what the flavour imports


def describe_signature(tensors: Sequence[ServedTensor]) -> str:
    """Return inputs or outputs as MLflow's tensor signature: JSON text, -1 for any size."""
    return json.dumps(
        [
            {
                "type": "tensor",
                "tensor-spec": {"dtype": one.dtype, "shape": list(one.dims)},
                "name": one.name,
            }
            for one in tensors
        ]
    )


def _requirements(model: ServedModel) -> tuple[str, ...]:
    """Return the packages with the versions of the record, else those installed here."""
    from importlib import metadata

    found = dict(model.record.versions)
    for name in _PACKAGES:
        for distribution in (name, f"{name}-gpu"):
            version = found.get(distribution)
            if version is None:
                try:
                    version = metadata.version(distribution)
                except metadata.PackageNotFoundError:
                    continue
            found.setdefault(name, version)
            break
    return (*(f"{name}=={found[name]}" for name in _PACKAGES if name in found), "numpy")


def plan_mlflow_files(model: ServedModel) -> Iterator[PlannedFile]:
    """Yield the files of one model: the ONNX, `MLmodel`, and its environment."""
    for file in model.files:
        name = _DATA if file is model.files[0] else Path(file.name).name
        yield PlannedFile(name=name, source=model.folder / file.name, record=file)
    python, needs = platform.python_version(), _requirements(model)
    lines = "".join(f"{one}\n" for one in needs)
    yield PlannedFile(name="requirements.txt", content=f"mlflow\n{lines}".encode())
    yield PlannedFile(name="conda.yaml", content=_to_yaml(_conda(python, needs)).encode())
    environment = {
        "python": python,
        "build_dependencies": ["pip", "setuptools", "wheel"],
        "dependencies": ["-r requirements.txt"],
    }
    yield PlannedFile(name="python_env.yaml", content=_to_yaml(environment).encode())
    yield PlannedFile(name=MODEL_FILE, content=_to_yaml(_make_document(model, python)).encode())


def _conda(python: str, needs: Sequence[str]) -> dict[str, Any]:
    return {
        "name": "mlflow-env",
        "channels": ["conda-forge"],
        "dependencies": [f"python={python}", "pip", {"pip": ["mlflow", *needs]}],
    }


def _make_document(model: ServedModel, python: str) -> dict[str, Any]:
    record = model.record
    onnx = record.versions.get("onnx", "")
    return {
        "artifact_path": model.name,
        "flavors": {
            "onnx": {
                "code": None,
                "data": _DATA,
                "onnx_version": onnx,
                "providers": [record.settings.get("provider", _PROVIDER)],
            },
            "python_function": {
                "data": _DATA,
                "env": {"conda": "conda.yaml", "virtualenv": "python_env.yaml"},
                "loader_module": "mlflow.onnx",
                "python_version": python,
            },
        },
        "model_uuid": uuid4().hex,
        "utc_time_created": datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S.%f"),
        "metadata": {
            "modelc": __version__,
            "artifact": record.artifact,
            "checkpoint": record.checkpoint,
            "domain": record.domain,
            "verdict": "" if record.verdict is None else record.verdict.state,
        },
        "signature": {
            "inputs": describe_signature(record.interface.inputs),
            "outputs": describe_signature(record.interface.outputs),
            "params": None,
        },
    }


def _to_yaml(value: Mapping[str, Any], indent: int = 0) -> str:
    """Write plain values as YAML: scalars as JSON, which is YAML too."""
    return "".join(_yaml_lines(value, indent))


def _yaml_lines(value: Any, indent: int) -> Iterator[str]:
    pad = "  " * indent
    pairs = value.items() if isinstance(value, Mapping) else (("-", one) for one in value)
    for key, one in pairs:
        head = f"{pad}-" if key == "-" else f"{pad}{key}:"
        if isinstance(one, Mapping) and key == "-":
            lines = [*_yaml_lines(one, indent + 1)]
            yield f"{pad}- {lines[0].lstrip()}"
            yield from lines[1:]
        elif isinstance(one, Mapping | list | tuple) and one:
            yield f"{head}\n"
            yield from _yaml_lines(one, indent + 1)
        else:
            yield f"{head} {json.dumps(one)}\n"


def check_mlflow(reader: RepositoryReader) -> tuple[str, ...]:
    """Check the models of a folder; return their names."""
    found: list[CheckedVersion] = []
    documents: dict[tuple[str, str], dict[str, Any] | None] = {}
    names = []
    for folder in reader.list_models():
        places = {str(number): folder / str(number) for number in list_versions(folder)}
        if (folder / MODEL_FILE).exists():
            places[""] = folder
        if not places:
            continue
        names.append(folder.name)
        for number, place in places.items():
            at = (folder.name, number)
            documents[at] = _read_document(reader, place, at)
            found += _versions(reader, place, at, _data_of(documents[at]))
    for one, interface in reader.describe(found):
        document = documents[(one.model, one.version)]
        if document is not None:
            _check_signature(reader, one, document, interface)
    return tuple(names)


def _versions(
    reader: RepositoryReader, place: Path, at: tuple[str, str], data: str
) -> Iterator[CheckedVersion]:
    """Yield the version with this model file if that is there, and is the recorded one."""
    before = len(reader.faults)
    record = reader.load_record(place)
    path = reader.find_file(place, data, at)
    if path is None or len(reader.faults) > before or not reader.is_recorded(place, path, record):
        return
    request = DescribeRequest(path=path, target="onnx")
    yield CheckedVersion(model=at[0], version=at[1], request=request, record=record)


def _data_of(document: dict[str, Any] | None) -> str:
    flavour = ((document or {}).get("flavors") or {}).get("onnx") or {}
    return str(flavour.get("data") or _DATA)


def _read_document(
    reader: RepositoryReader, place: Path, at: tuple[str, str]
) -> dict[str, Any] | None:
    """Return the content of `MLmodel`, if PyYAML is installed and can read it."""
    raw = reader.read_text(place, MODEL_FILE, at)
    if raw is None:
        return None
    try:
        import yaml
    except ImportError:
        reader.unchecked.append(f"{at[0]}: {MODEL_FILE} needs PyYAML to be read")
        return None
    try:
        found = yaml.safe_load(raw.decode())
        _data_of(found)
    except (yaml.YAMLError, ValueError, RecursionError, AttributeError) as error:
        message = f"{MODEL_FILE} cannot be read: {first_line(error)}"
        reader.add(FaultCode.CONFIG, at, message, "correct it, or pack it again", MODEL_FILE)
        return None
    return found if isinstance(found, dict) else None


def _check_signature(
    reader: RepositoryReader, one: CheckedVersion, document: Mapping[str, Any], file: ModelInterface
) -> None:
    """Compare the signature with the model file."""
    at = (one.model, one.version)
    signature = document.get("signature") or {}
    for noun, own in (("inputs", file.inputs), ("outputs", file.outputs)):
        try:
            listed = json.loads(signature.get(noun) or "[]")
            declared = {
                str(item["name"]): (
                    str(item["tensor-spec"]["dtype"]),
                    tuple(map(int, item["tensor-spec"]["shape"])),
                )
                for item in listed
            }
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            message = f"the {noun} of its signature are not tensors"
            reader.add(FaultCode.CONFIG, at, message, "pack the model again", MODEL_FILE)
            continue
        known = {tensor.name: tensor for tensor in own}
        for name, (dtype, shape) in declared.items():
            tensor = known.get(name)
            if tensor is None:
                hint = f"its {noun} are {', '.join(known)}"
                reader.add(
                    FaultCode.TENSOR_NAME, at, f"the file has no {name[:80]!r}", hint, name[:80]
                )
            elif tensor.dtype not in ("", dtype):
                message = f"{name} is {dtype[:80]}, in the file {tensor.dtype}"
                reader.add(FaultCode.TENSOR_DTYPE, at, message, f"write {tensor.dtype}", name)
            elif len(shape) != len(tensor.dims) or any(
                b not in (-1, a) for a, b in zip(shape, tensor.dims, strict=True)
            ):
                message = f"{name} has the dims {list(shape)}, in the file {list(tensor.dims)}"
                reader.add(FaultCode.TENSOR_DIMS, at, message, "write those of the file", name)
        for name in known.keys() - declared.keys() if declared else ():
            message = f"the signature lacks {name}"
            reader.add(FaultCode.TENSOR_NAME, at, message, "add it", name)
