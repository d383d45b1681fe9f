"""Check a model repository of Triton: each configuration against its model files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from ..core.errors import UsageError
from ..core.records import sha256_of
from .describe_models import DescribeRequest
from .ensembles import (
    EnsembleStep,
    describe_map_change,
    describe_misfit,
    find_ensemble_faults,
    find_exchanged_maps,
)
from .repository_reader import CheckedVersion, RepositoryReader
from .repository_records import (
    ENSEMBLE_FILE,
    FaultCode,
    ModelInterface,
    PackedVersion,
    ServedTensor,
)
from .triton_comparison import check_tensors
from .triton_repository import (
    BACKENDS,
    CONFIG_FILE,
    DIGEST_PARAMETER,
    DTYPES,
    WARMUP_FOLDER,
    interface_of,
    type_name,
)
from .triton_schema import MAX_CONFIG_BYTES, read_config
from .version_folders import is_below, list_versions

_TARGETS = {".onnx": "onnx", ".xml": "openvino", ".pt": "torchscript", ".pt2": "aoti",
            ".plan": "tensorrt"}  # fmt: skip
_PROGRAMS = (".pt", ".pt2")  # opening one runs code of its maker
_FILES = {one.backend: one.file for one in reversed(list(BACKENDS.values()))}
_PLATFORMS = {"onnxruntime_onnx": "onnxruntime", "tensorrt_plan": "tensorrt",
              "pytorch_libtorch": "pytorch", "torch_aoti": "pytorch"}  # fmt: skip
_BYTES = {"BOOL": 1, "UINT8": 1, "INT8": 1, "UINT16": 2, "INT16": 2, "FP16": 2, "BF16": 2,
          "UINT32": 4, "INT32": 4, "FP32": 4, "UINT64": 8, "INT64": 8, "FP64": 8}  # fmt: skip


def check_triton(reader: RepositoryReader) -> tuple[str, ...]:
    """Check every model of a repository; return their names."""
    folders = reader.list_models()
    configs: dict[str, Any] = {}
    for folder in folders:
        config = _read_model(reader, folder)
        if config is not None:
            configs[folder.name] = config
            _check_config(reader, folder, config)
    versions = [
        version
        for name, config in configs.items()
        for version in _versions(reader, reader.root / name, config)
    ]
    interfaces: dict[str, ModelInterface] = {}
    for one, interface in reader.describe(versions):
        whole = _with_record(interface, one.record)
        check_tensors(reader, one, configs[one.model], whole)
    for name, config in configs.items():
        interfaces[name] = interface_of(config)
    for name, config in configs.items():
        if config.HasField("ensemble_scheduling"):
            _check_ensemble(reader, name, config, interfaces)
    return tuple(folder.name for folder in folders)


def _read_model(reader: RepositoryReader, folder: Path) -> Any | None:
    at = (folder.name, "")
    if not (folder / CONFIG_FILE).exists() and not (folder / CONFIG_FILE).is_symlink():
        reader.unchecked.append(f"{folder.name}: it has no {CONFIG_FILE}; Triton derives it")
        return None
    raw = reader.read_text(folder, CONFIG_FILE, at, MAX_CONFIG_BYTES)
    if raw is None:
        return None
    try:
        config, unknown = read_config(raw, CONFIG_FILE)
    except UsageError as error:
        reader.add(FaultCode.CONFIG, at, error.message, error.hint, CONFIG_FILE)
        return None
    if unknown:
        hint = "correct its name, or remove it"
        message = f"{CONFIG_FILE}: {unknown}"
        reader.add(FaultCode.UNKNOWN_FIELD, at, message, hint, CONFIG_FILE)
    return config


def backend_of(config: Any) -> str:
    """Return the backend of a model, which an older configuration gives as its platform."""
    return str(config.backend or _PLATFORMS.get(config.platform, config.platform))


def _check_config(reader: RepositoryReader, folder: Path, config: Any) -> None:
    """Check what the configuration says by itself, and the files beside the versions."""
    at = (folder.name, "")
    if config.name and config.name != folder.name:
        message = f"its name is {config.name!r}, its folder is {folder.name!r}"
        reader.add(FaultCode.NAME, at, message, "rename one of them", "name")
    if not backend_of(config):
        hint = f'add a line, as backend: "{next(iter(_FILES))}"'
        reader.add(FaultCode.BACKEND, at, "it names no backend", hint, "backend")
    if config.max_batch_size < 0:
        message, hint = f"max_batch_size is {config.max_batch_size}", "set it to 0, or to a batch"
        reader.add(FaultCode.BATCH, at, message, hint, "max_batch_size")
    _check_policy(reader, folder, config)
    for tensor in (*config.input, *config.output):
        _check_declared(reader, at, tensor)
    for tensor in config.output:
        if tensor.label_filename:
            reader.find_file(folder, tensor.label_filename, at)
    for warmup in config.model_warmup:
        _check_warmup(reader, folder, config, warmup)


def _check_policy(reader: RepositoryReader, folder: Path, config: Any) -> None:
    """Check that there are versions, and those that the configuration names."""
    at, versions = (folder.name, ""), list_versions(folder)
    if not versions:
        hint = f"put the model into {folder.name}/1"
        reader.add(FaultCode.NO_VERSION, at, "it has no version folder", hint)
    for number in config.version_policy.specific.versions:
        if number not in versions:
            message = f"version_policy names version {number}, which is missing"
            hint = "name versions that are there"
            reader.add(FaultCode.VERSION_POLICY, at, message, hint, "version_policy")


def _check_declared(reader: RepositoryReader, at: tuple[str, str], tensor: Any) -> None:
    """Check that a tensor has a name, a data type, and dims that Triton accepts."""
    if not tensor.name:
        reader.add(FaultCode.TENSOR_NAME, at, "a tensor has no name", "add its name")
    if not tensor.data_type:
        hint = f"add data_type: {DTYPES['float32']}, or what the model has"
        message = f"{tensor.name} has no data_type"
        reader.add(FaultCode.TENSOR_DTYPE, at, message, hint, tensor.name)
    if not tensor.dims or any(dim < 1 and dim != -1 for dim in tensor.dims):
        message = f"{tensor.name} has the dims {list(tensor.dims)}"
        hint = "each dim is a size, or -1; a single value is [1]"
        reader.add(FaultCode.TENSOR_DIMS, at, message, hint, tensor.name)


def _check_warmup(reader: RepositoryReader, folder: Path, config: Any, warmup: Any) -> None:
    """Check that a warm-up request feeds the inputs, and each as it is declared."""
    at = (folder.name, "")
    inputs = {one.name: one for one in config.input}
    for name, one in sorted(warmup.inputs.items()):
        if name in inputs:
            _check_fed(reader, folder, inputs[name], one)
        else:
            message = f"the warm-up {warmup.name!r} has no input {name!r} to feed"
            hint = f"name the inputs: {', '.join(inputs)}"
            reader.add(FaultCode.WARMUP, at, message, hint, name)
    for name, known in inputs.items():
        if warmup.inputs and name not in warmup.inputs and not known.optional:
            message = f"the warm-up {warmup.name!r} does not feed {name}"
            reader.add(FaultCode.WARMUP, at, message, "feed every input", name)


def _check_fed(reader: RepositoryReader, folder: Path, known: Any, one: Any) -> None:
    """Check one input of a warm-up request, and that its file holds enough bytes."""
    at, name = (folder.name, ""), known.name
    fits = len(one.dims) == len(known.dims) and all(
        dim > 0 and wanted in (-1, dim) for dim, wanted in zip(one.dims, known.dims, strict=True)
    )
    if not fits or one.data_type != known.data_type:
        message = f"a warm-up feeds {name} in another dtype or other dims"
        reader.add(FaultCode.WARMUP, at, message, "give it those of the input", name)
    elif one.WhichOneof("input_data_type") == "input_data_file":
        path = reader.find_file(folder / WARMUP_FOLDER, one.input_data_file, at)
        wanted = prod(one.dims) * _BYTES.get(type_name(one).removeprefix("TYPE_"), 0)
        if path is not None and path.stat().st_size < wanted:
            message = f"{one.input_data_file} has less than the {wanted} bytes of {name}"
            reader.add(FaultCode.WARMUP, at, message, "write the whole tensor", name)


def _versions(reader: RepositoryReader, folder: Path, config: Any) -> Iterator[CheckedVersion]:
    """Yield the versions whose model file is there, is the recorded one, and may be opened."""
    if config.HasField("ensemble_scheduling"):
        return
    backend = backend_of(config)
    usual = "model.pt2" if config.platform == "torch_aoti" else _FILES.get(backend, "")
    names = tuple(config.cc_model_filenames.values()) or (config.default_model_filename or usual,)
    for number in list_versions(folder):
        if not names[0]:
            reader.unchecked.append(f"{folder.name}/{number}: the backend {backend!r} is unknown")
            continue
        before = len(reader.faults)
        record = reader.load_record(folder / str(number))
        if len(names) == 1 and len(reader.faults) == before:
            _check_digest(reader, folder / str(number), names[0], config, record)
        if len(reader.faults) == before:
            for name in dict.fromkeys(names):
                yield from _version(reader, folder / str(number), name, record)


def _check_digest(
    reader: RepositoryReader, place: Path, name: str, config: Any, record: PackedVersion | None
) -> None:
    """Compare the model file with the digest in the configuration, which clients may read."""
    path, model, number = place / name, place.parent.name, place.name
    parameters = {key: one.string_value for key, one in config.parameters.items()}
    key = DIGEST_PARAMETER.format(number)
    stated = parameters.get(key)
    earlier = {one for one in (1, *list_versions(place.parent)) if one < int(number)}
    added = stated is None and any(DIGEST_PARAMETER.format(one) in parameters for one in earlier)
    if added and record is None:
        reader.unchecked.append(f"{model}/{number}: it has no record; its form alone is compared")
    elif added:  # as a copy of an older version, or of one of another model
        message = f"it was not packed into {model}: {CONFIG_FILE} has no digest of it"
        hint = f"remove this version, or add the parameter {key} with the SHA-256 of {name}"
        reader.add(FaultCode.OTHER_FILE, (model, number), message, hint, name)
    known = stated is not None and is_below(path, reader.root) and path.is_file()
    if known and sha256_of(path) != stated:
        message = f"{name} is not the file that {CONFIG_FILE} states"
        hint = "remove this version, and pack the model again"
        reader.add(FaultCode.OTHER_FILE, (model, number), message, hint, name)


def _version(
    reader: RepositoryReader, place: Path, name: str, record: PackedVersion | None
) -> Iterator[CheckedVersion]:
    """Yield the version with this model file, unless it cannot be opened."""
    model, number = place.parent.name, place.name
    path = reader.find_file(place, name, (model, number))
    target = _TARGETS.get(Path(name).suffix)
    if path is None or not reader.is_recorded(place, path, record):
        return
    if target is None:
        reader.unchecked.append(f"{model}/{number}: {name} is of an unknown format")
    elif record is None and not reader.trust and path.suffix in _PROGRAMS:
        reader.unchecked.append(
            f"{model}/{number}: {name} is a program, and opening it runs code of its author; "
            "--trust opens it"
        )
    else:
        request = DescribeRequest(path=path, target=target)
        yield CheckedVersion(model=model, version=number, record=record, request=request)


def _with_record(interface: ModelInterface, record: PackedVersion | None) -> ModelInterface:
    """Add what a file does not declare from the record of the version, whose digest is right."""
    if record is None:
        return interface
    known = record.interface

    def join(
        own: Sequence[ServedTensor], recorded: Sequence[ServedTensor]
    ) -> tuple[ServedTensor, ...]:
        if len(own) != len(recorded):
            return tuple(own or recorded)
        return tuple(
            replace(
                one,
                name=other.name,
                dtype=one.dtype if one.dtype in DTYPES else other.dtype,
                dims=_join_dims(one.dims, other.dims),
            )
            for one, other in zip(own, recorded, strict=True)
        )

    inputs = join(interface.inputs, known.inputs)
    return replace(known, inputs=inputs, outputs=join(interface.outputs, known.outputs))


def _join_dims(own: tuple[int, ...], recorded: tuple[int, ...]) -> tuple[int, ...]:
    if len(own) != len(recorded):
        return own or recorded
    return tuple(a if a >= 0 else b for a, b in zip(own, recorded, strict=True))


def _check_ensemble(
    reader: RepositoryReader, name: str, config: Any, interfaces: Mapping[str, ModelInterface]
) -> None:
    """Check the steps and the tensor maps of an ensemble."""
    at = (name, "")
    steps = [
        EnsembleStep(model=one.model_name, inputs=dict(one.input_map), outputs=dict(one.output_map))
        for one in config.ensemble_scheduling.step
    ]
    missing = [step.model for step in steps if step.model not in interfaces]
    for model in missing:
        hint = f"name one of {', '.join(sorted(interfaces))}"
        reader.add(FaultCode.ENSEMBLE, at, f"the model {model!r} is missing", hint, model)
    if missing or not steps:
        return
    for message, hint in find_ensemble_faults(steps, interfaces):
        reader.add(FaultCode.ENSEMBLE, at, message, hint)
    _check_packed_steps(reader, name, steps)
    _check_pinned_versions(reader, name, config)
    ends = [*_ends(steps, interfaces, config)]
    for message in ends:
        hint = "give it the data type and the dims of the model's tensor"
        reader.add(FaultCode.ENSEMBLE, at, message, hint)
    least = max(0, min(interfaces[step.model].batch for step in steps))
    if config.max_batch_size > least:
        message = f"max_batch_size is {config.max_batch_size}, one of its models takes {least}"
        reader.add(FaultCode.BATCH, at, message, f"set it to {least}", "max_batch_size")


def _check_packed_steps(reader: RepositoryReader, name: str, steps: list[EnsembleStep]) -> None:
    """Check that the maps are the packed ones: exchanged tensors of one form fit as well."""
    import msgspec

    folder = reader.root / name / str(max(list_versions(reader.root / name), default=1))
    exchanged = [*find_exchanged_maps(steps)]
    if (folder / ENSEMBLE_FILE).is_file():
        raw = reader.read_text(folder, ENSEMBLE_FILE, (name, ""))
        try:
            packed = msgspec.json.decode(raw or b"", type=_PackedEnsemble).steps
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            packed = []  # of an older modelc
        change = describe_map_change(steps, packed) if packed else ""
        if change:
            hint = "restore it, or pack the changed ensemble under another name"
            reader.add(FaultCode.ENSEMBLE, (name, ""), change, hint)
        exchanged = [] if packed else exchanged
    reader.unchecked += [f"{name}: {text}: is that meant?" for text in exchanged]


def _check_pinned_versions(reader: RepositoryReader, name: str, config: Any) -> None:
    """Check that a step takes the newest version, as packed, or at least one that is there."""
    packed = any((reader.root / name).glob(f"*/{ENSEMBLE_FILE}"))
    for step in config.ensemble_scheduling.step:
        number, model = step.model_version, step.model_name
        missing = number not in list_versions(reader.root / model)
        if number > 0 and (missing or packed):
            what = "which is missing" if missing else "packed was the newest"
            message = f"it takes version {number} of {model}, {what}"
            reader.add(FaultCode.ENSEMBLE, (name, ""), message, "write model_version: -1", model)


@dataclass(frozen=True, kw_only=True)
class _PackedEnsemble:
    """The record of an ensemble."""

    steps: list[EnsembleStep]


def _ends(
    steps: Sequence[EnsembleStep], interfaces: Mapping[str, ModelInterface], config: Any
) -> Iterator[str]:
    """Yield how inputs and outputs of the ensemble differ from the tensors of its models."""
    known = {
        tensor: one
        for step in steps
        for maps, tensors in (
            (step.inputs, interfaces[step.model].inputs),
            (step.outputs, interfaces[step.model].outputs),
        )
        for name, tensor in maps.items()
        for one in tensors
        if one.name == name
    }
    own = interface_of(config)
    for tensor in own.tensors:
        other = known.get(tensor.name)
        wrong = "" if other is None else describe_misfit(tensor, other)
        if other is None:
            yield f"no step has the tensor {tensor.name}"
        elif wrong:
            yield f"{tensor.name}: {wrong}"
    made = {tensor for step in steps for tensor in step.outputs.values()}
    given = {one.name for one in own.inputs}
    for name in sorted({tensor for step in steps for tensor in step.inputs.values()} - made):
        if name not in given:
            yield f"{name} comes from no step and is not an input of the ensemble"
