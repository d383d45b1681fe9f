"""Write ONNX files with metadata, and keep large weights once beside the graph."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..capture.framework_errors import call_framework
from ..core.contract import Array
from .onnx_guard import all_tensors, external_place, list_model_files, read_graph
from .onnx_origins import debug_sidecar_path
from .onnx_topology import all_nodes, constant_values, load_model
from .runner_base import runner_error

if TYPE_CHECKING:
    import onnx
    import onnx_ir
    from onnxruntime import SessionOptions

PROTOBUF_LIMIT = 2**30  # bytes of weights in the file itself: it is read and written whole
FILE_LIMIT = 2**32 - 1  # bytes of weights in a file, unless one has more: as FAT32 has it
_METADATA_PREFIX = "modelc."
_DECLARED = "meta"  # the key of the metadata's JSON
# Keys by which other tools find the licence (ONNX's IR.md) and the class names (Ultralytics'
# loaders: a Python dict as text).
_LICENSE, _NAMES = "model_license", "names"


def save_model(
    model: onnx_ir.Model, path: Path, *, external_data: bool = False
) -> tuple[tuple[str, str], ...]:
    """Write the model; weights go to `<name>.onnx.data` if one protobuf is too small for them.

    So they do on request, and if some of them are in a file already, as those of a large parent.
    Beyond the limit of a file they go to several: `<name>-00001-of-00003.onnx.data` and so on.

    Returns:
        the file names with their roles, model first.

    Raises:
        ConversionError: the writer rejected the model.
    """
    import onnx_ir

    found = [value.const_value for value in model.graph.initializers.values()]
    apart = any(isinstance(tensor, onnx_ir.ExternalTensor) for tensor in found)
    total = sum(tensor.nbytes for tensor in found if tensor is not None)
    external = f"{path.name}.data" if external_data or total > PROTOBUF_LIMIT or apart else None
    most = FILE_LIMIT if external is not None and total > FILE_LIMIT else None
    call_framework(
        "the ONNX writer",
        lambda: onnx_ir.save(model, path, external_data=external, max_shard_size_bytes=most),
    )
    if external is None:
        return ((path.name, "model"),)
    files = name_files(path)
    if len(files) == 1:  # all weights are so small that they are in the model
        path.with_name(external).unlink(missing_ok=True)
    return files


def name_files(path: Path) -> tuple[tuple[str, str], ...]:
    """Return the file names of a model with their roles, model first."""
    return ((path.name, "model"), *((one.name, "data") for one in list_model_files(path)[1:]))


def check_model(path: Path) -> None:
    """Run ONNX's checker with strict shape inference; inputs stand in for large weights.

    Raises:
        ConversionError: the model is not valid ONNX.
    """
    import onnx

    model = load_model(path)
    slim = weights_as_inputs(model)
    call_framework("the ONNX checker", lambda: onnx.checker.check_model(slim, full_check=True))


def set_metadata(model: onnx_ir.Model, metadata: Mapping[str, str]) -> None:
    """Write `modelc.*` metadata, replacing what the model inherited from its parent.

    So are the keys of other tools, where modelc wrote them; those of a stranger's model stay.
    """
    inherited = tuple(model.metadata_props)
    ours = (_LICENSE, _NAMES) if f"{_METADATA_PREFIX}{_DECLARED}" in inherited else ()
    for key in inherited:
        if key.startswith(_METADATA_PREFIX) or key in ours:
            del model.metadata_props[key]
    model.metadata_props.update(_properties_of_others(metadata))
    model.metadata_props.update(
        {f"{_METADATA_PREFIX}{key}": value for key, value in metadata.items()}
    )


def _properties_of_others(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return the entries of `metadata_props` that other tools read."""
    declared = json.loads(metadata.get(_DECLARED) or "{}")
    names = dict(enumerate(declared.get("classes", ())))
    found = {_LICENSE: declared.get("license", ""), _NAMES: str(names) if names else ""}
    return {key: text for key, text in found.items() if text}


def read_onnx_metadata(path: Path) -> dict[str, str]:
    """Read the `modelc.*` metadata of a model without its external weights.

    Raises:
        RunnerError: the file cannot be read.
    """
    import onnx

    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as error:
        raise runner_error("onnx", error) from error
    found = {entry.key: entry.value for entry in model.metadata_props}
    return {
        k.removeprefix(_METADATA_PREFIX): v
        for k, v in found.items()
        if k.startswith(_METADATA_PREFIX)
    }


