"""Write models for Triton: `config.pbtxt`, version folders, warm-up data and labels."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..core.contract import Array
from ..core.errors import ErrorCode, UsageError
from ..core.records import FileRecord
from .ensembles import EnsembleModel
from .repository_records import (
    ModelInterface,
    PackedVersion,
    ServedModel,
    ServedTensor,
    ServingOptions,
)
from .triton_schema import config_class, read_config, write_config
from .version_folders import PlannedFile

CONFIG_FILE = "config.pbtxt"
WARMUP_FOLDER = "warmup"  # Triton reads `input_data_file` from there
LABELS_FILE = "labels.txt"
DIGEST_PARAMETER = "modelc_sha256_{}"  # of a version: `modelc validate --served` reads it
INDEXED = "__"  # Triton's PyTorch backend reads the number behind it as the tensor's position


@dataclass(frozen=True, kw_only=True)
class TritonBackend:
    """How Triton serves a format: its backend, the model's file name, whether it can batch.

    `by_position` means that the backend knows inputs and outputs by their order in the config.
    `gpu_only` formats need a GPU.
    """

    backend: str
    file: str
    platform: str = ""
    batches: bool = True
    by_position: bool = False
    gpu_only: bool = False


_ONNX = TritonBackend(backend="onnxruntime", file="model.onnx")
BACKENDS: Mapping[str, TritonBackend] = {  # by target
    "onnx": _ONNX,
    "tensorrt-onnx": _ONNX,
    "openvino": TritonBackend(backend="openvino", file="model.xml"),
    "torchscript": TritonBackend(
        backend="pytorch", file="model.pt", platform="pytorch_libtorch", by_position=True
    ),
    "aoti": TritonBackend(
        backend="pytorch", file="model.pt2", platform="torch_aoti", batches=False, by_position=True
    ),
    "tensorrt": TritonBackend(backend="tensorrt", file="model.plan", gpu_only=True),
}
DTYPES: Mapping[str, str] = {
    "bool": "TYPE_BOOL", "uint8": "TYPE_UINT8", "uint16": "TYPE_UINT16", "uint32": "TYPE_UINT32",
    "uint64": "TYPE_UINT64", "int8": "TYPE_INT8", "int16": "TYPE_INT16", "int32": "TYPE_INT32",
    "int64": "TYPE_INT64", "float16": "TYPE_FP16", "float32": "TYPE_FP32",
    "float64": "TYPE_FP64", "bfloat16": "TYPE_BF16",
}  # fmt: skip
_ENGINE_SIDECAR = ".json"  # of an engine, which inspection reads
_PARAMETER = r'parameters\s*{{\s*key:\s*"{}"\s*value\s*{{\s*string_value:\s*"\w*"\s*}}\s*}}\s*'
_CAPABILITY = re.compile(r"\d+\.\d+")
_MAX_DELAY = 100  # microseconds that a request may wait for others


def rename_tensors(model: ServedModel) -> ServedModel:
    """Return the model with tensor names that its backend accepts.

    The PyTorch backend takes a name with two underscores for an index, and AOTInductor's tensors
    have no other names than `INPUT__0`.
    """
    kind, interface = BACKENDS[model.record.target], model.interface
    if not kind.by_position:
        return model
    always = not kind.batches
    changed = replace(
        interface,
        inputs=_number(interface.inputs, "INPUT", always=always),
        outputs=_number(interface.outputs, "OUTPUT", always=always),
    )
    output = dict(zip(_names(interface.outputs), _names(changed.outputs), strict=True))
    notes = model.record.notes
    if len(interface.outputs) > 1 and interface.facts.get("call") == "native":
        notes = (*notes, "Triton takes a tensor or a tuple from forward, and no dict")
    return replace(
        model,
        record=replace(
            model.record, interface=changed, notes=notes,
            classes_of=output.get(model.record.classes_of, ""),
        ),
    )  # fmt: skip


def _names(tensors: Sequence[ServedTensor]) -> tuple[str, ...]:
    return tuple(one.name for one in tensors)


def _number(
    tensors: Sequence[ServedTensor], word: str, *, always: bool
) -> tuple[ServedTensor, ...]:
    if not always and not any(INDEXED in one.name for one in tensors):
        return tuple(tensors)
    return tuple(
        replace(one, name=f"{word}{INDEXED}{number}") for number, one in enumerate(tensors)
    )


def batch_limit(record: PackedVersion) -> int:
    """Return `max_batch_size`: 0 if there is no batch, or if rows depend on each other.

    Backends turn dynamic batching on by themselves where they may batch; a model whose rows depend
    on each other therefore has its batch among its dims.
    """
    interface = record.interface
    if not BACKENDS[record.target].batches or interface.rows_apart is False:
        return 0
    return interface.batch


def make_config(model: ServedModel, options: ServingOptions) -> Any:
    """Make the configuration of a model.

    Raises:
        UsageError: Triton has no data type for a tensor.
    """
    record, kind = model.record, BACKENDS[model.record.target]
    limit = batch_limit(record)
    config = config_class()(
        name=model.name, backend=kind.backend, platform=kind.platform, max_batch_size=limit,
        default_model_filename=kind.file,
    )  # fmt: skip
    for tensor in record.interface.inputs:
        _fill_tensor(config.input.add(), tensor, limit, model.name)
    for tensor in record.interface.outputs:
        _fill_tensor(config.output.add(), tensor, limit, model.name)
        if record.classes and tensor.name == record.classes_of:
            config.output[-1].label_filename = LABELS_FILE
    if limit > 1 and record.interface.rows_apart:
        config.dynamic_batching.max_queue_delay_microseconds = _MAX_DELAY
    if limit > 1 and kind.backend == "openvino":  # it compiles for the largest batch alone
        config.parameters["ENABLE_BATCH_PADDING"].string_value = "YES"
    config.parameters[DIGEST_PARAMETER.format(1)].string_value = model.files[0].sha256
    gpu = kind.gpu_only or (options.gpu if options.gpu is not None else _is_on_gpu(record))
    config.instance_group.add(kind="KIND_GPU" if gpu else "KIND_CPU", count=options.instances)
    config.version_policy.latest.num_versions = options.keep
    for capability, name in engine_files(model).items():
        config.cc_model_filenames[capability] = name
    _add_warmup(config, model, limit)
    return config


def _is_on_gpu(record: PackedVersion) -> bool:
    return record.verdict is not None and record.verdict.device.startswith("cuda")


def _fill_tensor(place: Any, tensor: ServedTensor, limit: int, model: str) -> None:
    """Fill an input or output; a tensor without dims becomes one of a single value."""
    if tensor.dtype not in DTYPES:
        raise UsageError(
            f"{model}: Triton has no data type for {tensor.name}, which is {tensor.dtype!r}",
            hint="leave the artifact out with --artifact",
            code=ErrorCode.UNSUPPORTED,
        )
    place.name, place.data_type = tensor.name, DTYPES[tensor.dtype]
    dims, has_reshape = config_dims(tensor.dims, limit)
    place.dims.extend(dims)
    if has_reshape:
        place.reshape.SetInParent()


def config_dims(dims: Sequence[int], limit: int) -> tuple[tuple[int, ...], bool]:
    """Return dims as a config has them, and whether an empty `reshape` turns them into the model's.

    The batch is left out. Triton requires a dim: a number per row is `[1]`, reshaped to none.
    """
    own = tuple(dims[1:] if limit else dims)
    return (own, False) if own else ((1,), limit > 0)


def engine_files(model: ServedModel) -> dict[str, str]:
    """Return the file of each compute capability, if there are engines for several GPUs."""
    if not model.twins:
        return {}
    return {
        capability: f"model_{capability.replace('.', '_')}.plan"
        for one in (model, *model.twins)
        for capability in one.interface.gpus
    }


def _add_warmup(config: Any, model: ServedModel, limit: int) -> None:
    """Add the feed as a warm-up request; Triton sends it for each row of `batch_size` by itself."""
    if not set(warmup_names(model)) or limit < 0:
        return
    warmup = config.model_warmup.add(name="opt", batch_size=1)
    for tensor, (name, array) in zip(
        model.interface.inputs, warmup_arrays(model, limit).items(), strict=True
    ):
        one = warmup.inputs[tensor.name]
        one.data_type = DTYPES[tensor.dtype]
        one.dims.extend(array.shape)
        one.input_data_file = name


def warmup_names(model: ServedModel) -> tuple[str, ...]:
    """Return the names of the warm-up files; none if the feed lacks an input or a dtype."""
    inputs = model.interface.inputs
    known = all(one.source in model.feed and one.dtype != "bfloat16" for one in inputs)
    return tuple(f"opt.{number}" for number, _ in enumerate(inputs)) if known else ()


def warmup_arrays(model: ServedModel, limit: int) -> dict[str, Array]:
    """Return the warm-up data by file name: the first row of a batch, in the served dtype."""
    import numpy as np

    found: dict[str, Array] = {}
    for name, tensor in zip(warmup_names(model), model.interface.inputs, strict=False):
        array = model.feed[tensor.source]
        array = array[0] if limit else array
        found[name] = np.ascontiguousarray(array.reshape(array.shape or (1,)), dtype=tensor.dtype)
    return found


def plan_version_files(model: ServedModel) -> Iterator[PlannedFile]:
    """Yield the files of a version folder under the names that the backend expects."""
    kind = BACKENDS[model.record.target]
    engines = engine_files(model)
    for one in (model, *model.twins):
        names = [engines[gpu] for gpu in one.interface.gpus if gpu in engines] or [kind.file]
        for name in names:
            for file in one.files:
                yield PlannedFile(
                    name=name_in_version(one, file, name),
                    source=one.folder / file.name,
                    record=file,
                )


def name_in_version(model: ServedModel, file: FileRecord, name: str) -> str:
    """Return the name of a file in its version folder, where the model's is `name`.

    External data of an ONNX keeps its name, which the model refers to.
    """
    own = Path(file.name)
    if file is model.files[0]:
        return name
    if model.record.target == "openvino":
        return Path(name).with_suffix(own.suffix).name
    if BACKENDS[model.record.target].gpu_only and own.suffix == _ENGINE_SIDECAR:
        return f"{name}{_ENGINE_SIDECAR}"
    return own.name


def plan_model_files(model: ServedModel, options: ServingOptions) -> Iterator[PlannedFile]:
    """Yield the files beside the version folders."""
    yield PlannedFile(name=CONFIG_FILE, content=write_config(make_config(model, options)))
    for name, array in warmup_arrays(model, batch_limit(model.record)).items():
        yield PlannedFile(name=f"{WARMUP_FOLDER}/{name}", content=array.tobytes())
    if labels := label_lines(model):
        yield PlannedFile(name=LABELS_FILE, content=labels)


def label_lines(model: ServedModel) -> bytes:
    """Return the class names, one a line; empty if there are none."""
    return "".join(f"{name}\n" for name in model.record.classes).encode()


def add_digest(place: Path, model: ServedModel, version: int) -> dict[str, bytes]:
    """Return the configuration of a model in a repository with the digest of a version added.

    All else stays as it is. Empty if the digest is there, or if a file of another form has none.
    """
    key, digest = DIGEST_PARAMETER.format(version), model.files[0].sha256
    raw = (place / CONFIG_FILE).read_bytes()
    there = read_config(raw, CONFIG_FILE)[0].parameters
    if key in there and there[key].string_value == digest:
        return {}
    entry = config_class()()
    entry.parameters[key].string_value = digest
    kept = re.sub(_PARAMETER.format(key).encode(), b"", raw)  # of a version that was removed
    return {CONFIG_FILE: kept.rstrip() + b"\n" + write_config(entry)}


def merge_engines(models: Sequence[ServedModel]) -> tuple[ServedModel, ...]:
    """Make one model of engines that have one name and are for different GPUs."""
    merged: dict[str, ServedModel] = {}
    found: list[ServedModel] = []
    for one in models:
        first = merged.get(one.name)
        if first is None or not _is_twin(first, one):
            merged.setdefault(one.name, one)
            found.append(one)
            continue
        joined = replace(first, twins=(*first.twins, one))
        merged[one.name] = joined
        found[found.index(first)] = joined
    return tuple(found)


def _is_twin(first: ServedModel, other: ServedModel) -> bool:
    known = {gpu for one in (first, *first.twins) for gpu in one.interface.gpus}
    engines = all(BACKENDS[one.record.target].gpu_only for one in (first, other))
    same = first.interface.inputs == other.interface.inputs
    return engines and same and bool(other.interface.gpus) and not known & {*other.interface.gpus}


def add_capabilities(model: ServedModel) -> ServedModel:
    """Return an engine with the compute capability in its sidecar; other models unchanged."""
    import msgspec

    if not BACKENDS[model.record.target].gpu_only:
        return model
    for file in model.files[1:]:
        if file.name.endswith(_ENGINE_SIDECAR):
            try:
                sidecar = msgspec.json.decode(
                    (model.folder / file.name).read_bytes(), type=dict[str, Any]
                )
            except (msgspec.MsgspecError, OSError, RecursionError):
                continue
            capability = str(sidecar.get("capability", ""))
            if _CAPABILITY.fullmatch(capability):
                interface: ModelInterface = replace(model.interface, gpus=(capability,))
                return replace(model, record=replace(model.record, interface=interface))
    return model


def interface_of(config: Any) -> ModelInterface:
    """Return the tensors as clients and ensembles see them: with the batch, and not reshaped.

    Dtypes are Triton's names.
    """
    batch = (-1,) if config.max_batch_size > 0 else ()

    def tensors(declared: Sequence[Any]) -> tuple[ServedTensor, ...]:
        return tuple(
            ServedTensor(name=one.name, dtype=type_name(one), dims=(*batch, *one.dims))
            for one in declared
        )

    return ModelInterface(
        inputs=tensors(config.input),
        outputs=tensors(config.output),
        batch=config.max_batch_size,
    )


def type_name(tensor: Any) -> str:
    """Return the name of a tensor's data type, as `TYPE_FP32`."""
    field = tensor.DESCRIPTOR.fields_by_name["data_type"]
    found = field.enum_type.values_by_number.get(tensor.data_type)
    return "" if found is None else str(found.name)


def make_ensemble_config(ensemble: EnsembleModel, limits: Mapping[str, int]) -> Any:
    """Make the configuration of an ensemble.

    Args:
        ensemble: its tensors, as `interface_of` gives them, and its steps.
        limits: `max_batch_size` of each model that it uses.

    Raises:
        UsageError: some of its models batch and others do not.
    """
    used = {limits[step.model] for step in ensemble.steps}
    if 0 in used and len(used) > 1:
        raise UsageError(
            f"the ensemble {ensemble.name} joins models with and without a batch",
            hint="export all of its models with one batch dim, or all without",
            code=ErrorCode.UNSUPPORTED,
        )
    limit = min(used)
    config = config_class()(name=ensemble.name, platform="ensemble", max_batch_size=limit)
    for place, tensors in ((config.input, ensemble.inputs), (config.output, ensemble.outputs)):
        for tensor in tensors:
            one = place.add(name=tensor.name, data_type=tensor.dtype)
            one.dims.extend(tensor.dims[1:] if limit else tensor.dims)
    for step in ensemble.steps:
        one = config.ensemble_scheduling.step.add(model_name=step.model, model_version=-1)
        one.input_map.update(step.inputs)
        one.output_map.update(step.outputs)
    return config
