"""What TensorRT requires of the Q/DQ nodes in an ONNX model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..onnx_origins import NodeOrigin
from .trt_findings import (
    DEQUANTIZE,
    QUANTIZE,
    Model,
    Node,
    NodeFindings,
    TrtFault,
    TrtFinding,
    TrtSeverity,
    Value,
    channel_axis,
    constant_tensor,
    direct_readers,
    domain_of,
    integer_type,
    is_dequantize,
    is_per_channel,
    is_quantize,
    is_weight,
    qdq_problems,
    tensor_shape,
)

QDQ_LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
# Operators on integers: a form of quantization that TensorRT's parser does not support.
_INTEGER = frozenset({
    "ConvInteger", "DynamicQuantizeLinear", "MatMulInteger", "QLinearAdd", "QLinearConv",
    "QLinearMatMul",
})  # fmt: skip
# TensorRT moves a DQ across operators that only change the shape.
_SHAPE_ONLY = ("Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
_POINTWISE = ("Clip", "HardSwish", "LeakyRelu", "Relu", "Sigmoid")  # fused into the sum before it


def check_qdq(
    model: Model, origins: Mapping[str, NodeOrigin], *, required: bool = True
) -> tuple[TrtFinding, ...]:
    """Find every fault of a model's Q/DQ.

    Args:
        model: loaded from its file, so that external constants can be read.
        origins: modules by node name.
        required: whether a model without quantized layers is an error.
    """
    findings = NodeFindings(origins)
    nodes = tuple(model.graph.all_nodes())
    for node in nodes:
        _check_node(findings, node)
    layers = [node for node in nodes if node.op_type in QDQ_LAYERS and domain_of(node) == ""]
    quantized = [node for node in layers if _check_layer(findings, node)]
    for node in nodes:
        if node.op_type == "Add":
            _check_sum(findings, node)
    if required and not quantized:
        findings.found.append(_not_quantized(nodes, layers))
    return tuple(findings.found)


# FP16 is spaced by 2^-24 below 2^-14: a scale of this size is rounded by up to half of INT8's step.
_LEAST_HALF_SCALE = 127 * 2.0**-24


def find_layer_groups(model: Model) -> tuple[frozenset[str], ...]:
    """Return each quantized layer with its Q, DQ and what is between, by node name.

    A group has one float type: a Cast between a DQ and its layer would take it out of INT8. Layers
    that share a DQ are one group.
    """
    groups: list[set[str]] = []
    for layer in model.graph.all_nodes():
        if layer.op_type not in QDQ_LAYERS or domain_of(layer) != "":
            continue
        chains = [_operand_chain(value) for value in layer.inputs[:2]]
        if not all(chains) and not _has_int4_weight(layer):
            continue
        names = {node.name or "" for node in (layer, *(one for chain in chains for one in chain))}
        near = [group for group in groups if group & names]
        groups = [group for group in groups if group not in near]
        groups.append(names.union(*near))
    return tuple(map(frozenset, groups))


def _has_int4_weight(layer: Node) -> bool:
    """Return whether the weight of a layer has 4 bits; TensorRT then computes in floats."""
    weight = _find_dequantize(layer.inputs[1]) if len(layer.inputs) > 1 else None
    return weight is not None and integer_type(weight) == "INT4"


def _operand_chain(value: Value | None) -> list[Node]:
    """Return the nodes from a layer's operand back to its Q; empty if it is not quantized."""
    chain: list[Node] = []
    maker = value.producer() if value is not None else None
    while maker is not None and maker.op_type in _SHAPE_ONLY:
        chain.append(maker)
        source = maker.inputs[0]
        maker = source.producer() if source is not None else None
    if maker is None or not is_dequantize(maker):
        return []
    source = maker.inputs[0]
    quantize = source.producer() if source is not None else None
    return [*chain, maker, *([quantize] if quantize is not None and is_quantize(quantize) else [])]


def find_small_scales(model: Model) -> tuple[str, ...]:
    """Return each Q and DQ whose scales are too small for FP16."""
    import numpy as np

    found = []
    for node in model.graph.all_nodes():
        quantizes = is_quantize(node) or is_dequantize(node)
        scale = constant_tensor(node.inputs[1]) if quantizes else None
        if scale is not None and np.abs(scale.numpy()).min(initial=np.inf) < _LEAST_HALF_SCALE:
            found.append(node.name or "")
    return tuple(found)


def _check_node(findings: NodeFindings, node: Node) -> None:
    if node.op_type in _INTEGER:
        text = f"{node.op_type} instead of {QUANTIZE} and {DEQUANTIZE}"
        findings.add(node, TrtFault.INTEGER_OPERATOR, text)
    elif node.op_type in (QUANTIZE, DEQUANTIZE) and domain_of(node) != "":
        text = f"{node.op_type} that is not ONNX's own"
        findings.add(node, TrtFault.FOREIGN_QDQ, text, f"of {node.domain}")
    elif is_quantize(node) or is_dequantize(node):
        for problem in qdq_problems(node):
            findings.add(node, *problem)


