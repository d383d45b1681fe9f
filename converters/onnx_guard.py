"""Check the tensors and paths of an untrusted ONNX file, and list its weight files."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import ConversionError, ErrorCode, RunnerError
from ..core.untrusted_files import is_path_inside
from .onnx_topology import all_graphs, load_model, model_graphs, model_nodes
from .runner_base import runner_error

if TYPE_CHECKING:
    import onnx

_BITS = {
    1: 32, 2: 8, 3: 8, 4: 16, 5: 16, 6: 32, 7: 64, 8: 0, 9: 8, 10: 16, 11: 64, 12: 32, 13: 64,
    14: 64, 15: 128, 16: 16, 17: 8, 18: 8, 19: 8, 20: 8, 21: 4, 22: 4, 23: 4, 24: 8, 25: 2, 26: 2,
}  # fmt: skip  # of an element, by TensorProto.DataType; a text may be empty
_SHOWN = 60  # characters of a name


def read_graph(path: Path) -> onnx.ModelProto:
    """Read a model without its external weights, and check that every tensor has its bytes.

    Raises:
        RunnerError: it cannot be read, or declares impossible sizes or offsets.
    """
    import onnx

    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as error:
        raise runner_error("onnx", error) from error
    if not _is_utf8(model):
        raise RunnerError(
            f"{path.name} is corrupt: it contains a name that is not UTF-8", hint="export it again"
        )
    check_tensors(model, path)
    return model


def _is_utf8(model: onnx.ModelProto) -> bool:
    """Return whether all names are UTF-8: protobuf silently returns others as bytes."""
    for graph in all_graphs(model.graph):
        values = (*graph.input, *graph.output, *graph.value_info, *graph.initializer)
        if not all(isinstance(one.name, str) for one in (graph, *values)):
            return False
        for node in graph.node:
            names = (node.name, node.op_type, node.domain, *node.input, *node.output)
            if not all(isinstance(name, str) for name in names):
                return False
    texts = [text for entry in model.metadata_props for text in (entry.key, entry.value)]
    texts += [model.producer_name, model.producer_version, *(o.domain for o in model.opset_import)]
    dims = [d.dim_param for v in (*model.graph.input, *model.graph.output)
            for d in v.type.tensor_type.shape.dim]  # fmt: skip
    return all(isinstance(text, str) for text in (*texts, *dims))


def check_tensors(model: onnx.ModelProto, path: Path) -> None:
    """Reject a model with tensors larger than their data, or data outside its folder.

    Args:
        model: as read from `path`, without its external weights.
        path: the file; external weights are beside it, or beside the file that it links to.

    Raises:
        RunnerError: there is such a tensor; the message names it.
    """
    for tensor in all_tensors(model):
        fault = _tensor_fault(tensor, path)
        if fault:
            raise RunnerError(
                f"{path.name} is corrupt: tensor {tensor.name[:_SHOWN]!r} {fault}",
                hint="copy it again with its weights beside it, or export it again",
            )


def all_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield every tensor of the graph, of node bodies and of functions."""
    for graph in model_graphs(model):
        yield from graph.initializer
        for sparse in graph.sparse_initializer:
            yield from (sparse.values, sparse.indices)
    for attribute in (one for node in model_nodes(model) for one in node.attribute):
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
            yield from (sparse.values, sparse.indices)


def _tensor_fault(tensor: onnx.TensorProto, path: Path) -> str:
    """Return what is wrong with a tensor; empty if nothing."""
    dims = tuple(tensor.dims)
    if min(dims, default=0) < 0:
        return f"has the sizes {dims}"
    needed = (math.prod(dims) * _BITS.get(tensor.data_type, 0) + 7) // 8
    if tensor.data_location == 1:  # EXTERNAL
        return _external_fault(tensor, path, needed)
    if not tensor.HasField("raw_data"):  # one number per field, each at least one byte
        needed = math.prod(dims) if tensor.ByteSize() else 0
    if needed > tensor.ByteSize():
        return f"needs {needed} bytes and has {tensor.ByteSize()}"
    return ""


