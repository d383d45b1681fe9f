"""Weights of an ONNX model held once, beside the graph, for every session of its parts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..core.contract import Array
from .onnx_origins import all_nodes

if TYPE_CHECKING:
    import onnx
    from onnxruntime import SessionOptions

_MIN_BYTES = 4096  # bytes: shapes and other small constants stay, shape inference reads them
_ALIGNED = 64  # bytes: a cache line, and more than any vector load of a kernel asks for
_DTYPES = {1: "float32", 2: "uint8", 3: "int8", 10: "float16", 11: "float64"}  # by TensorProto code
_LOCATION = "held in memory"  # the place that a tensor names whose values are given to the session


@dataclass(frozen=True, kw_only=True)
class WeightStore:
    """Weights by name; sessions read them where they lie, so this must outlive them."""

    arrays: dict[str, Array] = field(default_factory=dict)

    def give(self, options: SessionOptions, graph: onnx.GraphProto) -> None:
        """Let a session of the graph use the weights where they lie.

        Those that nothing reads are left out: ONNX Runtime drops them before it looks for them.
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
    """The model without the values of its large weights, and these; the given one is emptied.

    Weights in a file of their own stay there: ONNX Runtime maps it.
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
    slim.CopyFrom(model)  # what was cleared is only given back with the whole message
    return slim, held


def weights_as_inputs(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with inputs of the same type for its large weights; the given one is emptied.

    ONNX's checker and shape inference write a whole model into bytes, and read it again.
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
    """A copy of the values that begins at a multiple of 64 bytes."""
    import numpy as np

    raw = np.frombuffer(tensor.raw_data, np.uint8)
    room = np.empty(raw.size + _ALIGNED, np.uint8)
    start = -room.ctypes.data % _ALIGNED
    place = room[start : start + raw.size]
    place[:] = raw
    return place.view(_DTYPES[tensor.data_type]).reshape(tuple(tensor.dims))