def float_weights(path: Path) -> Iterator[Array]:
    """Yield the float32 tensors of a model: initializers and Constant nodes, including sub-graphs.

    Raises:
        RunnerError: the file cannot be read.
    """
    import onnx

    model = read_graph(path)
    for tensor in all_tensors(model):
        if tensor.data_type != onnx.TensorProto.FLOAT:
            continue
        try:
            yield read_values(tensor, path)
        except (OSError, ValueError) as error:
            raise runner_error("onnx", error) from error


def read_values(tensor: onnx.TensorProto, path: Path) -> Array:
    """Return the values of a tensor of the model; external data is memory-mapped.

    ONNX's own helper would accumulate all values that it reads in the model.
    """
    import numpy as np
    import onnx

    shape = tuple(tensor.dims)
    dtype = _DTYPES.get(tensor.data_type)
    if tensor.data_location != onnx.TensorProto.EXTERNAL or 0 in shape or dtype is None:
        return constant_values(tensor, path.parent)
    file, offset, _ = external_place(tensor, path)  # `read_graph` checked that it is beside
    return np.memmap(file, dtype, "r", offset, shape)


def copy_sidecar(parent: Path, path: Path) -> tuple[tuple[str, str], ...]:
    """Copy the parent's debug sidecar beside `path`, if the parent has one."""
    source, copy = debug_sidecar_path(parent), debug_sidecar_path(path)
    if not source.is_file():
        return ()
    shutil.copyfile(source, copy)
    return ((copy.name, "debug"),)


_MIN_BYTES = 4096  # bytes: shape inference reads small constants, so they stay
_ALIGNED = 64  # bytes: a cache line, more than any vector load of a kernel requires
_DTYPES = {1: "float32", 2: "uint8", 3: "int8", 10: "float16", 11: "float64"}  # by TensorProto code
_LOCATION = "held in memory"  # the location of tensors whose values are passed to the session


@dataclass(frozen=True, kw_only=True)
class WeightStore:
    """Weights by name; sessions read them in place, so this object must outlive them."""

    arrays: dict[str, Array] = field(default_factory=dict)

    def give(self, options: SessionOptions, graph: onnx.GraphProto) -> None:
        """Pass the weights to a session of the graph without a copy.

        Omits unused weights: ONNX Runtime drops their initializers before it looks them up.
        """
        from onnxruntime import OrtValue

        read = {name for node in all_nodes(graph) for name in node.input}
        read |= {value.name for value in graph.output}
        names = [one.name for one in graph.initializer if one.name in read & self.arrays.keys()]
        if names:
            values = [OrtValue.ortvalue_from_numpy(self.arrays[name]) for name in names]
            options.add_external_initializers(names, values)

    def put_back(self, graph: onnx.GraphProto) -> None:
        """Write the weights into the graph's own initializers."""
        from onnx import numpy_helper

        for tensor in graph.initializer:
            if tensor.name in self.arrays:
                whole = numpy_helper.from_array(self.arrays[tensor.name], tensor.name)
                tensor.CopyFrom(whole)


def detach_weights(model: onnx.ModelProto) -> tuple[onnx.ModelProto, WeightStore]:
    """Remove the values of large weights; return the model and the weights, and empty `model`.

    External weights stay in their file: ONNX Runtime memory-maps it.
    """
    import onnx

    held = WeightStore()
    for tensor in model.graph.initializer:
        if tensor.data_type not in _DTYPES or len(tensor.raw_data) < _MIN_BYTES:
            continue
        held.arrays[tensor.name] = _align_values(tensor)
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=_LOCATION)
    slim = onnx.ModelProto()
    slim.CopyFrom(model)  # protobuf frees cleared memory only with the whole message
    return slim, held


def weights_as_inputs(model: onnx.ModelProto) -> onnx.ModelProto:
    """Replace large weights by inputs of the same type; empties `model`.

    ONNX's checker and shape inference serialise a whole model and parse it again.
    """
    import onnx
    from onnx import helper

    slim, _ = detach_weights(model)
    known = {value.name for value in slim.graph.input}
    small = []
    for tensor in slim.graph.initializer:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            small.append(tensor)
        elif tensor.name not in known:
            value = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            slim.graph.input.append(value)
    del slim.graph.initializer[:]
    slim.graph.initializer.extend(small)
    return slim


def _align_values(tensor: onnx.TensorProto) -> Array:
    """Copy the values to an address that is a multiple of 64 bytes."""
    import numpy as np

    raw = np.frombuffer(tensor.raw_data, np.uint8)
    room = np.empty(raw.size + _ALIGNED, np.uint8)
    start = -room.ctypes.data % _ALIGNED
    place = room[start : start + raw.size]
    place[:] = raw
    return place.view(_DTYPES[tensor.data_type]).reshape(tuple(tensor.dims))
