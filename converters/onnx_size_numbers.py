"""Integers computed from sizes by fractional factors, with Python's results in float64.

`int(size * 0.29)` at 100 is 28 in Python, and 29 in float32, which both exporters write. As
runtimes may lack float64, such a number is read from a table of all sizes, or all pairs of two.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.contract import Array, Feed
from .onnx_rewrites import NodeWriter
from .onnx_sessions import open_session, run_session

if TYPE_CHECKING:
    import onnx_ir

_LOG = logging.getLogger(__name__)
_FLOAT, _INT32, _INT64 = 1, 6, 7  # onnx.TensorProto
_MAX_DENOMINATOR = 1000  # the largest denominator of a factor that is taken for a fraction
_DIGITS = 5  # a float32 of so few decimals is taken literally
_LARGEST = (1 << 16, 1 << 9)  # sizes of one dim, and of two, compared before any is measured
_ENTRIES = 1 << 20  # entries of a table; a number of more pairs stays unchanged
_VALUE_KEEPING_OPS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Identity"})  # of input 0
_OPERATORS = {  # numpy's names
    "Abs": "abs", "Add": "add", "Ceil": "ceil", "Div": "divide", "Floor": "floor",
    "Max": "maximum", "Min": "minimum", "Mul": "multiply", "Neg": "negative", "Pow": "power",
    "Reciprocal": "reciprocal", "Round": "rint", "Sqrt": "sqrt", "Sub": "subtract",
}  # fmt: skip
_INTEGER_OPS = frozenset({
    "Add", "Cast", "Concat", "Constant", "Div", "Gather", "Identity", "Max", "Min", "Mod", "Mul",
    "Neg", "Reshape", "Slice", "Squeeze", "Sub", "Unsqueeze",
})  # fmt: skip


def tabulate_size_numbers(model: onnx_ir.Model, largest: Feed) -> int:
    """Read integers computed from sizes from tables, in place, if float32 and float64 differ.

    Args:
        model: as an exporter wrote it; casts to integers of a float32 that depends on one or two
            sizes.
        largest: the feed with the largest sizes, which limits the tables.

    Returns:
        the number of tables.
    """
    import onnx_ir

    found: dict[onnx_ir.Node, _SizeNumber] = {}
    for node in onnx_ir.traversal.RecursiveGraphIterator(model.graph):
        if node.op_type == "Cast" and node.attributes["to"].as_int() in (_INT32, _INT64):
            number = _SizeNumber(node.inputs[0])
            if number.sizes and number.differs([_LARGEST[len(number.sizes) - 1]] * 2):
                found[node] = number
    sizes = _evaluate_sizes(model, [size for one in found.values() for size in one.sizes], largest)
    tables = 0
    for node, number in found.items():
        counts = [sizes[size] + 1 for size in number.sizes if size in sizes]
        known = len(counts) == len(number.sizes) and math.prod(counts) <= _ENTRIES
        if known and number.differs(counts):
            _replace_with_table(node, number, counts)
            tables += 1
    return tables


def _evaluate_sizes(
    model: onnx_ir.Model, sizes: Sequence[onnx_ir.Value], feed: Feed
) -> dict[onnx_ir.Value, int]:
    """Return the sizes in the graph for a feed; none if ONNX Runtime cannot run it."""
    import onnx
    import onnx_ir
    from onnx import helper

    outer = [size for size in dict.fromkeys(sizes) if size.graph is model.graph]
    if not outer:
        return {}
    try:
        probe = onnx_ir.to_proto(model)
        del probe.graph.output[:]
        for index, size in enumerate(outer):
            end = f"size::{index}"
            probe.graph.node.append(helper.make_node("Identity", [str(size.name)], [end]))
            probe.graph.output.append(
                helper.make_tensor_value_info(end, onnx.TensorProto.INT64, None)
            )
        ends = run_session(open_session(probe, Path(), once=True), feed)
    except Exception:  # noqa: BLE001 - a model that does not run gets no tables
        _LOG.warning("no tables of sizes: ONNX Runtime cannot run the model", exc_info=True)
        return {}
    return {size: int(ends[f"size::{index}"].max()) for index, size in enumerate(outer)}


class _SizeNumber:
    """A float computed from one or two sizes; `sizes` is empty if it is anything else."""

    def __init__(self, value: onnx_ir.Value | None) -> None:
        self._sizes: dict[onnx_ir.Value, None] = {}
        self.value: Any = value
        follows = value is not None and self.reads(value) and len(self._sizes) <= len(_LARGEST)
        self.sizes = tuple(self._sizes) if follows else ()

    def numbers(self, counts: Sequence[int], dtype: Any) -> Array:
        """Compute the integer for each size from 0 to below its count, in a dtype."""
        import numpy as np

        shape = tuple(counts[: len(self.sizes)])
        grid = dict(zip(self.sizes, np.indices(shape, sparse=True), strict=True))
        with np.errstate(all="ignore"):
            return np.trunc(self.at(self.value, grid, dtype)) + np.zeros(shape)

    def differs(self, counts: Sequence[int]) -> bool:
        """Return whether float32 and float64 differ for one of these sizes."""
        import numpy as np

        exact, rough = self.numbers(counts, np.float64), self.numbers(counts, np.float32)
        return bool(np.isfinite(exact).all() and (exact != rough).any())

    def reads(self, value: onnx_ir.Value) -> bool:
        """Return whether it consists of sizes, constants and `_OPERATORS`."""
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
            self._sizes[size] = None
            return True
        inputs = node.inputs[:1] if node.op_type in _VALUE_KEEPING_OPS else node.inputs
        known = node.op_type in _OPERATORS or node.op_type in _VALUE_KEEPING_OPS
        return known and all(one is not None and self.reads(one) for one in inputs)

    def at(self, value: onnx_ir.Value, sizes: Mapping[onnx_ir.Value, Array], dtype: Any) -> Array:
        """Compute the value for each of these sizes, in a dtype."""
        import numpy as np
        import onnx_ir

        constant = onnx_ir.convenience.get_const_tensor(value)
        if constant is not None:
            number = constant.numpy().reshape(-1)[0]
            return np.asarray(_decimal_value(number) if dtype is np.float64 else number, dtype)
        node: Any = value.producer()
        if node.op_type == "Cast":
            return sizes[node.inputs[0]].astype(dtype)
        inputs = node.inputs[:1] if node.op_type in _VALUE_KEEPING_OPS else node.inputs
        given = [self.at(one, sizes, dtype) for one in inputs if one is not None]
        if node.op_type in _VALUE_KEEPING_OPS:
            return given[0]
        return np.asarray(getattr(np, _OPERATORS[node.op_type])(*given), dtype)


def _is_size(value: onnx_ir.Value) -> bool:
    """Return whether an integer depends on shapes only."""
    import onnx_ir

    if onnx_ir.convenience.get_const_tensor(value) is not None:
        return True
    node = value.producer()
    if node is None:
        return False
    if node.op_type in ("Shape", "Size"):
        return True
    return node.op_type in _INTEGER_OPS and all(one is None or _is_size(one) for one in node.inputs)


def _decimal_value(number: Any) -> float:
    """Return the float64 that a float32 likely stands for: a short decimal, else a fraction."""
    import numpy as np

    if number.dtype != np.float32:
        return float(number)
    short = float(str(number))
    if len(str(number).rstrip("0").replace(".", "").lstrip("0")) <= _DIGITS:
        return short
    fraction = float(Fraction(float(number)).limit_denominator(_MAX_DENOMINATOR))
    return fraction if np.float32(fraction) == number else short


def _replace_with_table(node: onnx_ir.Node, number: _SizeNumber, counts: Sequence[int]) -> None:
    """Replace a cast to integers by a table lookup of the sizes, in its shape."""
    import numpy as np

    writer = NodeWriter(node)
    numbers = number.numbers(counts, np.float64).astype(np.int32).reshape(-1)
    place: Any = number.sizes[0]
    for size, count in zip(number.sizes[1:], counts[1:], strict=True):
        row = writer.add("Mul", place, writer.integers(count, scalar=True))
        place = writer.add("Add", row, size)
    read = writer.add("Gather", writer.constant(numbers), place)
    shape = writer.add("Shape", node.inputs[0])
    node.replace_input_with(0, writer.add("Reshape", read, shape))
