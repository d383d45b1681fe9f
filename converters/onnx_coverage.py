"""The compute dtype of each layer of an ONNX model, weighted by its FLOPs."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from ..capture.framework_errors import call_framework
from ..core.contract import Feed
from ..core.records import Coverage
from .onnx_blocks import BLOCK_PRODUCT, precision_of_blocks
from .onnx_files import detach_weights
from .onnx_half_emulation import emulate_half, has_half, has_half_io
from .onnx_sessions import open_session, run_session
from .onnx_topology import Node, all_graphs, all_nodes, load_model

if TYPE_CHECKING:
    import onnx

ONNX_SOURCE = "ONNX types"
_LOG = logging.getLogger(__name__)
_FLOAT_LAYERS = frozenset({
    "Attention", "Conv", "ConvTranspose", "Einsum", "Gemm", "GRU", "LSTM", "MatMul",
    "MultiHeadAttention", "RNN",
})  # fmt: skip
# operators of ONNX and of ONNX Runtime that take integers
_INTEGER_LAYERS = frozenset({
    "ConvInteger", "DynamicQuantizeLSTM", "DynamicQuantizeMatMul", "MatMulInteger",
    "MatMulIntegerToFloat", "QAttention", "QGemm", "QLinearConv", "QLinearMatMul",
})  # fmt: skip
# operators between a DequantizeLinear and a layer that keep the layer in integers
_SHAPE_ONLY = frozenset({
    "Expand", "Flatten", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose",
    "Unsqueeze",
})  # fmt: skip
_NAMES = {"FLOAT": "fp32", "FLOAT16": "fp16", "BFLOAT16": "bf16", "DOUBLE": "fp64"}
_EIGHT_BITS = ("INT8", "UINT8")
_EIGHT_BIT_FLOATS = ("FLOAT8E4M3FN",)
_FOUR_BITS = ("INT4",)


@dataclass(frozen=True, kw_only=True)
class OnnxLayer:
    """One compute layer and its compute dtype."""

    node: Node
    dtype: str


def measure_coverage(path: Path, example: Feed) -> Coverage:
    """Return a model's layers by dtype, and each dtype's share of the FLOPs at the example's sizes.

    A layer is int8 if its data and its weight both come from a DequantizeLinear of 8-bit integers:
    runtimes turn that pattern into integer arithmetic; so is fp8, of 8-bit floats. It is int4 if
    its weight comes from one of 4-bit integers; a MatMulNBits is in the precision of its weights.
    The share counts layers where the FLOPs of any layer are unknown, or all have one dtype.

    Raises:
        ConversionError: the model cannot be read.
    """
    model = load_model(path)
    slim, held = detach_weights(model)
    layers = compute_layers(slim)
    counts = Counter(layer.dtype for layer in layers)
    work: list[int] | None = None
    if len(counts) > 1:
        held.put_back(slim.graph)
        work = _layer_flops(slim, path.parent, example, layers)
    weighed = Counter(counts) if work is None else Counter[str]()
    for layer, amount in zip(layers, work or (), strict=bool(work)):
        weighed[layer.dtype] += amount
    total = weighed.total() or 1
    return Coverage(
        layers=dict(counts),
        share={dtype: amount / total for dtype, amount in weighed.items()},
        work="layers" if work is None else "FLOPs",
        source=ONNX_SOURCE,
    )


def compute_layers(model: onnx.ModelProto) -> tuple[OnnxLayer, ...]:
    """Return the compute layers of a model, including the bodies of If and Loop."""
    import onnx

    types = _TensorTypes(call_framework("ONNX", lambda: onnx.shape_inference.infer_shapes(model)))
    return tuple(
        OnnxLayer(node=node, dtype=types.dtype(node))
        for node in all_nodes(model.graph)
        if node.op_type in _FLOAT_LAYERS | _INTEGER_LAYERS | {BLOCK_PRODUCT}
    )


class _TensorTypes:
    """Element types and producers of a model's tensors."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._codes: dict[str, int] = {}
        self._makers = {name: node for node in all_nodes(model.graph) for name in node.output}
        for graph in all_graphs(model.graph):
            self._codes |= {tensor.name: tensor.data_type for tensor in graph.initializer}
            for value in (*graph.input, *graph.value_info, *graph.output):
                self._codes[value.name] = value.type.tensor_type.elem_type

    def dtype(self, node: onnx.NodeProto) -> str:
        """Return `int8`, `fp8`, `int4` or the type of the layer's data input."""
        if node.op_type in _INTEGER_LAYERS:
            return "int8"
        if node.op_type == BLOCK_PRODUCT:
            return str(precision_of_blocks(node) or "unknown")
        stored = [self._type_before_dequantize(self._source(name)) for name in node.input[:2]]
        if all(name in _EIGHT_BITS for name in stored):
            return "int8"
        if all(name in _EIGHT_BIT_FLOATS for name in stored):
            return "fp8"
        if stored[-1] in _FOUR_BITS:
            return "int4"
        name = self._name(node.input[0])
        return _NAMES.get(name, name.lower())

    def _name(self, tensor: str) -> str:
        import onnx

        code = self._codes.get(tensor, 0)
        return str(onnx.TensorProto.DataType.Name(code)) if code else "UNKNOWN"

    def _source(self, tensor: str) -> onnx.NodeProto | None:
        """Return the node that produces a tensor's values, skipping shape changes."""
        maker = self._makers.get(tensor)
        while maker is not None and maker.op_type in _SHAPE_ONLY:
            maker = self._makers.get(maker.input[0])
        return maker

    def _type_before_dequantize(self, source: onnx.NodeProto | None) -> str:
        """Return the type that a DequantizeLinear reads; empty if `source` is none."""
        if source is None or source.op_type != "DequantizeLinear":
            return ""
        return self._name(source.input[0])


