"""The biases of a Q/DQ model: corrected for what rounding shifts, and as int32 for ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...core.contract import Array
from ..onnx_topology import (
    DEQUANTIZE,
    PRODUCTS,
    QUANTIZE,
    WITH_ZERO,
    GraphWiring,
    all_nodes,
    constant_values,
    int_attribute,
)
from .quantization_checks import ChannelMeans

if TYPE_CHECKING:
    import onnx

_MAX_BIAS = 2**31 - 1
_MATRIX = 2  # number of dims


def quantize_biases(model: onnx.ModelProto) -> int:
    """Make the float bias of each integer product int32, in the steps of its products.

    ONNX Runtime 1.24 fuses MatMul and Add to Gemm before it looks for integer kernels, and has one
    for a Gemm or Conv only if the bias is int32 with the product of both scales: else it
    dequantizes the weights in every run. BERT-base was so 17 times slower.

    Returns:
        the number of biases; those that int32 cannot hold stay float.
    """
    wiring = GraphWiring(model.graph)
    count = 0
    for node in list(model.graph.node):
        found = _find_float_bias(node, wiring)
        scale = None if found is None else _product_scale(node, wiring)
        if found is None or scale is None:
            continue
        reader, place = found
        bias = constant_values(wiring.constants[reader.input[place]]).astype("float64")
        if scale.size in (1, bias.size) and _replace_bias(model.graph, reader, place, bias, scale):
            count += 1
    drop_unread(model)
    return count


def _find_float_bias(
    node: onnx.NodeProto, wiring: GraphWiring
) -> tuple[onnx.NodeProto, int] | None:
    """Return the node that adds the bias of a product, and the place of the bias in its inputs."""
    if node.op_type not in ("Conv", "Gemm", "MatMul"):
        return None
    given = {attribute.name: attribute.f for attribute in node.attribute}
    name, reader = _find_bias(node, wiring), node
    if name is None or given.get("alpha", 1.0) != 1 or given.get("beta", 1.0) != 1:
        return None
    if node.op_type == "MatMul":
        (reader,) = wiring.readers[node.output[0]]
    constant = wiring.constants.get(name)
    if constant is None or constant.data_type != constant.FLOAT or len(constant.dims) != 1:
        return None
    return reader, list(reader.input).index(name)


def _product_scale(node: onnx.NodeProto, wiring: GraphWiring) -> Array | None:
    """Return the product of the scales of data and weights, one or one for each output channel."""
    scales = []
    for name in node.input[:2]:
        dequantize = wiring.producer_if(name, DEQUANTIZE)
        scale = None if dequantize is None else wiring.constants.get(dequantize.input[1])
        if dequantize is None or scale is None:
            return None
        scales.append(constant_values(scale).astype("float64").reshape(-1))
    weights = wiring.producer_if(node.input[1], DEQUANTIZE)
    if weights is None or weights.input[0] not in wiring.constants or scales[0].size != 1:
        return None
    by_row = node.op_type == "Conv" or int_attribute(node, "transB", 0)
    rank = len(wiring.constants[weights.input[0]].dims)
    axis = int_attribute(weights, "axis", 1) % max(rank, 1)
    if scales[1].size > 1 and (
        axis != (0 if by_row else rank - 1)
        or len(weights.input) < WITH_ZERO  # its kernels want a zero point for each scale
    ):
        return None
    product: Array = scales[0] * scales[1]
    return product


def _replace_bias(
    graph: onnx.GraphProto, reader: onnx.NodeProto, place: int, bias: Array, scale: Array
) -> bool:
    """Let a node read the bias from int32; False if int32 cannot hold it."""
    import numpy as np
    from onnx import helper, numpy_helper

    steps = np.rint(bias / np.where(scale > 0, scale, np.nan))
    if not np.all(np.abs(steps) <= _MAX_BIAS):
        return False
    stem = f"{reader.output[0]}::bias"  # unique: two nodes may still have one name
    names = [f"{stem}::{part}" for part in ("quantized", "scale", "zero_point")]
    shape = scale.shape if scale.size > 1 else ()
    arrays = (
        steps.astype(np.int32), scale.astype(np.float32).reshape(shape), np.zeros(shape, np.int32),
    )  # fmt: skip
    graph.initializer.extend(map(numpy_helper.from_array, arrays, names))
    made = helper.make_node(DEQUANTIZE, names, [f"{stem}::dequantized"], name=stem)
    if shape:
        made.attribute.append(helper.make_attribute("axis", 0))
    graph.node.append(made)  # the nodes are sorted afterwards
    reader.input[place] = made.output[0]
    return True


def drop_unread(model: onnx.ModelProto) -> None:
    """Remove the initializers that no node reads and that are no outputs."""
    read = {name for node in all_nodes(model.graph) for name in node.input}
    read |= {value.name for value in model.graph.output}
    for index in reversed(range(len(model.graph.initializer))):
        if model.graph.initializer[index].name not in read:
            del model.graph.initializer[index]


def correct_biases(
    quantized: onnx.ModelProto, parent: onnx.ModelProto, means: Mapping[str, ChannelMeans]
) -> int:
    """Correct the biases of `quantized` in place; return their number.

    Skips products without a bias, and biases that several products share.

    Args:
        quantized: a Q/DQ model with its weights in memory.
        parent: the float model with the same node names.
        means: by product of the parent: the mean of its input, by input channel.
    """
    original = {node.name: node for node in parent.graph.node if node.op_type in PRODUCTS}
    weights = {tensor.name: tensor for tensor in parent.graph.initializer}
    wiring = GraphWiring(quantized.graph)
    count = 0
    for node in quantized.graph.node:
        float_node = original.get(node.name)
        if float_node is None or node.name not in means:
            continue
        rounded = _dequantize_weights(node.input[1], wiring)
        bias = _find_bias(node, wiring)
        if rounded is None or bias is None or float_node.input[1] not in weights:
            continue
        mean = means[node.name]
        held = constant_values(weights[float_node.input[1]]).astype("float64")
        exact = _mean_output(node, held, mean.exact, mean.spatial)
        found = _mean_output(node, rounded, mean.rounded, mean.spatial)
        if exact is not None and found is not None:
            count += _add_to_bias(bias, exact - found, wiring)
    return count


def _mean_output(
    node: onnx.NodeProto, weights: Array, mean: Array, spatial: tuple[int, ...]
) -> Array | None:
    """Return the mean output without the bias, by output channel; None if unsupported."""
    import numpy as np

    product: Array | None = None
    if node.op_type == "Conv":
        groups = int_attribute(node, "group", 1)
        shares = _tap_shares(node, weights.shape[2:], spatial)
        if shares is None or mean.size != groups * weights.shape[1]:
            return None
        by_channel = (weights * shares).reshape(*weights.shape[:2], -1).sum(axis=-1)
        rows = by_channel.reshape(groups, -1, by_channel.shape[1])
        product = np.einsum("goi,gi->go", rows, mean.reshape(groups, -1)).reshape(-1)
    elif mean.size not in weights.shape:
        return None
    elif node.op_type == "Gemm" and not int_attribute(node, "transA", 0):
        alpha = next((a.f for a in node.attribute if a.name == "alpha"), 1.0)
        product = alpha * (weights @ mean if int_attribute(node, "transB", 0) else mean @ weights)
    elif node.op_type == "MatMul" and weights.ndim == _MATRIX:
        product = mean @ weights
    return product


def _tap_shares(
    node: onnx.NodeProto, kernel: tuple[int, ...], spatial: tuple[int, ...]
) -> Array | None:
    """Return, for each tap of a kernel, the share of outputs at which it lies within the image.

    Padding holds zeros, not the mean; beside a large kernel on a small image it dominates.
    """
    import numpy as np

    given = {attribute.name: attribute for attribute in node.attribute}
    rank = len(kernel)
    if len(spatial) != rank or ("auto_pad" in given and given["auto_pad"].s != b"NOTSET"):
        return None

    def int_list(name: str, default: int, count: int) -> list[int]:
        return list(given[name].ints) if name in given else [default] * count

    strides, dilations = int_list("strides", 1, rank), int_list("dilations", 1, rank)
    pads = int_list("pads", 0, 2 * rank)
    shares = np.ones(kernel)
    for axis in range(rank):
        size, taps = spatial[axis], np.arange(kernel[axis]) * dilations[axis]
        last = size + pads[axis] + pads[axis + rank] - int(taps[-1]) - 1
        starts = np.arange(last // strides[axis] + 1) * strides[axis] - pads[axis]
        places = starts[:, None] + taps[None]
        within = ((places >= 0) & (places < size)).mean(axis=0)
        shares *= within.reshape([-1 if other == axis else 1 for other in range(rank)])
    return shares


def _find_bias(node: onnx.NodeProto, wiring: GraphWiring) -> str | None:
    """Return the addend of a product: its third input, or the constant of a following Add."""
    if node.op_type != "MatMul":
        return next((str(name) for name in node.input[2:] if name), None)
    readers = wiring.readers.get(node.output[0], ())
    if len(readers) != 1 or readers[0].op_type != "Add":
        return None
    (other,) = [name for name in readers[0].input if name != node.output[0]] or [""]
    return other or None


def _add_to_bias(bias: str, shift: Array, wiring: GraphWiring) -> bool:
    """Add to a float bias, or to the integers of a quantized one."""
    import numpy as np
    from onnx import numpy_helper

    node = wiring.producer_if(bias, DEQUANTIZE)
    place = node.input[0] if node is not None else bias
    constant = wiring.constants.get(place)
    if constant is None or len(wiring.readers[place]) != 1 or len(wiring.readers[bias]) != 1:
        return False
    old = constant_values(constant)
    if old.size != shift.size or old.shape[-1:] != shift.shape:
        return False
    if node is None:
        new = old + shift.reshape(old.shape)
    else:
        steps = np.round(
            shift / constant_values(wiring.constants[node.input[1]]).astype(np.float64)
        )
        limits = np.iinfo(old.dtype)
        new = np.clip(old + steps.reshape(old.shape), limits.min, limits.max)
    constant.CopyFrom(numpy_helper.from_array(new.astype(old.dtype), constant.name))
    return True


def _dequantize_weights(name: str, wiring: GraphWiring) -> Array | None:
    """Return the weights that the quantized model computes with; None if not quantized."""
    import numpy as np

    node = wiring.producer_if(name, DEQUANTIZE)
    if node is None:
        return None
    given = wiring.producer_if(node.input[0], QUANTIZE)
    source = wiring.constants.get(given.input[0] if given is not None else node.input[0])
    if source is None or len(node.input) < WITH_ZERO:
        return None
    scale, zero = (constant_values(wiring.constants[name]) for name in node.input[1:3])
    scale = scale.astype(np.float64)
    stored = constant_values(source).astype(np.float64)
    if given is not None:
        stored = quantize_weights(node, stored, scale, zero).astype(np.float64)
    offset = _broadcast_scale(zero, node, stored.ndim).astype(np.float64)
    found: Array = (stored - offset) * _broadcast_scale(scale, node, stored.ndim)
    return found


def quantize_weights(node: onnx.NodeProto, weights: Array, scale: Array, zero: Array) -> Array:
    """Quantize as ONNX defines it: round to even, saturate; along `axis` for several scales."""
    import numpy as np

    limits = np.iinfo(zero.dtype)
    steps = np.rint(weights / _broadcast_scale(scale, node, weights.ndim))
    steps = steps + _broadcast_scale(zero, node, weights.ndim)
    found: Array = np.clip(steps, limits.min, limits.max).astype(zero.dtype)
    return found


def _broadcast_scale(array: Array, node: onnx.NodeProto, rank: int) -> Array:
    """Reshape a scale or zero point to broadcast along its axis."""
    if array.size == 1:
        return array.reshape(())
    shape = [1] * rank
    shape[int_attribute(node, "axis", 1)] = array.size
    return array.reshape(shape)
