"""Findings in an ONNX model, and Q/DQ nodes as TensorRT's parser reads them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias

from ..onnx_origins import UNKNOWN_ORIGIN, NodeOrigin

if TYPE_CHECKING:
    import onnx_ir

    from ...core.contract import Array

else:
    Model = Node = Value = Any  # onnx_ir's own, which is only imported where it is used

if TYPE_CHECKING:
    import onnx_ir

    Model: TypeAlias = onnx_ir.Model
    Node: TypeAlias = onnx_ir.Node
    Value: TypeAlias = onnx_ir.Value
else:
    Model = Node = Value = Any  # onnx_ir's own, which is only imported where it is used

_SHOWN = 8  # lines of an error message; all are in the log
_FAR = 3  # nodes to walk from a Q or DQ to the layer that it serves


class TrtSeverity(StrEnum):
    """Whether TensorRT will refuse it (or compute something else), or only may."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, kw_only=True)
class TrtFinding:
    """One thing found. `what` is the same for all of its kind; `detail` is of this one alone."""

    severity: TrtSeverity
    what: str
    place: str = ""  # `encoder.layer.3.mlp (MatMul node_MatMul_71)`
    detail: str = ""

    def __str__(self) -> str:
        detail = f" ({self.detail})" if self.detail else ""
        return f"{self.place}: {self.what}{detail}" if self.place else f"{self.what}{detail}"


def describe_findings(findings: Iterable[TrtFinding], severity: TrtSeverity) -> tuple[str, ...]:
    """A line for each kind of finding: the one that there is, or how many and which is first."""
    kinds: dict[str, list[TrtFinding]] = {}
    for finding in findings:
        if finding.severity is severity:
            kinds.setdefault(finding.what, []).append(finding)
    return tuple(_describe_kind(found) for found in kinds.values())


def _describe_kind(found: list[TrtFinding]) -> str:
    first = found[0]
    if len(found) == 1:
        return str(first)
    detail = f" ({first.detail})" if first.detail else ""
    where = f", first at {first.place}" if first.place else ""
    return f"{len(found)} × {first.what}{where}{detail}"  # noqa: RUF001 - a count


def join_lines(lines: tuple[str, ...]) -> str:
    """The lines as one message, cut where there are many."""
    more = f" (and {len(lines) - _SHOWN} more)" if len(lines) > _SHOWN else ""
    return "; ".join(lines[:_SHOWN]) + more


def node_place(node: Node, origins: Mapping[str, NodeOrigin]) -> str:
    """`layers.3.fc1 (QuantizeLinear fc1_q)`: the module that a node is of, or serves."""
    module = nearest_module(node, origins)
    title = " ".join(part for part in (node.op_type, node.name) if part)
    return f"{module} ({title})" if module else title


def nearest_module(node: Node, origins: Mapping[str, NodeOrigin]) -> str:
    """The module of a node; that of the next one along where a tool put the node in."""
    near = (node, *walk_readers(node))
    return next(
        (m for one in near if (m := origins.get(one.name or "", UNKNOWN_ORIGIN).module)), ""
    )


def walk_readers(node: Node) -> Iterator[Node]:
    """The readers of what a node makes, and theirs, as far as a Q and a DQ lie from a layer."""
    edge = [node]
    for _ in range(_FAR):
        edge = [reader for one in edge for reader in direct_readers(one)]
        yield from edge


def direct_readers(node: Node) -> tuple[Node, ...]:
    """The nodes that read what a node makes."""
    return tuple(use.node for value in node.outputs for use in value.uses())


def domain_of(node: Node) -> str:
    """The domain of a node's operator; empty for ONNX's own."""
    return "" if node.domain == "ai.onnx" else node.domain


QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
QdqProblem = tuple[str, str]  # what is wrong, and with which value
_DEFAULT_AXIS = 1  # of both operators, from opset 13 on
_TAKEN = ("INT8", "FLOAT8E4M3FN", "INT4", "FLOAT4E2M1")
_DATA, _SCALE, _ZERO = range(3)


def is_quantize(node: Node | None) -> bool:
    """Whether a node is ONNX's QuantizeLinear."""
    return node is not None and node.op_type == QUANTIZE and domain_of(node) == ""


def is_dequantize(node: Node | None) -> bool:
    """Whether a node is ONNX's DequantizeLinear."""
    return node is not None and node.op_type == DEQUANTIZE and domain_of(node) == ""


def constant_tensor(value: Value | None) -> onnx_ir.TensorProtocol | None:
    """The tensor behind an initializer or a Constant node; None for what is computed."""
    import onnx_ir

    return None if value is None else onnx_ir.convenience.get_const_tensor(value)


def channel_axis(node: Node, rank: int) -> int:
    """The channel axis, counted from the front."""
    axis = node.attributes.get_int("axis", _DEFAULT_AXIS)
    return axis + rank if axis < 0 else axis