def _layer_flops(
    model: onnx.ModelProto, folder: Path, example: Feed, layers: Iterable[OnnxLayer]
) -> list[int] | None:
    """Return the FLOPs of each layer; None if any is unknown."""
    nodes = [layer.node for layer in layers]
    outer = {id(node) for node in model.graph.node}
    if not nodes or any(id(node) not in outer for node in nodes):
        return None
    tensors = [name for node in nodes for name in (*node.input, *node.output)]
    shapes: Mapping[str, tuple[int, ...]]
    try:
        shapes = run_shapes(model, folder, example, tensors)
    except Exception:  # noqa: BLE001 - what does not run here, as FP8, has layers all the same
        _LOG.warning("no FLOPs: ONNX Runtime cannot run the model", exc_info=True)
        return None
    work = [node_flops(node, shapes) for node in nodes]
    known = [amount for amount in work if amount is not None]
    return known if len(known) == len(work) else None


Shape: TypeAlias = tuple[int, ...]
_PAST_KEY = 4  # index of the past keys among the inputs of Attention


@dataclass(frozen=True, kw_only=True)
class _NodeShapes:
    """A node with the shapes of its inputs and outputs."""

    node: Node
    inputs: tuple[Shape, ...]  # () for an omitted optional input
    output: Shape


def node_flops(node: onnx.NodeProto, shapes: Mapping[str, Shape]) -> int | None:
    """Count two FLOPs per multiply-add; None if the operator or a shape is unknown."""
    rule = _FLOP_RULES.get(node.op_type)
    if rule is None or node.output[0] not in shapes:
        return None
    inputs = tuple(shapes.get(name, ()) for name in node.input)
    try:
        return rule(_NodeShapes(node=node, inputs=inputs, output=shapes[node.output[0]]))
    except (IndexError, ValueError):  # an input without a shape, or an equation with an ellipsis
        return None


def infer_flops(path: Path, sizes: Mapping[str, Sequence[int]]) -> dict[str, int] | None:
    """Return the FLOPs of the layers by the name of their first output, without a run.

    Args:
        path: the model.
        sizes: the shapes of the inputs; those that are left out are as in the model.

    Returns:
        None where no layer has FLOPs, or any of them has none that can be inferred.

    Raises:
        ConversionError: the model cannot be read.
    """
    model, _ = detach_weights(load_model(path))
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        for dim, size in zip(dims, sizes.get(value.name, ()), strict=False):
            dim.dim_value = size
    del model.graph.value_info[:]  # of other sizes
    layers = [layer.node for layer in compute_layers(model)]
    outer = {node.output[0] for node in model.graph.node if node.output}
    if any(node.output[0] not in outer for node in layers):
        return None
    shapes = _infer_shapes(model)
    found = {node.output[0]: node_flops(node, shapes) for node in layers}
    known = {name: flops for name, flops in found.items() if flops is not None}
    return known if known and len(known) == len(found) else None


