"""ONNX translations of remainders and of quotients that are rounded down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .onnx_shared_ops import OpWriter, as_floats, dtype_of, is_graph_value

_FLOAT = 1  # onnx.TensorProto
_COUNTS = frozenset({"Shape", "Size"})
_MOVES = frozenset({"Cast", "Gather", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
_KEEPS_SIGN = frozenset({"Add", "Div", "Max", "Min", "Mod", "Mul"})


def remainder(op: Any, self: Any, other: Any) -> Any:
    """Return the remainder with the sign of the divisor.

    Exact for floats, as in eager: `x - floor(x / y) * y` of torch's exporters is off by y where the
    quotient is rounded to a whole number, such as 0.3 / 0.1.
    """
    if not are_floats(self, other):
        return op.Mod(self, other)
    self, other = _both_floats(op, self, other)
    rest = op.Mod(self, other, fmod=1)
    return op.Where(_is_opposed(op, rest, other), op.Add(rest, other), rest)


def divide_down(op: Any, self: Any, other: Any) -> Any:
    """Return the quotient of floats, rounded down as c10's `div_floor_floating` does.

    Exact by the remainder: `floor(x / y)` of torch's exporters is off by 1 where the quotient is
    rounded to a whole number. A quotient of 0 is positive: ONNX Runtime's Where makes -0 a 0.
    """
    if _is_half(self) and isinstance(other, float):  # eager computes in float32
        return op.CastLike(divide_down(op, op.Cast(self, to=_FLOAT), other), self)
    self, other = _both_floats(op, self, other)
    if isinstance(other, float) and other == 0:
        return op.Div(self, other)
    rest = op.Mod(self, other, fmod=1)
    quotient = op.Div(op.Sub(self, rest), other)  # nearly whole
    one = op.CastLike(1.0, rest)
    lower = op.Sub(quotient, one)
    quotient = op.Where(_is_opposed(op, rest, other), lower, quotient)
    whole = op.Floor(quotient)
    is_below = op.Greater(op.Sub(quotient, whole), op.CastLike(0.5, rest))
    whole = op.Where(is_below, op.Add(whole, one), whole)
    if isinstance(other, float):
        return whole
    is_endless = op.Equal(other, op.CastLike(0.0, other))
    return op.Where(is_endless, op.Div(self, other), whole)


def _is_opposed(op: Any, rest: Any, other: Any) -> Any:
    """Return where a remainder is not 0 and has not the divisor's sign."""
    zero = op.CastLike(0.0, rest)
    if isinstance(other, float):
        return op.Less(rest, zero) if other > 0 else op.Greater(rest, zero)
    opposed = op.Xor(op.Less(rest, zero), op.Less(other, zero))
    return op.And(opposed, op.Not(op.Equal(rest, zero)))


def _both_floats(op: Any, self: Any, other: Any) -> tuple[Any, Any]:
    """Return both as floats: values of the graph, or Python's."""
    one, two = (as_floats(op, v) if is_graph_value(v) else float(v) for v in (self, other))
    return one, two


def are_floats(self: Any, other: Any) -> bool:
    """Return whether the quotient of two values of the graph or numbers is surely a float."""
    return _is_float(self) or _is_float(other)


def _is_float(value: Any) -> bool:
    if not is_graph_value(value):
        return isinstance(value, float)
    name = dtype_of(value) or ""
    return "float" in name or name == "double"


def _is_half(value: Any) -> bool:
    return is_graph_value(value) and dtype_of(value) in {"float16", "bfloat16"}


def floor_divide(op: Any, self: Any, other: Any) -> Any:
    """Divide floats exactly; integers as the dynamo exporter does."""
    from onnxscript.function_libs.torch_lib.ops import core

    if are_floats(self, other):
        return divide_down(op, self, other)
    return core.aten_floor_divide(self, other)


def div_mode(op: Any, self: Any, other: Any, rounding_mode: str | None = None) -> Any:
    """Round quotients of floats down exactly; translate others as the dynamo exporter does."""
    from onnxscript.function_libs.torch_lib.ops import core

    if rounding_mode == "floor" and are_floats(self, other):
        return divide_down(op, self, other)
    return core.aten_div_mode(self, other, rounding_mode)


def floordiv(op: Any, self: Any, other: Any) -> Any:
    """Divide sizes towards minus infinity as Python does: `-(-h // 4)` rounds up.

    ONNX and torch's exporter divide integers towards zero. If an operand may be negative, subtract
    the remainder first, which leaves nothing to round.
    """
    if _is_non_negative(self) and _is_non_negative(other):
        return op.Div(self, other)
    return op.Div(op.Sub(self, op.Mod(self, other)), other)


def _is_non_negative(size: Any) -> bool:
    """Return whether a size is surely non-negative: a count, or computed from counts.

    Any other number, such as one read from a tensor, may be negative.
    """
    from onnxscript import ir

    if isinstance(size, int):
        return size >= 0
    number = ir.convenience.get_const_tensor(size)
    if number is not None:
        return bool((number.numpy() >= 0).all())
    node = size.producer()
    if node is None:
        return False
    if node.op_type in _COUNTS:
        return True
    if node.op_type in _MOVES:
        return _is_non_negative(node.inputs[0])
    return node.op_type in _KEEPS_SIGN and all(map(_is_non_negative, node.inputs))


DIVISION_OPS: Mapping[str, OpWriter] = {"aten::remainder": remainder}
DYNAMO_DIVISION_OPS: Mapping[str, OpWriter] = {
    "aten::div.Scalar_mode": div_mode,
    "aten::div.Tensor_mode": div_mode,
    "aten::floor_divide": floor_divide,
}
