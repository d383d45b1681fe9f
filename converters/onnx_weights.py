"""Weights of an ONNX model held once, beside the graph, for every session of its parts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..core.contract import Array

if TYPE_CHECKING:
    import onnx
    import onnxruntime

_LEAST = 4096  # bytes: shapes and other small constants stay, shape inference reads them
_ALIGNED = 64  # bytes: a cache line, and more than any vector load of a kernel asks for
_DTYPES = {1: "float32", 2: "uint8", 3: "int8", 10: "float16", 11: "float64"}  # by TensorProto code
_LOCATION = "held in memory"  # the place that a tensor names whose values are given to the session


@dataclass(frozen=True, kw_only=True)
class Held:
    """Weights by name: their arrays, and the same memory as ONNX Runtime takes it."""

    arrays: dict[str, Array] = field(default_factory=dict)
    values: dict[str, onnxruntime.OrtValue] = field(default_factory=dict)

    def give(
        self, options: onnxruntime.SessionOptions, tensors: Iterable[onnx.TensorProto]
    ) -> None:
        """Let a session of a model with these initializers use the weights where they lie."""
        names = [tensor.name for tensor in tensors if tensor.name in self.values]
        if names:
            options.add_external_initializers(names, [self.values[name] for name in names])

    def put_back(self, graph: onnx.GraphProto) -> None:
        """Write the weights into the graph's own initializers."""
        from onnx import numpy_helper

        for tensor in graph.initializer:
            if tensor.name in self.arrays:
                whole = numpy_helper.from_array(self.arrays[tensor.name], tensor.name)
                tensor.CopyFrom(whole)


def apart(model: onnx.ModelProto) -> tuple[onnx.ModelProto, Held]:
    """The model without the values of its large weights, and these; the given one is emptied.

    Weights in a file of their own stay there: ONNX Runtime maps it.
    """
    import onnx
    import onnxruntime

    held = Held()
    for tensor in model.graph.initializer:
        if tensor.data_type not in _DTYPES or len(tensor.raw_data) < _LEAST:
            continue
        array = _aligned(tensor)
        held.arrays[tensor.name] = array
        held.values[tensor.name] = onnxruntime.OrtValue.ortvalue_from_numpy(array)
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=_LOCATION)
    slim = onnx.ModelProto()
    slim.CopyFrom(model)  # what was cleared is only given back with the whole message
    return slim, held


def _aligned(tensor: onnx.TensorProto) -> Array:
    """A copy of the values that begins at a multiple of 64 bytes."""
    import numpy as np

    raw = np.frombuffer(tensor.raw_data, np.uint8)
    room = np.empty(raw.size + _ALIGNED, np.uint8)
    start = -room.ctypes.data % _ALIGNED
    place = room[start : start + raw.size]
    place[:] = raw
    return place.view(_DTYPES[tensor.data_type]).reshape(tuple(tensor.dims))
