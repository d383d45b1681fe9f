"""QuantizeLinear and DequantizeLinear as TensorRT's ONNX parser reads them, one node at a time.

The parser asserts that scales are positive and zero points 0, takes a zero point of uint8 for
int8, refuses a DequantizeLinear of uint8, and lets a scale of inf pass (`onnx-tensorrt`,
QuantDequantLinearHelper, 10.x). That scales are constants, one for a tensor or one a channel, and
strictly positive is in IQuantizeLayer's reference:
https://docs.nvidia.com/deeplearning/tensorrt/api/c_api/classnvinfer1_1_1_i_quantize_layer.html
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .findings import Node, Value, domain_of, readers_of

if TYPE_CHECKING:
    import onnx_ir

    from ...core.contract import Array

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
Problem = tuple[str, str]  # what is wrong, and with which value
_DEFAULT_AXIS = 1  # of both operators, from opset 13 on
_TAKEN = ("INT8", "FLOAT8E4M3FN", "INT4", "FLOAT4E2M1")
_DATA, _SCALE, _ZERO = range(3)


def is_quantize(node: Node | None) -> bool:
    """Whether a node is ONNX's QuantizeLinear."""
    return node is not None and node.op_type == QUANTIZE and domain_of(node) == ""


def is_dequantize(node: Node | None) -> bool:
    """Whether a node is ONNX's DequantizeLinear."""
    return node is not None and node.op_type == DEQUANTIZE and domain_of(node) == ""


def constant(value: Value | None) -> onnx_ir.TensorProtocol | None:
    """The tensor behind an initializer or a Constant node; None for what is computed."""
    import onnx_ir

    return None if value is None else onnx_ir.convenience.get_const_tensor(value)


def axis_of(node: Node, rank: int) -> int:
    """The channel axis, counted from the front."""
    axis = node.attributes.get_int("axis", _DEFAULT_AXIS)
    return axis + rank if axis < 0 else axis


def per_channel(node: Node) -> bool:
    """Whether a node has one scale a channel."""
    scale = constant(_input(node, _SCALE))
    return scale is not None and scale.size > 1


def shape_of(value: Value | None) -> tuple[int | None, ...] | None:
    """The sizes of a tensor, None for those that vary; None where nothing is known."""
    tensor = constant(value)
    if tensor is not None:
        return tuple(int(size) for size in tensor.shape.numpy())
    if value is None or value.shape is None:
        return None
    return tuple(size if isinstance(size, int) else None for size in value.shape)


def problems(node: Node) -> Iterator[Problem]:
    """What TensorRT will not take in one Q or DQ, or will take for something else."""
    dtype = quantized_type(node)
    if is_dequantize(node) and dtype == "INT32":
        yield (
            "a bias in int32 behind a DequantizeLinear; TensorRT takes biases in floating point",
            "",
        )
        return  # its scale and zero point are of no account
    if dtype not in _TAKEN:
        yield "a quantized type that is not int8", dtype.lower()
    yield from _scale_problems(node)
    yield from _zero_problems(node)
    yield from _channel_problems(node)
    yield from _link_problems(node)


def quantized_type(node: Node) -> str:
    """The name of the integer type that a node makes or takes.

    Without zero point and `output_dtype` ONNX says uint8, and TensorRT computes int8.
    """
    import onnx_ir

    declared = node.attributes.get_int("output_dtype", 0) if is_quantize(node) else 0
    zero, data = _input(node, _ZERO), _input(node, _DATA)
    candidates = [zero] if is_quantize(node) else [data, zero]
    for value in candidates:
        tensor = constant(value)
        dtype = tensor.dtype if tensor is not None else value.dtype if value is not None else None
        if dtype is not None:
            return dtype.name
    if declared:
        return onnx_ir.DataType(declared).name
    maker = data.producer() if data is not None and not is_quantize(node) else None
    return quantized_type(maker) if maker is not None and is_quantize(maker) else "UINT8"


def _scale_problems(node: Node) -> Iterator[Problem]:
    import numpy as np

    scale = constant(_input(node, _SCALE))
    if scale is None:
        yield "a scale that is computed, not a constant", ""
        return
    values = _floats(scale)
    if not np.isfinite(values).all():
        yield "a scale that is not finite", f"{values[~np.isfinite(values)][0]:g}"
    elif (values <= 0).any():
        yield "a scale that is not positive", f"{values[values <= 0][0]:g}"


def _zero_problems(node: Node) -> Iterator[Problem]:
    value = _input(node, _ZERO)
    if value is None:
        return
    zero = constant(value)
    if zero is None:
        yield "a zero point that is computed, not a constant", ""
        return
    values = _floats(zero)
    if values.any():
        yield (
            "a zero point that is not 0: TensorRT quantizes symmetrically",
            f"{values[values != 0][0]:g}",
        )
    scale = constant(_input(node, _SCALE))
    if scale is not None and scale.size != zero.size:
        yield "as many zero points as scales are needed", f"{zero.size} and {scale.size}"


def _channel_problems(node: Node) -> Iterator[Problem]:
    """One scale a channel is for weights alone, and there are as many as channels."""
    if not per_channel(node):
        return
    if not is_weight(node):
        yield "one scale a channel on an activation; TensorRT takes one for the whole tensor", ""
    shape, scale = shape_of(_input(node, _DATA)), constant(_input(node, _SCALE))
    if shape is None or scale is None or len(scale.shape) != 1:
        return
    axis = axis_of(node, len(shape))
    size = shape[axis] if 0 <= axis < len(shape) else 0
    if size is not None and size != scale.size:
        yield (
            "the scales are not as many as the channels",
            f"{scale.size} for {size} on axis {axis}",
        )


def _link_problems(node: Node) -> Iterator[Problem]:
    """A Q is read by DQs alone; a DQ reads a Q, a constant, or an input of the model."""
    readers = readers_of(node)
    if is_quantize(node):
        others = [reader.op_type for reader in readers if not is_dequantize(reader)]
        if others:
            yield "a QuantizeLinear that something else than a DequantizeLinear reads", others[0]
        elif not readers and not node.outputs[0].is_graph_output():
            yield "a QuantizeLinear that nothing reads", ""
        return
    source = _input(node, _DATA)
    if source is None or source.is_graph_input() or constant(source) is not None:
        return
    maker = source.producer()
    if not is_quantize(maker):
        made = maker.op_type if maker is not None else "nothing"
        yield "a DequantizeLinear of what is neither quantized nor a constant", made


def is_weight(node: Node) -> bool:
    """Whether a Q or DQ is of a constant, through its own Q where it has one."""
    source = _input(node, _DATA)
    if source is None or constant(source) is not None:
        return source is not None
    maker = source.producer()
    return maker is not None and is_quantize(maker) and is_weight(maker)


def _input(node: Node, index: int) -> Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def _floats(tensor: onnx_ir.TensorProtocol) -> Array:
    """The values in one dimension, in a type that numpy computes in."""
    import numpy as np

    found: Array = np.asarray(tensor.numpy()).astype(np.float64).reshape(-1)
    return found
