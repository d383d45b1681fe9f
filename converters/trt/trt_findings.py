"""Findings in an ONNX model, and Q/DQ nodes as TensorRT's parser reads them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias

from ..onnx_origins import UNKNOWN_ORIGIN, NodeOrigin

if TYPE_CHECKING:
    import onnx_ir

    from ...core.contract import Array

    Model: TypeAlias = onnx_ir.Model
    Node: TypeAlias = onnx_ir.Node
    Value: TypeAlias = onnx_ir.Value
else:
    Model = Node = Value = Any  # onnx_ir is only imported on use

_SHOWN = 8  # lines of an error message; all are in the log
_MAX_DISTANCE = 3  # nodes from a Q or DQ to its layer


class TrtSeverity(StrEnum):
    """ERROR: TensorRT rejects it or computes something else; WARNING: it may."""

    ERROR = "error"
    WARNING = "warning"


class TrtFault(StrEnum):
    """What a finding is about, for programs; people read its text."""

    # Of a Q, a DQ, or the layer that reads them.
    FOREIGN_QDQ = "foreign-qdq"  # of another domain than ONNX's
    INTEGER_OPERATOR = "integer-operator"  # where TensorRT wants Q and DQ
    QUANTIZED_TYPE = "quantized-type"
    INT32_BIAS = "int32-bias"
    COMPUTED_SCALE = "computed-scale"
    INFINITE_SCALE = "infinite-scale"
    NEGATIVE_SCALE = "negative-scale"  # or zero
    COMPUTED_ZERO_POINT = "computed-zero-point"
    ASYMMETRIC = "asymmetric"  # a zero point other than 0
    ZERO_POINT_COUNT = "zero-point-count"
    SCALE_COUNT = "scale-count"
    CHANNEL_SCALES = "channel-scales"  # on an activation
    CHANNEL_AXIS = "channel-axis"  # of a weight's scales
    QUANTIZE_READER = "quantize-reader"  # other than a DQ
    UNREAD_QUANTIZE = "unread-quantize"
    DEQUANTIZE_SOURCE = "dequantize-source"  # neither a Q nor a constant
    FLOAT_OPERAND = "float-operand"  # beside a quantized one
    FLOAT_SKIP = "float-skip"  # of a residual sum
    UNFUSED_SUM = "unfused-sum"
    NOT_QUANTIZED = "not-quantized"
    # Of the model, its operators and their types.
    MISSING_WEIGHTS = "missing-weights"
    OPSET = "opset"
    FIXED_DIM = "fixed-dim"
    UNBOUNDED_DIM = "unbounded-dim"
    UNSTATED_RANGE = "unstated-range"  # of an input that sets a size
    WHOLE_ATTENTION = "whole-attention"  # which trtexec cannot let TensorRT compute in parts
    LARGE_TENSOR = "large-tensor"
    UNKNOWN_SIZES = "unknown-sizes"
    UNCHECKED_PLUGIN = "unchecked-plugin"
    MISSING_PLUGIN = "missing-plugin"
    UNSUPPORTED_OPERATOR = "unsupported-operator"
    UNLISTED_OPERATOR = "unlisted-operator"
    RESTRICTION = "restriction"  # of a supported operator
    SIZE_FROM_DATA = "size-from-data"
    UNKNOWN_TYPE = "unknown-type"
    INNER_UINT8 = "inner-uint8"
    UNLISTED_TYPE = "unlisted-type"
    DOUBLE = "double"
    DOUBLE_RANGE = "double-range"
    CAPABILITY = "capability"  # a GPU does not compute in a type
    PARSER = "parser"  # NVIDIA's parser rejects it
    NO_PARSER = "no-parser"  # it gave no verdict


@dataclass(frozen=True)
class TrtFinding:
    """One finding. `what` is the same for its kind; `detail` is about this one."""

    fault: TrtFault
    severity: TrtSeverity
    what: str
    place: str = ""  # `encoder.layer.3.mlp (MatMul node_MatMul_71)`
    detail: str = ""

    def __str__(self) -> str:
        detail = f" ({self.detail})" if self.detail else ""
        return f"{self.place}: {self.what}{detail}" if self.place else f"{self.what}{detail}"


@dataclass(frozen=True)
class NodeFindings:
    """The findings about nodes so far; `origins` are the nodes' modules by name."""

    origins: Mapping[str, NodeOrigin]
    found: list[TrtFinding] = field(default_factory=list)

    def add(
        self, node: Node, fault: TrtFault, what: str, detail: str = "", *, sure: bool = True
    ) -> None:
        """Add an error if TensorRT certainly rejects the node or computes something else."""
        severity = TrtSeverity.ERROR if sure else TrtSeverity.WARNING
        place = node_place(node, self.origins)
        self.found.append(TrtFinding(fault, severity, what, place, detail))


