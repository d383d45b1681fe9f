"""Exact integer arithmetic, remainders and correctly rounded quotients in OpenVINO models."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from ..core.signature import Signature
from .onnx_rewrites import has_wide_integers
from .openvino_rewrites import depends_on_data, int64_constant, model_nodes, replace_node

if TYPE_CHECKING:
    import openvino

BinaryWriter: TypeAlias = Callable[[Any, Any], Any]
_EXACT = 2**24  # integers up to here are exact in float32
_INTEGERS = frozenset({"i32", "i64"})
_LOGICAL = {
    "LogicalAnd": "logical_and", "LogicalOr": "logical_or", "LogicalXor": "logical_xor",
    "LogicalNot": "logical_not",
}  # fmt: skip


def keep_wide_integers(model: openvino.Model, signature: Signature) -> None:
    """Write divisions, remainders and comparisons of integers exactly, in place.

    Only if an input of the signature exceeds 2^24, and only for values computed from inputs: sizes
    are small. Divisors are anything except 0 and -2^31.
    """
    if not has_wide_integers(signature, beyond=_EXACT):
        return
    for node in list(model_nodes(model)):
        kind = node.get_type_name()
        if kind in _LOGICAL:
            _keep_apart(node)
            continue
        write = _WRITERS.get(kind)
        if write is None or node.get_input_element_type(0).get_type_name() not in _INTEGERS:
            continue
        if any(depends_on_data(value) for value in node.input_values()):
            first, second = (_add_axis(value) for value in node.input_values())
            replace_node(node, _remove_axis(write(first, second)))


def _keep_apart(node: Any) -> None:
    """Keep a logical operator out of the kernel of a Select of integers that reads it."""
    readers = [port.get_node() for port in node.output(0).get_target_inputs()]
    if any(
        one.get_type_name() == "Select"
        and one.get_output_element_type(0).get_type_name() in _INTEGERS
        for one in readers
    ):
        from openvino import opset13 as op

        write = getattr(op, _LOGICAL[node.get_type_name()])
        replace_node(node, _remove_axis(write(*map(_add_axis, node.input_values()))))


def _add_axis(value: Any) -> Any:
    """Add an axis of size 1 in front."""
    from openvino import opset13 as op

    return op.unsqueeze(value, int64_constant(0))


def _remove_axis(value: Any) -> Any:
    from openvino import opset13 as op

    return op.squeeze(value, int64_constant(0))


def _number_like(number: int, like: Any) -> Any:
    from openvino import opset13 as op

    return op.constant(number, dtype=like.get_element_type())


def _negative(x: Any) -> Any:
    from openvino import opset13 as op

    return op.subtract(_number_like(0, x), x)


def _sign(x: Any) -> Any:
    from openvino import opset13 as op

    return op.minimum(op.maximum(x, _number_like(-1, x)), _number_like(1, x))


def _one_if_positive(x: Any) -> Any:
    from openvino import opset13 as op

    return op.maximum(_sign(x), _number_like(0, x))


def _quotient(a: Any, b: Any) -> Any:
    """Return a / b, rounded towards zero.

    A float32 quotient is off by at most 2^8, and that of the remainder by 1, which the last
    remainder corrects.
    """
    from openvino import opset13 as op

    whole, step = (op.maximum(x, _negative(x)) for x in (a, b))
    first = op.divide(whole, step)
    rest = op.subtract(whole, op.multiply(first, step))
    second = op.divide(rest, step)
    rest = op.subtract(rest, op.multiply(second, step))
    too_small = _one_if_positive(op.add(op.subtract(rest, step), _number_like(1, rest)))
    found = op.subtract(op.add(first, second), _one_if_positive(_negative(rest)))
    return op.multiply(op.multiply(op.add(found, too_small), _sign(a)), _sign(b))


def _remainder(a: Any, b: Any) -> Any:
    """Return the remainder with the sign of a."""
    from openvino import opset13 as op

    return op.subtract(a, op.multiply(_quotient(a, b), b))


def _floor_remainder(a: Any, b: Any) -> Any:
    """Return the remainder with the sign of b."""
    from openvino import opset13 as op

    rest = _remainder(a, b)
    differ = _one_if_positive(_negative(op.multiply(_sign(rest), _sign(b))))
    return op.add(rest, op.multiply(differ, b))


def _difference(a: Any, b: Any) -> Any:
    """Return 0 where a and b are equal, else 1 or -1: a difference wraps, but not to 0."""
    from openvino import opset13 as op

    return _sign(op.subtract(a, b))


def _excess(a: Any, b: Any) -> Any:
    """Return 0 unless a is greater, else 1 or -1."""
    from openvino import opset13 as op

    return _difference(op.maximum(a, b), b)


def _compare_with(nonzero: bool, measure: BinaryWriter) -> BinaryWriter:
    def write(a: Any, b: Any) -> Any:
        from openvino import opset13 as op

        found = measure(a, b)
        compare = op.not_equal if nonzero else op.equal
        return compare(found, _number_like(0, found))

    return write


_WRITERS: dict[str, BinaryWriter] = {
    "Divide": _quotient,
    "Mod": _remainder,
    "FloorMod": _floor_remainder,
    "Equal": _compare_with(False, _difference),
    "NotEqual": _compare_with(True, _difference),
    "Greater": _compare_with(True, _excess),
    "Less": _compare_with(True, lambda a, b: _excess(b, a)),
    "GreaterEqual": _compare_with(False, lambda a, b: _excess(b, a)),
    "LessEqual": _compare_with(False, _excess),
}


_HALVES = 4096  # splits a float32 into the upper and the lower 12 bits of its significand
_WHOLE = 2**23  # below it, the fraction of a float32 has a digit
_LARGEST = 3e38  # a larger correction overflowed
_DISCRETE = frozenset({
    "Bucketize", "Ceiling", "Equal", "Floor", "FloorMod", "Greater", "GreaterEqual", "Less",
    "LessEqual", "Mod", "NotEqual", "Range", "Round", "Sign",
})  # fmt: skip
_KEEP = frozenset({  # element-wise or moves: none makes a value discrete
    "Abs", "Add", "Broadcast", "Clamp", "Concat", "Convert", "Divide", "Exp", "Gather",
    "GatherElements", "Log", "Maximum", "Minimum", "Multiply", "Negative", "Power", "ReduceMax",
    "ReduceMin", "Relu", "Reshape", "Select", "Slice", "Split", "Sqrt", "Squeeze", "StridedSlice",
    "Subtract", "Tile", "Transpose", "Unsqueeze", "VariadicSplit",
})  # fmt: skip


def keep_float_divisions(model: openvino.Model) -> None:
    """Write quotients that become discrete, and remainders, of float32 as eager has them."""
    keep_discrete_quotients(model)
    keep_float_remainders(model)


def keep_discrete_quotients(model: openvino.Model) -> None:
    """Round divisions of float32 correctly if their result becomes discrete, in place."""
    for node in _discrete_divisions(model):
        if node.get_type_name() == "Divide":
            replace_node(node, exact_divide(*node.input_values()))


def exact_divide(a: Any, b: Any) -> openvino.Node:
    """Return the float32 nearest to a / b, in operators that OpenVINO's CPU leaves alone.

    q = a * (1 / b) is at most one float32 off. The remainder a - q * b is computed exactly, with q
    * b as the sum of two float32 (Dekker, 1971), and remainder / b is added to q. Magnitudes beyond
    some 1e34 or below 1e-31 may keep q.
    """
    import numpy as np
    from openvino import opset13 as op

    inverse = op.power(b, np.float32(-1))
    q = op.multiply(a, inverse)
    better = op.add(q, op.multiply(_rest_of(a, q, b), inverse))
    known = op.less_equal(op.abs(better), np.float32(_LARGEST))  # false for NaN
    return op.select(known, better, q)


def keep_float_remainders(model: openvino.Model) -> None:
    """Write remainders of float32 that depend on inputs exactly, in place.

    OpenVINO's CPU divides: its remainder is off by the divisor where the quotient is rounded to a
    whole number.
    """
    for node in list(model_nodes(model)):
        if (
            node.get_type_name() == "Mod"
            and node.get_output_element_type(0).get_type_name() == "f32"
            and any(depends_on_data(value) for value in node.input_values())
        ):
            replace_node(node, exact_remainder(*node.input_values()))


def exact_remainder(a: Any, b: Any) -> openvino.Node:
    """Return the float32 remainder with the sign of a, as C's `fmod` does.

    The whole quotient is at most one off below 2^23, and a - q * b is a float32 then. Beyond, and
    for what is not finite, OpenVINO's own stays.
    """
    import numpy as np
    from openvino import opset13 as op

    zero = np.float32(0)
    whole, step = op.abs(a), op.abs(b)
    q = op.floor(op.multiply(whole, op.power(step, np.float32(-1))))
    rest = _rest_of(whole, q, step)
    rest = op.select(op.less(rest, zero), op.add(rest, step), rest)
    rest = op.select(op.greater_equal(rest, step), op.subtract(rest, step), rest)
    rest = op.select(op.less(whole, step), whole, rest)  # also where q * b is not finite
    rest = op.select(op.less(a, zero), op.subtract(zero, rest), rest)
    return op.select(op.less(q, np.float32(_WHOLE)), rest, op.mod(a, b))


def _rest_of(a: Any, q: Any, b: Any) -> openvino.Node:
    """Return a - q * b, exact if that is a float32."""
    from openvino import opset13 as op

    product = op.multiply(q, b)
    (q_high, q_low), (b_high, b_low) = _split_float(q), _split_float(b)
    error = op.subtract(op.multiply(q_high, b_high), product)
    for first, second in ((q_high, b_low), (q_low, b_high), (q_low, b_low)):
        error = op.add(error, op.multiply(first, second))
    return op.subtract(op.subtract(a, product), error)


def _split_float(x: Any) -> tuple[openvino.Node, openvino.Node]:
    """Split x into two float32 of 12 bits whose sum is x (Veltkamp, 1968)."""
    import numpy as np
    from openvino import opset13 as op

    shifted = op.add(op.multiply(x, np.float32(_HALVES)), x)  # not 4097, which float16 lacks
    high = op.subtract(shifted, op.subtract(shifted, x))
    return high, op.subtract(x, high)


def _discrete_divisions(model: openvino.Model) -> list[Any]:
    """Return the float32 nodes whose values become discrete further on."""
    found: dict[str, Any] = {}
    left = [node for node in model_nodes(model) if _is_discrete(node)]
    while left:
        for value in left.pop().input_values():
            node = value.get_node()
            if (
                node.get_type_name() in _KEEP
                and node.get_output_element_type(0).get_type_name() == "f32"
                and node.get_name() not in found
            ):
                found[node.get_name()] = node
                left.append(node)
    return list(found.values())


def _is_discrete(node: Any) -> bool:
    kind = node.get_type_name()
    if kind != "Convert":
        return kind in _DISCRETE
    return (
        node.get_input_element_type(0).is_real() and not node.get_output_element_type(0).is_real()
    )
