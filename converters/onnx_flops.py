"""The work of the compute layers of an ONNX model, in FLOPs, at the shapes that a run gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from ..core.contract import Feed
from .onnx_links import Node
from .onnx_rounding import emulate_half, has_half, has_half_io
from .onnx_sessions import open_session, run_session

if TYPE_CHECKING:
    import onnx

Shape: TypeAlias = tuple[int, ...]
_PAST_KEY = 4  # the input of Attention that holds the keys of earlier turns


@dataclass(frozen=True, kw_only=True)
class _NodeShapes:
    """A node with the shapes of what it reads and makes."""

    node: Node
    inputs: tuple[Shape, ...]  # () where an optional input is left out
    output: Shape


def node_flops(node: onnx.NodeProto, shapes: Mapping[str, Shape]) -> int | None:
    """Two for each multiply and add; None where an operator or a shape is not known."""
    rule = _FLOP_RULES.get(node.op_type)
    if rule is None or node.output[0] not in shapes:
        return None
    inputs = tuple(shapes.get(name, ()) for name in node.input)
    try:
        return rule(_NodeShapes(node=node, inputs=inputs, output=shapes[node.output[0]]))
    except (IndexError, ValueError):  # an input without a shape, an equation with an ellipsis
        return None


def run_shapes(
    model: onnx.ModelProto, folder: Path, example: Feed, tensors: Iterable[str]
) -> dict[str, Shape]:
    """The shapes of weights and of the named tensors when the example is run, in ONNX Runtime.

    Raises:
        Exception: whatever ONNX Runtime raises.
    """
    from onnx import TensorProto, helper

    shapes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    wanted = [name for name in dict.fromkeys(tensors) if name and name not in shapes]
    half = has_half(model)
    probe = emulate_half(model, float_io=has_half_io(model)) if half else _copy_model(model)
    del probe.graph.output[:]
    for index, name in enumerate(wanted):
        end = f"shape::{index}"
        probe.graph.node.append(helper.make_node("Shape", [name], [end], name=end))
        probe.graph.output.append(helper.make_tensor_value_info(end, TensorProto.INT64, [None]))
    ends = run_session(open_session(probe, folder, once=True), example)
    found = {name: ends[f"shape::{index}"] for index, name in enumerate(wanted)}
    return shapes | {name: tuple(int(size) for size in shape) for name, shape in found.items()}


def _copy_model(model: onnx.ModelProto) -> onnx.ModelProto:
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def _conv_flops(weight: int) -> Callable[[_NodeShapes], int]:
    """Each output element takes a kernel: the weight is [out, in / groups, *kernel]."""
    return lambda work: 2 * prod(work.output) * prod(work.inputs[weight][1:])


def _conv_transpose_flops(work: _NodeShapes) -> int:
    """Each input element gives a kernel: the weight is [in, out / groups, *kernel]."""
    return 2 * prod(work.inputs[0]) * prod(work.inputs[1][1:])


def _matmul_flops(work: _NodeShapes) -> int:
    """Each output element takes a row of the first factor."""
    transposed = any(entry.name == "transA" and entry.i for entry in work.node.attribute)
    return 2 * prod(work.output) * work.inputs[0][0 if transposed else -1]


def _recurrent_flops(work: _NodeShapes) -> int:
    """Each step of each row takes the weights of input and state, of all gates and directions."""
    steps, weight, state = work.inputs[:3]
    return 2 * prod(steps[:2]) * (prod(weight) + prod(state))


def _einsum_flops(work: _NodeShapes) -> int:
    """Every combination of the indices; an ellipsis is not followed."""
    equation = next(entry.s for entry in work.node.attribute if entry.name == "equation").decode()
    sizes: dict[str, int] = {}
    terms = equation.replace(" ", "").split("->")[0].split(",")
    for term, shape in zip(terms, work.inputs, strict=True):
        sizes |= dict(zip(term, shape, strict=True))
    return 2 * prod(sizes.values())


def _attention_flops(work: _NodeShapes) -> int:
    """Scores and their product with the values, for each query and key, of 3-D or 4-D inputs."""
    query, key = work.inputs[:2]
    past = work.inputs[_PAST_KEY] if len(work.inputs) > _PAST_KEY else ()
    keys = key[-2] + (past[-2] if past else 0)
    wide = prod(query) // query[-2] + prod(work.output) // work.output[-2]
    return 2 * query[-2] * keys * wide


_FLOP_RULES: dict[str, Callable[[_NodeShapes], int]] = {
    "Conv": _conv_flops(1),
    "ConvInteger": _conv_flops(1),
    "QLinearConv": _conv_flops(3),
    "ConvTranspose": _conv_transpose_flops,
    "MatMul": _matmul_flops,
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