def _external_fault(tensor: onnx.TensorProto, path: Path, needed: int) -> str:
    """Return what is wrong with a tensor in an external file; empty if nothing."""
    location = {entry.key: entry.value for entry in tensor.external_data}
    name = location.get("location", "")
    if not isinstance(name, str):
        return "lies in a file whose name is not UTF-8"
    try:
        offset, length = int(location.get("offset") or 0), int(location.get("length") or needed)
    except ValueError:
        return (
            f"has offset {location.get('offset')!r:.40} and length {location.get('length')!r:.40}"
        )
    if fault := external_path_fault(path, name):
        return fault
    if not needed:
        return ""
    place = external_path(path, name)
    held = place.stat().st_size if place.is_file() else 0
    if offset < 0 or length < 0 or offset + length > held:
        return f"lies at {offset} to {offset + length} of {name[:_SHOWN]!r}, which has {held} bytes"
    return f"needs {needed} bytes, and has {length}" if length < needed else ""


def external_path_fault(path: Path, name: str) -> str:
    """Return why external weights must not be read from `name`; empty if they may.

    A link may lead beside the model, or beside the file that the model links to, as in snapshots of
    the Hugging Face hub.
    """
    outside = f"keeps weights outside its folder: {name[:_SHOWN]!r}"
    if not is_path_inside(name):
        return outside
    folders = (path.parent.resolve(), path.resolve().parent)
    real = external_path(path, name).resolve()
    return "" if any(real.is_relative_to(folder) for folder in folders) else outside


def external_path(path: Path, name: str) -> Path:
    """Return the file of that name beside the model, or beside the file that the model links to."""
    near = path.parent / name
    return near if near.is_file() else path.resolve().parent / name


def external_place(tensor: onnx.TensorProto, path: Path) -> tuple[Path, int, int]:
    """Return the file, the offset and the length of an external tensor of the model at `path`."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    file, offset = external_path(path, entries["location"]), int(entries.get("offset") or 0)
    length = entries.get("length") or None
    return file, offset, file.stat().st_size - offset if length is None else int(length)


def list_model_files(path: Path) -> tuple[Path, ...]:
    """Return the model file, then its external weight files.

    Raises:
        ConversionError: the model cannot be read, or names files outside its folder.
    """
    if path.suffix == ".onnx":
        model = load_model(path)
        names = _external_names(all_tensors(model), path)
        return (path, *(external_path(path, name) for name in names))
    weights = path.with_suffix(".bin")
    return (path, weights) if weights.is_file() else (path,)


def _external_names(tensors: Iterable[onnx.TensorProto], path: Path) -> tuple[str, ...]:
    """Return the names of the files with the external tensors of the model read from `path`.

    Raises:
        ConversionError: a name or link leads out of the model's folder.
    """
    names = dict.fromkeys(
        entry.value
        for tensor in tensors
        for entry in tensor.external_data
        if entry.key == "location"
    )
    for name in names:
        if fault := external_path_fault(path, name):
            raise ConversionError(
                f"the model {fault}",
                hint="save it with its weight files, not links, beside it",
                code=ErrorCode.UNSAFE_PATH,
            )
    return tuple(names)


def external_bytes(model: onnx.ModelProto, path: Path) -> int:
    """Return the bytes of the external weight files of the model read from `path`.

    Raises:
        ConversionError: a name or link leads out of the model's folder.
    """
    files = [external_path(path, name) for name in _external_names(all_tensors(model), path)]
    return sum(file.stat().st_size for file in files if file.is_file())


def copy_external_weights(
    model: onnx.ModelProto, path: Path, folder: Path, *, link: bool = False
) -> tuple[str, ...]:
    """Copy the external weight files of the model read from `path`; return their names.

    With `link`, they are linked if the disk can: nothing may write to them then.

    Raises:
        ConversionError: a file is missing, or lies outside the model's folder.
    """
    names = _external_names(all_tensors(model), path)
    for name in names:
        source = external_path(path, name)
        if not source.is_file():
            raise ConversionError(
                f"the weights of {path.name} are in {name!r}, which is not beside it",
                hint="copy that file too",
                code=ErrorCode.NOT_FOUND,
            )
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if not (link and _try_link(source, folder / name)):
            shutil.copyfile(source, folder / name)
    return names


def _try_link(source: Path, copy: Path) -> bool:
    try:
        copy.hardlink_to(source.resolve())
    except OSError:
        return False
    return True
