"""Compare a configuration of Triton with a model file, and with that of a new version."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import UsageError
from .repository_reader import CheckedVersion, RepositoryReader
from .repository_records import (
    VERSION_FILE,
    FaultCode,
    ModelInterface,
    PackedVersion,
    ServedModel,
    ServedTensor,
    ServingOptions,
)
from .triton_repository import (
    BACKENDS,
    CONFIG_FILE,
    DTYPES,
    INDEXED,
    make_config,
    type_name,
)
from .triton_schema import MAX_CONFIG_BYTES, read_config
from .version_folders import is_below

_MAX_LABEL_BYTES = 1 << 20  # metadata has at most half of it


def model_dims(tensor: Any, limit: int) -> tuple[int, ...]:
    """Return the dims that the model gets: those of `reshape` if there is one, after the batch."""
    own = tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims
    return (*((-1,) if limit > 0 else ()), *own)


def check_tensors(
    reader: RepositoryReader, version: CheckedVersion, config: Any, file: ModelInterface
) -> None:
    """Compare the inputs and outputs of a configuration with those of a model file."""
    at, limit = (version.model, version.version), config.max_batch_size
    pair = _pair_by_position if BACKENDS[version.request.target].by_position else _pair_by_name
    for noun, declared, own in (
        ("input", config.input, file.inputs), ("output", config.output, file.outputs)
    ):  # fmt: skip
        for tensor, found in pair(_Tensors(reader, at, noun), declared, own):
            _check_tensor(reader, at, tensor, found, limit)
    if version.record is not None:
        _check_against_record(reader, version, config, version.record)


def _check_against_record(
    reader: RepositoryReader, version: CheckedVersion, config: Any, record: PackedVersion
) -> None:
    """Compare a configuration with what the record of a version says beyond the file."""
    at, limit = (version.model, version.version), config.max_batch_size
    labels = find_label_difference(reader.root / version.model, record, config)
    if labels:
        reader.add(FaultCode.LABELS, at, labels, f"write those of {VERSION_FILE}", "labels")
    for tensor in (one for one in config.input if one.allow_ragged_batch or one.optional):
        message = f"{tensor.name} is optional or ragged, and the model takes the whole tensor"
        reader.add(FaultCode.BATCH, at, message, "remove that line", tensor.name)
    backend = BACKENDS[version.request.target].backend
    if config.backend and config.backend != backend:
        hint = f'write backend: "{backend}"'
        reader.add(FaultCode.BACKEND, at, f"the file is not for {config.backend}", hint, "backend")
    if limit > record.interface.batch > 0:
        message = f"max_batch_size is {limit}, the verdict holds up to {record.interface.batch}"
        hint = f"set it to {record.interface.batch}"
        reader.add(FaultCode.BATCH, at, message, hint, "max_batch_size")
    if record.interface.rows_apart is False and limit > 1:
        message = "requests are joined to batches, and a row's result depends on the other rows"
        reader.add(FaultCode.BATCH, at, message, "set max_batch_size to 0", "max_batch_size")


@dataclass(frozen=True)
class _Tensors:
    """The inputs or the outputs of one version, and where faults of them are collected."""

    reader: RepositoryReader
    at: tuple[str, str]
    noun: str

    def add(self, code: FaultCode, message: str, hint: str, place: str) -> None:
        """Add a fault."""
        self.reader.add(code, self.at, message, hint, place)


def _pair_by_position(
    side: _Tensors, declared: Sequence[Any], own: Sequence[ServedTensor]
) -> Iterator[tuple[Any, ServedTensor]]:
    """Yield each declared tensor with that of the file at its position."""
    names, given, noun = [one.name for one in own], [one.name for one in declared], side.noun
    ordered = _by_index(declared)
    if len(ordered) != len(own):
        message = f"the config has {len(ordered)} {noun}s, the file has {len(own)}"
        side.add(FaultCode.TENSOR_NAME, message, f"name all {noun}s in order", noun)
        return
    moved = any(one in names and one != name for one, name in zip(given, names, strict=True))
    if moved and ordered == list(declared):
        message = f"the {noun}s are {', '.join(given)}, in the file {', '.join(names)}"
        hint = "put them in the order of the file: the backend may read them by position"
        side.add(FaultCode.TENSOR_ORDER, message, hint, noun)
    yield from zip(ordered, own, strict=True)


def _pair_by_name(
    side: _Tensors, declared: Sequence[Any], own: Sequence[ServedTensor]
) -> Iterator[tuple[Any, ServedTensor]]:
    """Yield each declared tensor with that of the file of its name."""
    known, given = {one.name: one for one in own}, [one.name for one in declared]
    for tensor in declared if own else ():
        if tensor.name in known:
            yield tensor, known[tensor.name]
        else:
            hint = f"its {side.noun}s are {', '.join(known)}"
            message = f"the file has no {side.noun} {tensor.name!r}"
            side.add(FaultCode.TENSOR_NAME, message, hint, tensor.name)
    for name in known if side.noun == "input" and given else ():
        if name not in given:
            message = f"the input {name!r} of the file is not in the config"
            side.add(FaultCode.TENSOR_NAME, message, "add it", name)


def _by_index(declared: Sequence[Any]) -> list[Any]:
    """Return the tensors as the PyTorch backend orders them: by the number in their names."""
    numbers = [one.name.partition(INDEXED)[2] for one in declared]
    if all(number.isdecimal() for number in numbers):
        return [one for _, one in sorted(zip(map(int, numbers), declared, strict=True),
                                         key=lambda pair: pair[0])]  # fmt: skip
    return list(declared)


def _check_tensor(
    reader: RepositoryReader, at: tuple[str, str], tensor: Any, found: ServedTensor, limit: int
) -> None:
    """Compare the dtype and the dims of one tensor."""
    dtype = type_name(tensor)
    if found.dtype in DTYPES and DTYPES[found.dtype] != dtype:
        message = f"{tensor.name} is {dtype}, in the file {DTYPES[found.dtype]}"
        hint = f"write data_type: {DTYPES[found.dtype]}"
        reader.add(FaultCode.TENSOR_DTYPE, at, message, hint, tensor.name)
    dims = model_dims(tensor, limit)
    if limit > 0 and found.dims and found.dims[0] >= 0:
        message = f"max_batch_size is {limit}, and the first dim of {tensor.name} is fixed"
        reader.add(FaultCode.BATCH, at, message, "set max_batch_size to 0", tensor.name)
    elif not _fits(dims, found.dims):
        shown = f"{list(tensor.dims)}{' after the batch' if limit > 0 else ''}"
        message = f"{tensor.name} has the dims {shown}, in the file {list(found.dims)}"
        hint = "write the dims of the file, -1 for those without a size"
        reader.add(FaultCode.TENSOR_DIMS, at, message, hint, tensor.name)


def _fits(dims: tuple[int, ...], found: tuple[int, ...]) -> bool:
    """Whether the file takes all that the config allows; a scalar may be declared as `[1]`."""
    if not found:
        return dims in ((), (1,), (-1,)) or not dims
    return len(dims) == len(found) and all(
        own in (-1, dim) for dim, own in zip(dims, found, strict=True)
    )


def find_config_difference(place: Path, model: ServedModel, options: ServingOptions) -> str:
    """Return how the interface of a model differs from that of the folder; empty if it does not.

    What an operator may tune is not compared: instances, batching delays, a smaller batch.
    """
    path = place / CONFIG_FILE
    if path.is_symlink() or not path.is_file() or path.stat().st_size > MAX_CONFIG_BYTES:
        return f"{place.name} has no readable {CONFIG_FILE}"
    try:
        there, _ = read_config(path.read_bytes(), str(path))
    except UsageError as error:
        return error.message
    difference = _find_difference(there, make_config(model, options))
    return difference or find_label_difference(place, model.record, there)


def _find_difference(there: Any, new: Any) -> str:
    """Compare the parts of two configurations that clients and backends depend on."""
    batches = bool(there.max_batch_size) == bool(new.max_batch_size)
    if not batches or there.max_batch_size > new.max_batch_size:  # a smaller one may be tuned
        return f"max_batch_size is {there.max_batch_size}, not {new.max_batch_size}"
    for field in ("backend", "platform", "default_model_filename"):
        if getattr(there, field) != getattr(new, field):
            return f"{field} is {getattr(there, field)!r}, not {getattr(new, field)!r}"
    if dict(there.cc_model_filenames) != dict(new.cc_model_filenames):
        return "its engines are for other GPUs"
    for noun, old, given in (
        ("inputs", there.input, new.input), ("outputs", there.output, new.output)
    ):  # fmt: skip
        if _shape_of(old) != _shape_of(given):
            return f"its {noun} have other names, dtypes or dims"
    return ""


def find_label_difference(place: Path, record: PackedVersion, there: Any) -> str:
    """Compare class names: all versions of a model share the file of labels."""
    classes = record.classes
    for one in there.output:
        path = place / one.label_filename
        known = path.is_file() and is_below(path, place)
        if not classes or one.name != record.classes_of or not known:
            continue
        with path.open("rb") as stream:
            names = stream.read(_MAX_LABEL_BYTES).decode(errors="replace").splitlines()
        if names != list(classes):
            return f"{one.label_filename} has other class names"
    return ""


def _shape_of(tensors: Sequence[Any]) -> list[tuple[object, ...]]:
    return [
        (one.name, one.data_type, tuple(one.dims), one.HasField("reshape"),
         tuple(one.reshape.shape))
        for one in tensors
    ]  # fmt: skip
