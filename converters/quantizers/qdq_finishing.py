"""The last steps on every Q/DQ model: bias correction, folding of weights, checks and saving."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...capture.framework_errors import call_framework
from ...core.contract import Array, Quantized, QuantizeJob
from ...core.kinds import Precision
from ..installed_packages import package_versions
from ..onnx_topology import (
    DEQUANTIZE,
    PRODUCTS,
    QUANTIZE,
    WITH_ZERO,
    GraphWiring,
    all_nodes,
    constant_values,
    int_attribute,
    sort_nodes,
)
from .quantization_checks import ActivationStats, ChannelMeans, check_quantized
from .quantizer_workspace import QuantizerWorkspace, make_names_unique

if TYPE_CHECKING:
    import onnx

_NAME = "model.onnx"
_FLOAT_WEIGHTS = "tensorrt-onnx"  # TensorRT reads float weights before a Q and a DQ


@dataclass(frozen=True, kw_only=True)
class QuantizedBy:
    """How a Q/DQ model was made; `lost` are the nodes that 8 bits would have destroyed."""

    quantizer: str
    packages: tuple[str, ...]
    method: str
    lost: Collection[str] = ()
    activations: str = "int8 symmetric"
    weights: str = "int8 per channel"


def finish_model(
    model: onnx.ModelProto,
    job: QuantizeJob,
    place: QuantizerWorkspace,
    activations: ActivationStats,
    origin: QuantizedBy,
) -> Quantized:
    """Correct, check and save `model` in place; clear the workspace.

    Raises:
        ConversionError: nothing is quantized, or a scale cannot be right.
    """
    import onnx

    parent = place.load()
    corrected = call_framework(
        "bias correction", lambda: correct_biases(model, parent, activations.means)
    )
    _restore_shapes(model.graph, parent.graph)
    weights_only = job.precision is Precision.INT4
    products = check_quantized(
        model, activations.useful, weights_only=weights_only, kept=bool(job.keep)
    )
    if job.consumer != _FLOAT_WEIGHTS:
        fold_weights(model)
    make_names_unique(model.graph)
    sort_nodes(model.graph)
    path = job.folder / _NAME
    data = f"{_NAME}.data"
    call_framework(
        "the ONNX writer",
        lambda: onnx.save(
            model,
            str(path),
            save_as_external_data=place.external,
            location=data if place.external else None,
        ),
    )
    call_framework("the ONNX checker", lambda: onnx.checker.check_model(str(path)))
    place.clear()
    note = "kept in floating point, as 8 bits would lose their values: "
    return Quantized(
        path=path,
        versions=package_versions(*origin.packages),
        options={
            "quantizer": origin.quantizer,
            "method": origin.method,
            "samples": str(len(job.calibration)),
            "activations": origin.activations,
            "weights": origin.weights,
            "products": str(products),
            "biases corrected": str(corrected),
            "kept": ", ".join(job.keep),
        },
        notes=(note + ", ".join(sorted(origin.lost)),) if origin.lost else (),
    )


def _restore_shapes(graph: onnx.GraphProto, parent: onnx.GraphProto) -> None:
    """Give tensors the shapes that the parent has, and the others none.

    ModelOpt infers shapes of its own, which may be wrong: (batch, 16) as one of three dims.
    """
    known = {one.name: one.type.tensor_type.shape for one in (*parent.value_info, *parent.output)}
    for value in (*graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        tensor.ClearField("shape")
        if value.name in known:
            tensor.shape.CopyFrom(known[value.name])


def fold_weights(model: onnx.ModelProto) -> None:
    """Fold each QuantizeLinear of a constant.

    ModelOpt leaves float weights before a Q and a DQ, as TensorRT requires. For other runtimes that
    takes four times the bytes, and OpenVINO keeps them in its IR.
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
        array = _quantize(node, *(constant_values(wiring.constants[name]) for name in node.input))
        model.graph.initializer.append(numpy_helper.from_array(array, node.output[0]))
        model.graph.node.remove(node)
    unread -= {name for node in all_nodes(model.graph) for name in node.input}
    unread -= {value.name for value in model.graph.output}
    for index in reversed(range(len(model.graph.initializer))):
        if model.graph.initializer[index].name in unread:
            del model.graph.initializer[index]


def _quantize(node: onnx.NodeProto, weights: Array, scale: Array, zero: Array) -> Array:
    """Quantize as ONNX defines it: round to even, saturate; along `axis` for several scales."""
    import numpy as np

    limits = np.iinfo(zero.dtype)
    steps = np.rint(weights / _broadcast_scale(scale, node, weights.ndim))
    steps = steps + _broadcast_scale(zero, node, weights.ndim)
    found: Array = np.clip(steps, limits.min, limits.max).astype(zero.dtype)
    return found


_MATRIX = 2  # number of dims


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
        stored = _quantize(node, stored, scale, zero).astype(np.float64)
    offset = _broadcast_scale(zero, node, stored.ndim).astype(np.float64)
    found: Array = (stored - offset) * _broadcast_scale(scale, node, stored.ndim)
    return found


def _broadcast_scale(array: Array, node: onnx.NodeProto, rank: int) -> Array:
    """Reshape a scale or zero point to broadcast along its axis."""
    if array.size == 1:
        return array.reshape(())
    shape = [1] * rank
    shape[int_attribute(node, "axis", 1)] = array.size
    return array.reshape(shape)
