"""Write and check repositories of OpenVINO Model Server: `config.json` and version folders."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from ..core.errors import ErrorCode, UsageError, first_line
from .describe_models import DescribeRequest
from .ensembles import EnsembleModel, EnsembleStep, find_ensemble_faults
from .repository_reader import CheckedVersion, RepositoryReader
from .repository_records import FaultCode, ModelInterface, ServedModel, ServingOptions
from .version_folders import PlannedFile, list_versions

SERVER_CONFIG = "config.json"
TARGETS = ("openvino", "onnx")
_MODELS, _PIPELINES = "model_config_list", "pipeline_config_list"
_REQUEST = "request"  # the node of a pipeline that stands for the client
_KEYS = {  # of a model, by the server's schema of July 2026
    "name", "base_path", "batch_size", "graph_path", "subconfig", "model_version_policy", "shape",
    "layout", "nireq", "target_device", "allow_cache", "plugin_config", "custom_loader_options",
}  # fmt: skip
_FORMATS = {".xml": "openvino", ".onnx": "onnx"}
_OTHER_FORMATS = (".pdmodel", ".pb", ".tflite")


def model_entry(model: ServedModel, options: ServingOptions) -> dict[str, Any]:
    """Return the entry of a model.

    The runtime settings that it was judged with are given as `plugin_config`: by default, OpenVINO
    computes in bfloat16 on some CPUs.
    """
    settings = {key: text for key, text in model.record.settings.items() if key.isupper()}
    root = options.storage_uri.rstrip("/")
    return {
        "name": model.name,
        "base_path": f"{root}/{model.name}" if root else model.name,
        "target_device": "GPU" if options.gpu else "CPU",
        "model_version_policy": {"latest": {"num_versions": options.keep}},
        **({"nireq": options.instances} if options.instances > 1 else {}),
        **({"plugin_config": settings} if settings else {}),
    }


def plan_server_files(model: ServedModel) -> Iterator[PlannedFile]:
    """Yield the files of a version folder: an IR as `model.xml` and `model.bin`, or an ONNX."""
    for file in model.files:
        own = Path(file.name)
        plain = model.record.target == "openvino" or file is model.files[0]
        name = f"model{own.suffix}" if plain else own.name
        yield PlannedFile(name=name, source=model.folder / file.name, record=file)


def plan_server_config(
    repository: Path,
    models: Sequence[ServedModel],
    ensembles: Sequence[EnsembleModel],
    options: ServingOptions,
) -> dict[str, bytes]:
    """Return the configuration of the server; entries that are there stay as they are.

    Raises:
        UsageError: the file that is there cannot be read, or an entry has another folder.
    """
    config = _read_existing(repository / SERVER_CONFIG)
    entries = config.setdefault(_MODELS, [])
    known = {one.get("config", {}).get("name"): one["config"] for one in _entries(config)}
    for model in models:
        entry = model_entry(model, options)
        there = known.get(model.name)
        if there is None:
            entries.append({"config": entry})
        elif PurePosixPath(str(there.get("base_path"))).name != model.name:
            raise UsageError(
                f"{SERVER_CONFIG} has a model {model.name} in {there.get('base_path')!r}",
                hint="give another --name",
                code=ErrorCode.FILE_EXISTS,
            )
    pipelines = config.get(_PIPELINES, [])
    for ensemble in ensembles:
        made = pipeline_entry(ensemble)
        others = [one for one in pipelines if one.get("name") != ensemble.name]
        pipelines = [*others, made]
    if pipelines:
        config[_PIPELINES] = pipelines
    return {SERVER_CONFIG: json.dumps(config, indent=1).encode() + b"\n"}


def _read_existing(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_bytes())
        list(_entries(found))
    except (ValueError, RecursionError, AttributeError, TypeError, KeyError) as error:
        raise UsageError(
            f"{path} is not a configuration of OpenVINO Model Server: {first_line(error)}",
            hint="correct it, or give another folder with -o",
            code=ErrorCode.CORRUPT_FILE,
        ) from error
    if not isinstance(found, dict):
        raise UsageError(
            f"{path} is not a configuration of OpenVINO Model Server",
            hint="correct it, or give another folder with -o",
            code=ErrorCode.CORRUPT_FILE,
        )
    return found


def _entries(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [one for one in config.get(_MODELS, []) if isinstance(one.get("config"), dict)]


def pipeline_entry(ensemble: EnsembleModel) -> dict[str, Any]:
    """Return an ensemble as a pipeline, whose nodes name where their inputs come from."""
    makers = {
        tensor: (f"step{number}", tensor)
        for number, step in enumerate(ensemble.steps)
        for tensor in step.outputs.values()
    }

    def source(tensor: str) -> dict[str, str]:
        node, item = makers.get(tensor, (_REQUEST, tensor))
        return {"node_name": node, "data_item": item}

    return {
        "name": ensemble.name,
        "inputs": [one.name for one in ensemble.inputs],
        "nodes": [
            {
                "name": f"step{number}",
                "model_name": step.model,
                "type": "DL model",
                "inputs": [{name: source(tensor)} for name, tensor in step.inputs.items()],
                "outputs": [
                    {"data_item": name, "alias": tensor} for name, tensor in step.outputs.items()
                ],
            }
            for number, step in enumerate(ensemble.steps)
        ],
        "outputs": [{one.name: source(one.name)} for one in ensemble.outputs],
    }


def check_server(reader: RepositoryReader) -> tuple[str, ...]:
    """Check a repository of OpenVINO Model Server; return the names of its models."""
    raw = reader.read_text(reader.root, SERVER_CONFIG, ("", ""))
    config = None if raw is None else _parse(reader, raw)
    if config is None:
        return ()
    models: dict[str, dict[str, Any]] = {}
    for entry in config.get(_MODELS, []):
        found = entry.get("config") if isinstance(entry, dict) else None
        if not isinstance(found, dict) or not isinstance(found.get("name"), str):
            hint = 'write {"config": {"name": ..., "base_path": ...}}'
            reader.add(FaultCode.CONFIG, ("", ""), "an entry has no name", hint, _MODELS)
            continue
        name = found["name"]
        if name in models:
            reader.add(FaultCode.NAME, (name, ""), "its name repeats", "rename one of them")
        models[name] = found
    versions = [one for name, found in models.items() for one in _versions(reader, name, found)]
    interfaces: dict[str, ModelInterface | None] = dict.fromkeys(models)
    for one, interface in reader.describe(versions):
        _check_shape(reader, one, models[one.model], interface)
        _check_recorded(reader, one, interface)
        interfaces[one.model] = None if one.record is None else one.record.interface
    _check_pipelines(reader, config, interfaces)
    return tuple(models)


def _parse(reader: RepositoryReader, raw: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError) as error:
        message = f"{SERVER_CONFIG} is not JSON: {first_line(error)}"
        reader.add(FaultCode.CONFIG, ("", ""), message, "correct it", SERVER_CONFIG)
        return None
    if not isinstance(found, dict) or not isinstance(found.get(_MODELS, []), list):
        message = f"{SERVER_CONFIG} has no list {_MODELS}"
        reader.add(FaultCode.CONFIG, ("", ""), message, "add it", SERVER_CONFIG)
        return None
    return found


def _versions(
    reader: RepositoryReader, name: str, found: Mapping[str, Any]
) -> Iterator[CheckedVersion]:
    """Check an entry's keys and folder, and yield its versions."""
    for key in sorted(found.keys() - _KEYS):
        hint = "correct its name, or remove it"
        reader.add(FaultCode.UNKNOWN_FIELD, (name, ""), f"unknown key {key[:80]!r}", hint, key[:80])
    base = str(found.get("base_path", ""))
    place = reader.root / PurePosixPath(base).name
    if not base or not place.is_dir():
        message = f"its base_path {base[:80]!r} is not a folder of this repository"
        reader.add(FaultCode.MISSING_FILE, (name, ""), message, "correct it", "base_path")
        return
    numbers = list_versions(place)
    if not numbers:
        hint = f"put the model into {place.name}/1"
        reader.add(FaultCode.NO_VERSION, (name, ""), "it has no version folder", hint)
    for number in numbers:
        yield from _version(reader, place / str(number), (name, str(number)))


