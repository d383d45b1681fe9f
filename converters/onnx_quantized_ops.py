"""Q/DQ nodes of a program that pt2e quantized: their translation, and reading them back.

torch's own translations ignore narrower ranges of the integers than their dtype's, and lack the
operators that choose scales at run time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..capture.refusals import RefusedError
from ..core.contract import Array
from ..core.errors import Hint, Option
from ..core.weights import QuantizationStep
from .onnx_guard import read_graph
from .onnx_shared_ops import OpWriter
from .onnx_topology import DEQUANTIZE, QUANTIZE, all_graphs, constant_values

if TYPE_CHECKING:
    import onnx

_FLOAT, _INT64, _DOUBLE = 1, 7, 11  # onnx.TensorProto
_RANGES = {2: (0, 255), 3: (-128, 127), 4: (0, 65535), 5: (-32768, 32767)}  # by onnx.TensorProto
_WIDE = (4, 5)  # uint16, int16
_WIDE_OPSET = 21
_SPACE = "quantized_decomposed"


def _quantize(op: Any, self: Any, scale: Any, zero: Any, *bounds: Any) -> Any:
    """Round by one scale, a number or a tensor; `bounds` are the least, the most and the dtype."""
    low, high, dtype = bounds
    _check_dtype(op, dtype)
    rounded = op.QuantizeLinear(self, _as_scale(op, scale), _as_zero(op, zero, dtype))
    return _clip(op, rounded, (low, high), dtype)


def _quantize_channels(op: Any, self: Any, scales: Any, zeros: Any, axis: int, *bounds: Any) -> Any:
    """Round by one scale for each index of an axis."""
    low, high, dtype = bounds
    _check_dtype(op, dtype)
    scales, zeros = op.Cast(scales, to=_FLOAT), op.Cast(zeros, to=dtype)
    return _clip(op, op.QuantizeLinear(self, scales, zeros, axis=axis), (low, high), dtype)


def _dequantize(
    op: Any, self: Any, scale: Any, zero: Any, *bounds: Any, out_dtype: Any = None
) -> Any:
    """Return floats of integers with one scale, a number or a tensor."""
    dtype = bounds[2]
    _check_dtype(op, dtype)
    found = op.DequantizeLinear(self, _as_scale(op, scale), _as_zero(op, zero, dtype))
    return _cast_result(op, found, out_dtype)


def _dequantize_channels(  # noqa: PLR0913 - the operator's own
    op: Any, self: Any, scales: Any, zeros: Any, axis: int, *bounds: Any, out_dtype: Any = None
) -> Any:
    """Return floats of integers with one scale for each index of an axis."""
    dtype = bounds[2]
    _check_dtype(op, dtype)
    zeros = None if zeros is None else op.Cast(zeros, to=dtype)
    found = op.DequantizeLinear(self, op.Cast(scales, to=_FLOAT), zeros, axis=axis)
    return _cast_result(op, found, out_dtype)


def _choose_scale(  # noqa: PLR0913, PLR0917 - as above
    op: Any, self: Any, low: int, high: int, least: float, dtype: int
) -> tuple[Any, Any]:
    """Return the scale and the zero point that cover all values and 0, of shape (1,)."""
    _check_dtype(op, dtype)
    bottom = op.Min(op.ReduceMin(self, keepdims=0), 0.0)
    top = op.Max(op.ReduceMax(self, keepdims=0), 0.0)
    scale = op.Max(op.Div(op.Sub(top, bottom), float(high - low)), float(least))
    zero = op.Sub(float(low), op.Round(op.Div(bottom, scale)))
    zero = op.Cast(op.Clip(zero, float(low), float(high)), to=_INT64)
    return op.Unsqueeze(op.Cast(scale, to=_DOUBLE), [0]), op.Unsqueeze(zero, [0])


# By operator; only programs of pt2e have them, and torch defines them if it is asked for.
QUANTIZED_OPS: dict[str, OpWriter] = {
    f"{_SPACE}::quantize_per_tensor": _quantize,
    f"{_SPACE}::dequantize_per_tensor": _dequantize,
    f"{_SPACE}::choose_qparams": _choose_scale,
    f"{_SPACE}::quantize_per_channel": _quantize_channels,
    f"{_SPACE}::dequantize_per_channel": _dequantize_channels,
}


def is_quantized(operators: frozenset[str]) -> bool:
    """Return whether a program with these operators rounds to integers."""
    return not operators.isdisjoint(QUANTIZED_OPS)


def _check_dtype(op: Any, dtype: int) -> None:
    if dtype not in _RANGES:
        raise RefusedError(
            f"pt2e rounds to the ONNX dtype {dtype}, which has no Q/DQ nodes",
            hint="quantize to int8, uint8, int16 or uint16",
        )
    if dtype in _WIDE and op.version < _WIDE_OPSET:
        raise RefusedError(
            f"pt2e rounds to 16 bits, and opset {op.version} has no Q/DQ nodes of them",
            hint=Hint("add ", Option("opset", str(_WIDE_OPSET))),
            option="opset",
        )


def _as_scale(op: Any, scale: Any) -> Any:
    if isinstance(scale, float | int):
        return op.Constant(value_float=float(scale))
    return op.Cast(op.Squeeze(scale), to=_FLOAT)


def _as_zero(op: Any, zero: Any, dtype: int) -> Any:
    if isinstance(zero, int):
        return op.Cast(op.Constant(value_int=zero), to=dtype)
    return op.Cast(op.Squeeze(zero), to=dtype)


def _clip(op: Any, rounded: Any, bounds: tuple[int, int], dtype: int) -> Any:
    """Limit integers to a range that is narrower than their dtype's."""
    if bounds == _RANGES[dtype]:
        return rounded
    low, high = (op.Cast(op.Constant(value_int=one), to=dtype) for one in bounds)
    return op.Clip(rounded, low, high)


def _cast_result(op: Any, found: Any, dtype: Any) -> Any:
    return found if dtype in (None, -1, _FLOAT) else op.Cast(found, to=dtype)


def read_quantization_steps(path: Path) -> Iterator[QuantizationStep]:
    """Yield the Q/DQ nodes of a file with constant scales.

    Raises:
        RunnerError: the file cannot be read.
    """
    for graph in all_graphs(read_graph(path).graph):
        known = {tensor.name: tensor for tensor in graph.initializer}
        for node in graph.node:
            if node.op_type == "Constant" and node.attribute[0].HasField("t"):
                known[node.output[0]] = node.attribute[0].t
        read = partial(_read_constant, known, path.parent)
        for node in graph.node:
            step = _read_step(node, read) if node.op_type in (QUANTIZE, DEQUANTIZE) else None
            if step is not None:
                yield step


def _read_constant(known: Mapping[str, onnx.TensorProto], folder: Path, name: str) -> Array | None:
    return constant_values(known[name], folder) if name in known else None


def _read_step(
    node: onnx.NodeProto, read: Callable[[str], Array | None]
) -> QuantizationStep | None:
    """Return the scales of a node, with its integers if these are constant; None without any."""
    import numpy as np

    given, scale, zero = (*node.input, "")[:3]
    scales = read(scale)
    if scales is None:
        return None
    zeros = read(zero) if zero else np.zeros(scales.shape, np.int8)
    integers = read(given) if node.op_type == DEQUANTIZE else None
    return QuantizationStep(
        place=node.name or node.output[0], scales=scales, zeros=zeros, integers=integers
    )