def _check_layer(findings: NodeFindings, layer: Node) -> bool:
    """Return whether a layer is quantized: both operands, or a weight of 4 bits alone."""
    if _has_int4_weight(layer):
        return True
    operands = [_find_dequantize(value) for value in layer.inputs[:2]]
    present = [node for node in operands if node is not None]
    weight = operands[1] if len(operands) > 1 else None
    if weight is not None and is_per_channel(weight) and is_weight(weight):
        _check_axis(findings, layer, weight)
    if len(present) == 1 and len(operands) > 1:
        side = "data" if operands[0] is not None else "weight"
        findings.add(
            layer, TrtFault.FLOAT_OPERAND,
            "one operand is quantized and the other is not: it computes in floating point",
            f"its {side} is",
            sure=False,
        )  # fmt: skip
    return len(present) == len(operands)


def _find_dequantize(value: Value | None) -> Node | None:
    """Return the DequantizeLinear that a tensor comes from, across shape-only operators."""
    maker = value.producer() if value is not None else None
    while maker is not None and maker.op_type in _SHAPE_ONLY:
        source = maker.inputs[0]
        maker = source.producer() if source is not None else None
    return maker if is_dequantize(maker) else None


def _check_axis(findings: NodeFindings, layer: Node, weight: Node) -> None:
    """Check that per-channel scales lie on the output channel axis of the weight."""
    shape = tensor_shape(weight.inputs[0])
    if shape is None and (source := weight.inputs[0]) is not None:
        maker = source.producer()
        shape = tensor_shape(maker.inputs[0]) if maker is not None else None
    path = _weight_permutations(layer, weight)
    if shape is None or path is None:
        return
    axis = channel_axis(weight, len(shape))
    for permutation in path:
        axis = permutation.index(axis)
    wanted = _output_axis(layer, len(shape))
    if axis != wanted:
        findings.add(
            layer, TrtFault.CHANNEL_AXIS,
            "scales on another axis of the weight than its output channels",
            f"axis {axis}, not {wanted}",
        )  # fmt: skip


def _weight_permutations(layer: Node, weight: Node) -> list[Sequence[int]] | None:
    """Return the permutations from a weight to its layer; None if it is reshaped otherwise."""
    found: list[Sequence[int]] = []
    value = layer.inputs[1]
    maker = value.producer() if value is not None else None
    while maker is not None and maker is not weight:
        permutation = maker.attributes.get_ints("perm", ())
        if maker.op_type not in ("Transpose", "Identity") or (
            maker.op_type == "Transpose" and not permutation
        ):
            return None
        if permutation:
            found.insert(0, list(permutation))
        value = maker.inputs[0]
        maker = value.producer() if value is not None else None
    return found


def _output_axis(layer: Node, rank: int) -> int:
    if layer.op_type == "Conv":
        return 0
    if layer.op_type == "ConvTranspose":
        return 1
    transposed = layer.op_type == "Gemm" and layer.attributes.get_int("transB", 0) == 1
    return 0 if transposed else rank - 1


def _check_sum(findings: NodeFindings, node: Node) -> None:
    """Check that a requantized residual sum has Q/DQ on its skip input, and only there.

    Otherwise TensorRT does not fuse layer, sum and Q, and computes the sum in floating point.
    """
    if not _is_requantized(node) or any(
        constant_tensor(value) is not None for value in node.inputs
    ):
        return
    makers = [value.producer() for value in node.inputs if value is not None]
    paired = [maker for maker in makers if is_dequantize(maker)]
    layers = [maker for maker in makers if _is_integer_node(maker)]
    behind = any(_is_behind_layer(maker) for maker in paired)
    if not (layers or behind):
        return  # a sum of something else
    if not paired or len(paired) + len(layers) < len(makers):
        findings.add(
            node,
            TrtFault.FLOAT_SKIP,
            "a residual sum without Q/DQ on its skip input is computed in floating point",
            sure=False,
        )
    elif not layers:
        findings.add(
            node,
            TrtFault.UNFUSED_SUM,
            "a residual sum with Q/DQ on both inputs is not fused with the layer before it",
            sure=False,
        )


def _is_requantized(node: Node) -> bool:
    """Return whether a Q reads the sum, directly or after an activation function."""
    return any(
        is_quantize(reader) or (reader.op_type in _POINTWISE and _is_requantized(reader))
        for reader in direct_readers(node)
    )


def _is_integer_node(maker: Node | None) -> bool:
    """Return whether a node is a quantized layer, or adds a constant bias to one."""
    if maker is None:
        return False
    if maker.op_type == "Add" and any(constant_tensor(value) is not None for value in maker.inputs):
        return any(_is_integer_node(v.producer()) for v in maker.inputs if v is not None)
    return maker.op_type in QDQ_LAYERS and all(
        _find_dequantize(value) for value in maker.inputs[:2]
    )


def _is_behind_layer(dequantize: Node | None) -> bool:
    """Return whether a DQ and its Q directly follow a quantized layer."""
    source = dequantize.inputs[0] if dequantize is not None else None
    quantize = source.producer() if source is not None else None
    data = quantize.inputs[0] if quantize is not None and is_quantize(quantize) else None
    return data is not None and _is_integer_node(data.producer())


def _not_quantized(nodes: Sequence[Node], layers: Sequence[Node]) -> TrtFinding:
    """Make the finding that no layer is quantized."""
    if not any(is_quantize(node) or is_dequantize(node) for node in nodes):
        what = f"no layer is quantized: the model has no {QUANTIZE} and no {DEQUANTIZE}"
    else:
        what = f"no layer is quantized: none of {len(layers)} has Q/DQ on both operands"
    return TrtFinding(TrtFault.NOT_QUANTIZED, TrtSeverity.ERROR, what)