def is_per_channel(node: Node) -> bool:
    """Whether a node has one scale a channel."""
    scale = constant_tensor(_node_input(node, _SCALE))
    return scale is not None and scale.size > 1


def tensor_shape(value: Value | None) -> tuple[int | None, ...] | None:
    """The sizes of a tensor, None for those that vary; None where nothing is known."""
    tensor = constant_tensor(value)
    if tensor is not None:
        return tuple(int(size) for size in tensor.shape.numpy())
    if value is None or value.shape is None:
        return None
    return tuple(size if isinstance(size, int) else None for size in value.shape)


def qdq_problems(node: Node) -> Iterator[QdqProblem]:
    """What TensorRT will not take in one Q or DQ, or will take for something else."""
    dtype = integer_type(node)
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


def integer_type(node: Node) -> str:
    """The name of the integer type that a node makes or takes.

    Without zero point and `output_dtype` ONNX says uint8, and TensorRT computes int8.
    """
    import onnx_ir

    declared = node.attributes.get_int("output_dtype", 0) if is_quantize(node) else 0
    zero, data = _node_input(node, _ZERO), _node_input(node, _DATA)
    candidates = [zero] if is_quantize(node) else [data, zero]
    for value in candidates:
        tensor = constant_tensor(value)
        dtype = tensor.dtype if tensor is not None else value.dtype if value is not None else None
        if dtype is not None:
            return dtype.name
    if declared:
        return onnx_ir.DataType(declared).name
    maker = data.producer() if data is not None and not is_quantize(node) else None
    return integer_type(maker) if maker is not None and is_quantize(maker) else "UINT8"


def _scale_problems(node: Node) -> Iterator[QdqProblem]:
    import numpy as np

    scale = constant_tensor(_node_input(node, _SCALE))
    if scale is None:
        yield "a scale that is computed, not a constant", ""
        return
    values = _float_values(scale)
    if not np.isfinite(values).all():
        yield "a scale that is not finite", f"{values[~np.isfinite(values)][0]:g}"
    elif (values <= 0).any():
        yield "a scale that is not positive", f"{values[values <= 0][0]:g}"


def _zero_problems(node: Node) -> Iterator[QdqProblem]:
    value = _node_input(node, _ZERO)
    if value is None:
        return
    zero = constant_tensor(value)
    if zero is None:
        yield "a zero point that is computed, not a constant", ""
        return
    values = _float_values(zero)
    if values.any():
        yield (
            "a zero point that is not 0: TensorRT quantizes symmetrically",
            f"{values[values != 0][0]:g}",
        )
    scale = constant_tensor(_node_input(node, _SCALE))
    if scale is not None and scale.size != zero.size:
        yield "as many zero points as scales are needed", f"{zero.size} and {scale.size}"


def _channel_problems(node: Node) -> Iterator[QdqProblem]:
    """One scale a channel is for weights alone, and there are as many as channels."""
    if not is_per_channel(node):
        return
    if not is_weight(node):
        yield "one scale a channel on an activation; TensorRT takes one for the whole tensor", ""
    shape, scale = (
        tensor_shape(_node_input(node, _DATA)),
        constant_tensor(_node_input(node, _SCALE)),
    )
    if shape is None or scale is None or len(scale.shape) != 1:
        return
    axis = channel_axis(node, len(shape))
    size = shape[axis] if 0 <= axis < len(shape) else 0
    if size is not None and size != scale.size:
        yield (
            "the scales are not as many as the channels",
            f"{scale.size} for {size} on axis {axis}",
        )


def _link_problems(node: Node) -> Iterator[QdqProblem]:
    """A Q is read by DQs alone; a DQ reads a Q, a constant, or an input of the model."""
    readers = direct_readers(node)
    if is_quantize(node):
        others = [reader.op_type for reader in readers if not is_dequantize(reader)]
        if others:
            yield "a QuantizeLinear that something else than a DequantizeLinear reads", others[0]
        elif not readers and not node.outputs[0].is_graph_output():
            yield "a QuantizeLinear that nothing reads", ""
        return
    source = _node_input(node, _DATA)
    if source is None or source.is_graph_input() or constant_tensor(source) is not None:
        return
    maker = source.producer()
    if not is_quantize(maker):
        made = maker.op_type if maker is not None else "nothing"
        yield "a DequantizeLinear of what is neither quantized nor a constant", made


def is_weight(node: Node) -> bool:
    """Whether a Q or DQ is of a constant, through its own Q where it has one."""
    source = _node_input(node, _DATA)
    if source is None or constant_tensor(source) is not None:
        return source is not None
    maker = source.producer()
    return maker is not None and is_quantize(maker) and is_weight(maker)


def _node_input(node: Node, index: int) -> Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def _float_values(tensor: onnx_ir.TensorProtocol) -> Array:
    """The values in one dimension, in a type that numpy computes in."""
    import numpy as np

    found: Array = np.asarray(tensor.numpy()).astype(np.float64).reshape(-1)
    return found
