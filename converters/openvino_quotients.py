"""Quotients of float32 in OpenVINO, rounded as IEEE 754 says where they become discrete.

OpenVINO 2026.4 computes a / b as a * (1 / b), which is the neighbour of the right float32 in a
quarter of all cases: 49 / 49 is below 1. Nobody sees that in a logit, but floor, a comparison or an
index make a whole step of it. It can be told to divide (`nonconvertable_divide`), but forgets it in
the file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .openvino_exact import model_nodes, replace_node

if TYPE_CHECKING:
    import openvino

_HALVES = 4096  # a float32 splits into the upper and the lower 12 bits of its significand
_LARGEST = 3e38  # a correction beyond overflowed on its way
_DISCRETE = frozenset({
    "Bucketize", "Ceiling", "Equal", "Floor", "FloorMod", "Greater", "GreaterEqual", "Less",
    "LessEqual", "Mod", "NotEqual", "Range", "Round", "Sign",
})  # fmt: skip
_KEEP = frozenset({  # element by element, or as it is: what is discrete after them was before
    "Abs", "Add", "Broadcast", "Clamp", "Concat", "Convert", "Divide", "Exp", "Gather",
    "GatherElements", "Log", "Maximum", "Minimum", "Multiply", "Negative", "Power", "ReduceMax",
    "ReduceMin", "Relu", "Reshape", "Select", "Slice", "Split", "Sqrt", "Squeeze", "StridedSlice",
    "Subtract", "Tile", "Transpose", "Unsqueeze", "VariadicSplit",
})  # fmt: skip


def keep_discrete_quotients(model: openvino.Model) -> None:
    """Round divisions of float32 right where something discrete is made of the result, in place."""
    for node in _discrete_divisions(model):
        if node.get_type_name() == "Divide":
            replace_node(node, exact_divide(*node.input_values()))


def exact_divide(a: Any, b: Any) -> openvino.Node:
    """The float32 that is nearest to a / b, in operators that OpenVINO's CPU keeps to.

    q = a * (1 / b) is next to it at most. The rest a - q * b is computed without an error, with
    q * b as the sum of two float32 (Dekker, 1971), and rest / b is added to q. Numbers beyond some
    1e34 or below 1e-31 in magnitude may keep the q that they had.
    """
    import numpy as np
    from openvino import opset13 as op

    inverse = op.power(b, np.float32(-1))
    q = op.multiply(a, inverse)
    product = op.multiply(q, b)
    (q_high, q_low), (b_high, b_low) = _split_float(q), _split_float(b)
    error = op.subtract(op.multiply(q_high, b_high), product)
    for first, second in ((q_high, b_low), (q_low, b_high), (q_low, b_low)):
        error = op.add(error, op.multiply(first, second))
    rest = op.subtract(op.subtract(a, product), error)
    better = op.add(q, op.multiply(rest, inverse))
    known = op.less_equal(op.abs(better), np.float32(_LARGEST))  # false of NaN
    return op.select(known, better, q)


def _split_float(x: Any) -> tuple[openvino.Node, openvino.Node]:
    """Two float32 of 12 bits whose sum is x (Veltkamp, 1968)."""
    import numpy as np
    from openvino import opset13 as op

    shifted = op.add(op.multiply(x, np.float32(_HALVES)), x)  # 4097, which float16 does not have
    high = op.subtract(shifted, op.subtract(shifted, x))
    return high, op.subtract(x, high)


def _discrete_divisions(model: openvino.Model) -> list[Any]:
    """The nodes of float32 whose values become discrete, element by element, further on."""
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