def _infer_shapes(model: onnx.ModelProto) -> dict[str, Shape]:
    """Return the shapes of weights, and of tensors all of whose sizes are known."""
    import onnx

    inferred = call_framework(
        "ONNX", lambda: onnx.shape_inference.infer_shapes(model, data_prop=True)
    ).graph
    shapes = {tensor.name: tuple(tensor.dims) for tensor in inferred.initializer}
    for value in (*inferred.input, *inferred.value_info, *inferred.output):
        dims = value.type.tensor_type.shape.dim
        if value.type.tensor_type.HasField("shape") and all(d.HasField("dim_value") for d in dims):
            shapes[value.name] = tuple(dim.dim_value for dim in dims)
    return shapes


def run_shapes(
    model: onnx.ModelProto, folder: Path, example: Feed, tensors: Iterable[str]
) -> dict[str, Shape]:
    """Return the shapes of weights and of the named tensors while ONNX Runtime runs the example.

    Raises:
        Exception: anything that ONNX Runtime raises.
    """
    from onnx import TensorProto, helper

    shapes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    missing = [name for name in dict.fromkeys(tensors) if name and name not in shapes]
    half = has_half(model)
    probe = emulate_half(model, float_io=has_half_io(model)) if half else deepcopy(model)
    del probe.graph.output[:]
    for index, name in enumerate(missing):
        end = f"shape::{index}"
        probe.graph.node.append(helper.make_node("Shape", [name], [end], name=end))
        probe.graph.output.append(helper.make_tensor_value_info(end, TensorProto.INT64, [None]))
    ends = run_session(open_session(probe, folder, once=True), example)
    found = {name: ends[f"shape::{index}"] for index, name in enumerate(missing)}
    return shapes | {name: tuple(int(size) for size in shape) for name, shape in found.items()}


def _conv_flops(weight: int) -> Callable[[_NodeShapes], int]:
    """Multiply each output element by the kernel: the weight is [out, in / groups, *kernel]."""
    return lambda work: 2 * prod(work.output) * prod(work.inputs[weight][1:])


def _matmul_flops(work: _NodeShapes) -> int:
    """Multiply each output element by the length of a row of the first factor."""
    transposed = any(entry.name == "transA" and entry.i for entry in work.node.attribute)
    return 2 * prod(work.output) * work.inputs[0][0 if transposed else -1]


def _recurrent_flops(work: _NodeShapes) -> int:
    """Count the weights of input and state, of all gates and directions, per step and row."""
    steps, weight, state = work.inputs[:3]
    return 2 * prod(steps[:2]) * (prod(weight) + prod(state))


def _einsum_flops(work: _NodeShapes) -> int:
    """Count all combinations of the indices; None for an ellipsis."""
    equation = next(entry.s for entry in work.node.attribute if entry.name == "equation").decode()
    sizes: dict[str, int] = {}
    terms = equation.replace(" ", "").split("->")[0].split(",")
    for term, shape in zip(terms, work.inputs, strict=True):
        sizes |= dict(zip(term, shape, strict=True))
    return 2 * prod(sizes.values())


def _attention_flops(work: _NodeShapes) -> int:
    """Count the scores and their product with the values, for 3-D or 4-D inputs."""
    query, key = work.inputs[:2]
    past = work.inputs[_PAST_KEY] if len(work.inputs) > _PAST_KEY else ()
    keys = key[-2] + (past[-2] if past else 0)
    wide = prod(query) // query[-2] + prod(work.output) // work.output[-2]
    return 2 * query[-2] * keys * wide


_FLOP_RULES: dict[str, Callable[[_NodeShapes], int]] = {
    "Conv": _conv_flops(1),
    "ConvInteger": _conv_flops(1),
    "QLinearConv": _conv_flops(3),
    "ConvTranspose": lambda work: 2 * prod(work.inputs[0]) * prod(work.inputs[1][1:]),
    "MatMul": _matmul_flops,
    BLOCK_PRODUCT: _matmul_flops,
    "MatMulInteger": _matmul_flops,
    "QLinearMatMul": _matmul_flops,
    "Gemm": _matmul_flops,
    "QGemm": _matmul_flops,
    "LSTM": _recurrent_flops,
    "GRU": _recurrent_flops,
    "RNN": _recurrent_flops,
    "Einsum": _einsum_flops,
    "Attention": _attention_flops,
}