def _version(
    reader: RepositoryReader, place: Path, at: tuple[str, str]
) -> Iterator[CheckedVersion]:
    before = len(reader.faults)
    record = reader.load_record(place)
    if len(reader.faults) > before:
        return
    names = sorted(path.name for path in place.iterdir() if path.suffix in _FORMATS)
    others = [path for path in place.iterdir() if path.suffix in _OTHER_FORMATS]
    if not names and others:
        reader.unchecked.append(f"{at[0]}/{at[1]}: {others[0].name} is of a format not read here")
        return
    if len(names) != 1:
        message = f"it has {len(names)} model files"
        reader.add(FaultCode.MISSING_FILE, at, message, "put one .xml or .onnx there")
        return
    path = reader.find_file(place, names[0], at)
    if path is not None and path.suffix == ".xml":
        weights = reader.find_file(place, path.with_suffix(".bin").name, at)
        path = None if weights is None else path
    if path is not None and reader.is_recorded(place, path, record):
        request = DescribeRequest(path=path, target=_FORMATS[path.suffix])
        yield CheckedVersion(model=at[0], version=at[1], request=request, record=record)


def _check_shape(
    reader: RepositoryReader, one: CheckedVersion, found: Mapping[str, Any], file: ModelInterface
) -> None:
    """Check that `shape` and `layout` name inputs of the file, with as many dims."""
    at, ranks = (one.model, one.version), {t.name: len(t.dims) for t in file.tensors}
    for key in ("shape", "layout"):
        given = found.get(key)
        for name in given if isinstance(given, dict) else ():
            if name not in ranks:
                message = f"{key} names {name[:80]!r}, which the file does not have"
                hint = f"its tensors are {', '.join(ranks)}"
                reader.add(FaultCode.TENSOR_NAME, at, message, hint, key)
    shapes = found.get("shape")
    if isinstance(shapes, str) and len(file.inputs) == 1:
        shapes = {file.inputs[0].name: shapes}
    for name, text in shapes.items() if isinstance(shapes, dict) else ():
        dims = str(text).strip("() ").split(",")
        if name in ranks and str(text) != "auto" and len(dims) != ranks[name]:
            message = f"shape gives {name} {len(dims)} dims, the file has {ranks[name]}"
            reader.add(FaultCode.TENSOR_DIMS, at, message, "write the dims of the file", name)


