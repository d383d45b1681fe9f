"""Stores quantized weights as the integers that they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core.contract import Array
from ..onnx_origins import all_nodes
from .wiring import QUANTIZE, WITH_ZERO, GraphWiring, int_attribute, tensor_values

if TYPE_CHECKING:
    import onnx


def fold_weights(model: onnx.ModelProto) -> int:
    """Carry out each QuantizeLinear of a constant; how many there were.

    ModelOpt leaves weights in floats before a Q and a DQ, which TensorRT asks for. For others that
    is four times the bytes, and OpenVINO keeps them in its IR.
    """
    from onnx import numpy_helper

    wiring = GraphWiring(model.graph)
    folded = [
        node
        for node in model.graph.node
        if node.op_type == QUANTIZE
        and len(node.input) == WITH_ZERO
        and all(name in wiring.constants for name in node.input)
    ]
    unread = {name for node in folded for name in node.input[:1]}
    for node in folded:
        array = _quantize(node, *(tensor_values(wiring.constants[name]) for name in node.input))
        model.graph.initializer.append(numpy_helper.from_array(array, node.output[0]))
        model.graph.node.remove(node)
    unread -= {name for node in all_nodes(model.graph) for name in node.input}
    unread -= {value.name for value in model.graph.output}
    for index in reversed(range(len(model.graph.initializer))):
        if model.graph.initializer[index].name in unread:
            del model.graph.initializer[index]
    return len(folded)


def _quantize(node: onnx.NodeProto, weights: Array, scale: Array, zero: Array) -> Array:
    """As ONNX defines it: rounded to even, saturated; along `axis` where there are many scales."""
    import numpy as np

    shape = [1] * weights.ndim
    if scale.size > 1:
        shape[int_attribute(node, "axis", 1)] = scale.size
    limits = np.iinfo(zero.dtype)
    steps = np.rint(weights / scale.reshape(shape)) + zero.reshape(shape)
    found: Array = np.clip(steps, limits.min, limits.max).astype(zero.dtype)
    return found