def log_findings(findings: Iterable[TrtFinding], log: logging.Logger) -> None:
    """Log every finding, errors as errors."""
    for finding in findings:
        level = logging.ERROR if finding.severity is TrtSeverity.ERROR else logging.WARNING
        log.log(level, "%s", finding)


def describe_findings(findings: Iterable[TrtFinding], severity: TrtSeverity) -> tuple[str, ...]:
    """Return a line for each kind of finding: the only one, or the count and the first."""
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
    """Join the lines to one message of at most eight."""
    more = f" (and {len(lines) - _SHOWN} more)" if len(lines) > _SHOWN else ""
    return "; ".join(lines[:_SHOWN]) + more


def node_place(node: Node, origins: Mapping[str, NodeOrigin]) -> str:
    """Return `layers.3.fc1 (QuantizeLinear fc1_q)`: the module, and the node.

    A node that a tool inserted gets the module of its first reader with one.
    """
    near = front = [node]
    for _ in range(_MAX_DISTANCE):
        front = [reader for one in front for reader in direct_readers(one)]
        near = [*near, *front]
    modules = (origins.get(one.name or "", UNKNOWN_ORIGIN).module for one in near)
    module = next(filter(None, modules), "")
    title = " ".join(part for part in (node.op_type, node.name) if part)
    return f"{module} ({title})" if module else title


def direct_readers(node: Node) -> tuple[Node, ...]:
    """Return the nodes that read the outputs of a node."""
    return tuple(use.node for value in node.outputs for use in value.uses())


def domain_of(node: Node) -> str:
    """Return the domain of a node's operator; empty for ONNX's own."""
    return "" if node.domain == "ai.onnx" else node.domain


QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
QdqProblem = tuple[TrtFault, str, str]  # what is wrong, in words, and with which value
_DEFAULT_AXIS = 1  # of both operators, from opset 13 on
_SUPPORTED = ("INT8", "FLOAT8E4M3FN", "INT4", "FLOAT4E2M1")
_DATA, _SCALE, _ZERO = range(3)


def is_quantize(node: Node | None) -> bool:
    """Return whether a node is ONNX's QuantizeLinear."""
    return node is not None and node.op_type == QUANTIZE and domain_of(node) == ""


def is_dequantize(node: Node | None) -> bool:
    """Return whether a node is ONNX's DequantizeLinear."""
    return node is not None and node.op_type == DEQUANTIZE and domain_of(node) == ""


def constant_tensor(value: Value | None) -> onnx_ir.TensorProtocol | None:
    """Return the tensor of an initializer or a Constant node; None for computed values."""
    import onnx_ir

    return None if value is None else onnx_ir.convenience.get_const_tensor(value)


def channel_axis(node: Node, rank: int) -> int:
    """Return the channel axis, not negative."""
    axis = node.attributes.get_int("axis", _DEFAULT_AXIS)
    return axis + rank if axis < 0 else axis


def is_per_channel(node: Node) -> bool:
    """Return whether a node has one scale per channel."""
    scale = constant_tensor(_node_input(node, _SCALE))
    return scale is not None and scale.size > 1


def tensor_shape(value: Value | None) -> tuple[int | None, ...] | None:
    """Return the sizes of a tensor, None for a dynamic one; None if the shape is unknown."""
    tensor = constant_tensor(value)
    if tensor is not None:
        return tuple(int(size) for size in tensor.shape.numpy())
    if value is None or value.shape is None:
        return None
    return tuple(size if isinstance(size, int) else None for size in value.shape)