def _check_recorded(reader: RepositoryReader, one: CheckedVersion, file: ModelInterface) -> None:
    """Check that the file has the tensors of its record."""
    if one.record is None:
        return
    recorded = {tensor.name for tensor in one.record.interface.tensors}
    for tensor in file.tensors:
        if tensor.name not in recorded:
            message = f"the file has a tensor {tensor.name!r} that was not packed"
            reader.add(
                FaultCode.TENSOR_NAME, (one.model, one.version), message, "pack the model again"
            )


def _check_pipelines(
    reader: RepositoryReader, config: Mapping[str, Any], models: Mapping[str, ModelInterface | None]
) -> None:
    """Check the models of each pipeline, and the tensors between them; None is not comparable."""
    pipelines = config.get(_PIPELINES, [])
    for pipeline in pipelines if isinstance(pipelines, list) else ():
        at = (str(pipeline.get("name") if isinstance(pipeline, dict) else pipeline)[:80], "")
        try:
            steps = _read_steps(pipeline["nodes"])
        except (KeyError, TypeError, AttributeError) as error:
            message = f"a node is incomplete: {first_line(error)}"
            reader.add(FaultCode.ENSEMBLE, at, message, "pack the ensemble again", _PIPELINES)
            continue
        missing = [step.model for step in steps if step.model not in models]
        for name in missing:
            hint = f"name one of {', '.join(sorted(models))}"
            message = f"the model {name[:80]!r} is missing"
            reader.add(FaultCode.ENSEMBLE, at, message, hint, name[:80])
        known = {name: found for name, found in models.items() if found is not None}
        if missing or any(step.model not in known for step in steps):
            continue
        for message, hint in find_ensemble_faults(steps, known):
            reader.add(FaultCode.ENSEMBLE, at, message, hint)
        made = {tensor for step in steps for tensor in step.outputs.values()}
        for tensor in {tensor for step in steps for tensor in step.inputs.values()} - made:
            if not tensor.startswith(f"{_REQUEST}."):
                message, hint = f"no node gives {tensor[:80]}", "name a node and an alias of it"
                reader.add(FaultCode.ENSEMBLE, at, message, hint)


def _read_steps(nodes: Sequence[Mapping[str, Any]]) -> list[EnsembleStep]:
    """Return the models of a pipeline as steps; a tensor is named by its node and its alias."""
    return [
        EnsembleStep(
            model=str(node["model_name"]),
            inputs={
                str(name): f"{source['node_name']}.{source['data_item']}"
                for one in node["inputs"]
                for name, source in one.items()
            },
            outputs={
                str(one["data_item"]): f"{node['name']}.{one.get('alias', one['data_item'])}"
                for one in node["outputs"]
            },
        )
        for node in nodes
        if node.get("type", "DL model") == "DL model"  # others are libraries
    ]
