"""Whole numbers that follow from sizes by broken factors, as Python computes them: in float64.

`int(size * 0.57)` is 57 at 100 in Python, and 57.000004 in float32, which both exporters write, is
57 as well; at 0.29 it is 28 in Python and 29 in float32. Runtimes need not have float64 either, so
that such a number is read from a table of all sizes.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx_ir

    from ..core.contract import Array

_FLOAT, _INT32, _INT64 = 1, 6, 7  # onnx.TensorProto
_SIMPLE = 1000  # the largest denominator of a factor that is taken for a fraction
_DIGITS = 5  # a float32 of so many decimals is what was written
_LARGEST = 1 << 16  # sizes that a table holds
_KEPT = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Identity"})  # the first input as it is
_OPERATORS = {  # and what numpy calls them
    "Abs": "abs", "Add": "add", "Ceil": "ceil", "Div": "divide", "Floor": "floor",
    "Max": "maximum", "Min": "minimum", "Mul": "multiply", "Neg": "negative", "Pow": "power",
    "Reciprocal": "reciprocal", "Round": "rint", "Sqrt": "sqrt", "Sub": "subtract",
}  # fmt: skip
_WHOLE = frozenset({
    "Add", "Cast", "Concat", "Constant", "Div", "Gather", "Identity", "Max", "Min", "Mod", "Mul",
    "Neg", "Reshape", "Slice", "Squeeze", "Sub", "Unsqueeze",
})  # fmt: skip


def tabulate_size_numbers(model: onnx_ir.Model, largest: int) -> int:
    """Read whole numbers of sizes from tables, in place, where float32 gives others than float64.

    Args:
        model: as an exporter wrote it; casts to int64 of a float32 that follows from one size.
        largest: the largest size of a dim; of what is made of it, four times as large.

    Returns:
        How many tables there are.
    """
    import numpy as np
    import onnx_ir

    count = 0
    for node in list(onnx_ir.traversal.RecursiveGraphIterator(model.graph)):
        if node.op_type != "Cast" or node.attributes["to"].as_int() not in (_INT32, _INT64):
            continue
        number = _SizeNumber()
        value = node.inputs[0]
        if value is None or not number.reads(value) or len(number.sizes) != 1:
            continue
        size = next(iter(number.sizes))
        most = _highest(size, 4 * largest)
        if most > _LARGEST:
            continue
        sizes = np.arange(most + 1)
        with np.errstate(all="ignore"):
            exact = number.at(value, sizes, np.float64)
            rough = number.at(value, sizes, np.float32)
        if not np.isfinite(exact).all() or (np.trunc(exact) == np.trunc(rough)).all():
            continue
        _replace(node, size, np.trunc(exact).astype(np.int32))
        count += 1
    return count


class _SizeNumber:
    """A float that follows from sizes: which ones, and its value where they are given."""

    def __init__(self) -> None:
        self.sizes: dict[onnx_ir.Value, None] = {}

    def reads(self, value: onnx_ir.Value) -> bool:
        """Whether it is made of sizes, numbers and what `_OPERATORS` has."""
        import onnx_ir

        if onnx_ir.convenience.get_const_tensor(value) is not None:
            return True
        node = value.producer()
        if node is None:
            return False
        if node.op_type == "Cast" and node.attributes["to"].as_int() == _FLOAT:
            size = node.inputs[0]
            if size is None or not _is_size(size):
                return False
            self.sizes[size] = None
            return True
        inputs = node.inputs[:1] if node.op_type in _KEPT else node.inputs
        known = node.op_type in _OPERATORS or node.op_type in _KEPT
        return known and all(one is not None and self.reads(one) for one in inputs)

    def at(self, value: onnx_ir.Value, sizes: Array, dtype: Any) -> Array:
        """The value for each of these sizes, computed in a dtype."""
        import numpy as np
        import onnx_ir

        constant = onnx_ir.convenience.get_const_tensor(value)
        if constant is not None:
            number = constant.numpy().reshape(-1)[0]
            return np.asarray(_as_written(number) if dtype is np.float64 else number, dtype)
        node: Any = value.producer()
        if node.op_type == "Cast":
            return sizes.astype(dtype)
        inputs = node.inputs[:1] if node.op_type in _KEPT else node.inputs
        given = [self.at(one, sizes, dtype) for one in inputs if one is not None]
        if node.op_type in _KEPT:
            return given[0]
        return np.asarray(getattr(np, _OPERATORS[node.op_type])(*given), dtype)


def _is_size(value: onnx_ir.Value) -> bool:
    """Whether a whole number follows from shapes alone."""
    import onnx_ir

    if onnx_ir.convenience.get_const_tensor(value) is not None:
        return True
    node = value.producer()
    if node is None:
        return False
    if node.op_type in ("Shape", "Size"):
        return True
    return node.op_type in _WHOLE and all(one is None or _is_size(one) for one in node.inputs)


def _highest(value: onnx_ir.Value, largest: int) -> int:
    """A bound of a whole number that follows from shapes, none of which is larger."""
    import onnx_ir

    constant = onnx_ir.convenience.get_const_tensor(value)
    if constant is not None:
        return int(abs(constant.numpy()).max(initial=0))
    node: Any = value.producer()
    if node.op_type in ("Shape", "Size"):
        return largest if node.op_type == "Shape" else _LARGEST + 1
    given = [_highest(one, largest) for one in node.inputs if one is not None]
    if node.op_type == "Mul":
        return math.prod(given)
    return sum(given) if node.op_type in ("Add", "Sub") else max(given, default=0)


def _as_written(number: Any) -> float:
    """The float64 that a float32 was most likely written as: a short decimal, else a fraction."""
    import numpy as np

    if number.dtype != np.float32:
        return float(number)
    short = float(str(number))
    if len(str(number).rstrip("0").replace(".", "").lstrip("0")) <= _DIGITS:
        return short
    fraction = float(Fraction(float(number)).limit_denominator(_SIMPLE))
    return fraction if np.float32(fraction) == number else short


def _replace(node: onnx_ir.Node, size: onnx_ir.Value, numbers: Array) -> None:
    """Give a cast to integers what a table has for the size, in the shape that it was given."""
    import onnx_ir

    graph: Any = node.graph
    name = node.outputs[0].name

    def add(operator: str, inputs: list[onnx_ir.Value | None], suffix: str) -> onnx_ir.Value:
        table = {"value": onnx_ir.tensor(numbers)} if not inputs else {}
        made = onnx_ir.node(operator, inputs, attributes=table)
        made.outputs[0].name = f"{name}::{suffix}"
        graph.insert_before(node, made)
        return made.outputs[0]

    number = add("Gather", [add("Constant", [], "numbers"), size], "number")
    shape = add("Shape", [node.inputs[0]], "shape")
    node.replace_input_with(0, add("Reshape", [number, shape], "shaped"))