def qdq_problems(node: Node) -> Iterator[QdqProblem]:
    """Yield what TensorRT rejects or reads differently in one Q or DQ."""
    dtype = integer_type(node)
    if is_dequantize(node) and dtype == "INT32":
        yield (
            TrtFault.INT32_BIAS,
            "an int32 bias with a DequantizeLinear; TensorRT requires floating-point biases",
            "",
        )
        return  # its scale and zero point do not matter
    if dtype not in _SUPPORTED:
        yield TrtFault.QUANTIZED_TYPE, "a quantized type that is not int8", dtype.lower()
    yield from _scale_problems(node)
    yield from _zero_problems(node)
    yield from _channel_problems(node)
    yield from _link_problems(node)


def integer_type(node: Node) -> str:
    """Return the name of the quantized type of a Q's output or a DQ's input.

    Without zero point and `output_dtype` it is uint8 in ONNX, while TensorRT computes int8.
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
        yield TrtFault.COMPUTED_SCALE, "a scale that is computed, not a constant", ""
        return
    values = _float_values(scale)
    if not np.isfinite(values).all():
        yield (
            TrtFault.INFINITE_SCALE,
            "a scale that is not finite",
            f"{values[~np.isfinite(values)][0]:g}",
        )
    elif (values <= 0).any():
        yield TrtFault.NEGATIVE_SCALE, "a scale that is not positive", f"{values[values <= 0][0]:g}"


def _zero_problems(node: Node) -> Iterator[QdqProblem]:
    value = _node_input(node, _ZERO)
    if value is None:
        return
    zero = constant_tensor(value)
    if zero is None:
        yield TrtFault.COMPUTED_ZERO_POINT, "a zero point that is computed, not a constant", ""
        return
    values = _float_values(zero)
    if values.any():
        yield (
            TrtFault.ASYMMETRIC,
            "a zero point that is not 0: TensorRT quantizes symmetrically",
            f"{values[values != 0][0]:g}",
        )
    scale = constant_tensor(_node_input(node, _SCALE))
    if scale is not None and scale.size != zero.size:
        counts = f"{zero.size} and {scale.size}"
        yield TrtFault.ZERO_POINT_COUNT, "the zero points are not as many as the scales", counts


def _channel_problems(node: Node) -> Iterator[QdqProblem]:
    """Per-channel scales are for weights only, one for each channel."""
    if not is_per_channel(node):
        return
    if not is_weight(node):
        text = "per-channel scales on an activation; TensorRT requires one scale"
        yield TrtFault.CHANNEL_SCALES, text, ""
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
            TrtFault.SCALE_COUNT,
            "the scales are not as many as the channels",
            f"{scale.size} for {size} on axis {axis}",
        )


def _link_problems(node: Node) -> Iterator[QdqProblem]:
    """Only DQs read a Q; a DQ reads a Q, a constant or a model input."""
    readers = direct_readers(node)
    if is_quantize(node):
        others = [reader.op_type for reader in readers if not is_dequantize(reader)]
        if others:
            text = "a QuantizeLinear with another reader than a DequantizeLinear"
            yield TrtFault.QUANTIZE_READER, text, others[0]
        elif not readers and not node.outputs[0].is_graph_output():
            yield TrtFault.UNREAD_QUANTIZE, "a QuantizeLinear without a reader", ""
        return
    source = _node_input(node, _DATA)
    if source is None or source.is_graph_input() or constant_tensor(source) is not None:
        return
    maker = source.producer()
    if not is_quantize(maker):
        made = maker.op_type if maker is not None else "no producer"
        text = "a DequantizeLinear whose input is neither quantized nor a constant"
        yield TrtFault.DEQUANTIZE_SOURCE, text, made


def is_weight(node: Node) -> bool:
    """Return whether a Q or DQ quantizes a constant, directly or through its Q."""
    source = _node_input(node, _DATA)
    if source is None or constant_tensor(source) is not None:
        return source is not None
    maker = source.producer()
    return maker is not None and is_quantize(maker) and is_weight(maker)


def _node_input(node: Node, index: int) -> Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def _float_values(tensor: onnx_ir.TensorProtocol) -> Array:
    """Return the values as a 1-D float64 array."""
    import numpy as np

    found: Array = np.asarray(tensor.numpy()).astype(np.float64).reshape(-1)
    return found


def element_type(value: Value | None) -> str:
    """Return the name of a tensor's element type; empty if unknown."""
    if value is None:
        return ""
    dtype = value.dtype
    if dtype is None and (tensor := constant_tensor(value)) is not None:
        dtype = tensor.dtype
    return "" if dtype is None or dtype.name == "UNDEFINED" else dtype.name
