"""Pooling in ONNX: to a given size, of images of any size; behind a padding of its own.

The exporter writes pooling to a given size for one size of images. A window of torch's reaches from
floor(i n / m) to ceil((i + 1) n / m), for m windows over n places.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .onnx_translations import cannot_write, rank_of, size_of

if TYPE_CHECKING:
    import onnx_ir

Write = Callable[..., object]
_MOST = 256  # windows; each maximum is a slice of its own


def adaptive_average(op: Any, self: Any, output_size: Sequence[Any]) -> Any:
    """Means over windows, along one axis after the other: all windows of a row are of one size."""
    sizes = output_size if isinstance(output_size, list | tuple) else [output_size]
    if all(size == 1 for size in sizes):
        return op.ReduceMean(self, list(range(-len(sizes), 0)), keepdims=1)
    given = [size_of(self, axis) for axis in range(-len(sizes), 0)]
    strides = [_stride(one, size) for one, size in zip(given, sizes, strict=True)]
    if None not in strides and rank_of(self) == len(sizes) + 2:
        return op.AveragePool(self, kernel_shape=strides, strides=strides)
    rank = rank_of(self)
    for axis, size in zip(range(rank - len(sizes), rank), sizes, strict=True):
        self = _averaged(op, self, axis, size, rank)
    return self


def adaptive_maximum(op: Any, self: Any, output_size: Sequence[Any]) -> tuple[Any, Any]:
    """Maxima of windows, and their places in the image."""
    sizes = output_size if isinstance(output_size, list | tuple) else [output_size]
    if not all(isinstance(size, int) for size in sizes) or math.prod(sizes) > _MOST:
        raise cannot_write("adaptive_max_pool", f"with a dynamic output or of over {_MOST} windows")
    axes = list(range(-len(sizes), 0))
    full = op.Shape(self, start=-len(sizes))
    outer = op.Shape(self, start=0, end=-len(sizes))
    row = op.Concat(outer, op.Constant(value_ints=[-1]), axis=0)
    values, places = [], []
    for window in itertools.product(*map(range, sizes)):
        first, last = _bounds(op, window, full, sizes)
        part = op.Reshape(op.Slice(self, first, last, axes), row)
        values.append(op.ReduceMax(part, [-1], keepdims=1))
        best = op.ArgMax(part, axis=-1, keepdims=1)
        places.append(_place_in_image(op, best, (first, last), full, len(sizes)))
    shape = op.Concat(outer, op.Constant(value_ints=list(sizes)), axis=0)
    return tuple(op.Reshape(op.Concat(*one, axis=-1), shape) for one in (values, places))


def _stride(given: int | None, size: Any) -> int | None:
    """The size of the windows where they are all alike and do not overlap."""
    if given is None or not isinstance(size, int) or given % size:
        return None
    return given // size


def _averaged(op: Any, values: Any, axis: int, size: Any, rank: int) -> Any:
    """Means along an axis, by a matrix of weights [windows, places]."""
    count = op.Shape(values, start=axis, end=axis + 1)
    length = op.Constant(value_ints=[size]) if isinstance(size, int) else op.Reshape(size, [1])
    windows = op.Unsqueeze(op.Range(0, op.Squeeze(length), 1), [1])
    first, last = _bounds(op, windows, count, length)
    places = op.Range(0, op.Squeeze(count), 1)
    inside = op.And(op.GreaterOrEqual(places, first), op.Less(places, last))
    widths = op.CastLike(op.Sub(last, first), values)
    weights = op.Div(op.CastLike(inside, values), widths)
    if axis == rank - 1:
        return op.MatMul(values, op.Transpose(weights, perm=[1, 0]))
    order = list(range(rank))  # the axis comes last but one
    order[axis], order[-2] = order[-2], order[axis]
    return op.Transpose(op.MatMul(weights, op.Transpose(values, perm=order)), perm=order)


def _bounds(op: Any, windows: Any, count: Any, sizes: Any) -> tuple[Any, Any]:
    """The first place of windows, and the one behind the last, along each axis."""
    first = op.Div(op.Mul(count, windows), sizes)
    end = op.Add(op.Mul(op.Add(windows, 1), count), op.Sub(sizes, 1))
    return first, op.Div(end, sizes)


def _place_in_image(op: Any, best: Any, bounds: tuple[Any, Any], full: Any, axes: int) -> Any:
    """The place in the image of what is at a place in a window, both counted row by row."""
    widths = op.Sub(bounds[1], bounds[0])
    found, stride = None, None
    for axis in reversed(range(axes)):
        width, start, whole = (op.Gather(one, [axis]) for one in (widths, bounds[0], full))
        at = op.Add(op.Mod(best, width), start)
        best = op.Div(best, width)
        found = at if found is None else op.Add(found, op.Mul(at, stride))
        stride = whole if stride is None else op.Mul(stride, whole)
    return found


OF_POOLS: Mapping[str, Write] = {
    "aten::adaptive_avg_pool1d": adaptive_average,
    "aten::adaptive_avg_pool2d": adaptive_average,
    "aten::adaptive_avg_pool3d": adaptive_average,
    "aten::_adaptive_avg_pool2d": adaptive_average,
    "aten::_adaptive_avg_pool3d": adaptive_average,
    "aten::adaptive_max_pool1d": adaptive_maximum,
    "aten::adaptive_max_pool2d": adaptive_maximum,
    "aten::adaptive_max_pool3d": adaptive_maximum,
}


def name_padded_axes(model: onnx_ir.Model) -> None:
    """Name the axes of each Pad before a MaxPool, in place: all of them, as where none is named.

    ONNX Runtime (1.24) takes such a Pad into the pool. There the border counts for nothing, where
    zeros were meant, which are larger than what is negative; a Pad that names axes stays.
    """
    import numpy as np
    import onnx_ir

    for node in list(onnx_ir.traversal.RecursiveGraphIterator(model.graph)):
        if node.op_type != "Pad" or len(node.inputs) > 3 or node.graph is None:  # noqa: PLR2004 - axes
            continue
        ranks = [
            len(value.shape) for value in (*node.inputs[:1], *node.outputs) if value and value.shape
        ]
        if ranks and any(reader.op_type == "MaxPool" for reader, _ in node.outputs[0].uses()):
            axes = onnx_ir.tensor(np.arange(max(ranks), dtype=np.int64))
            constant = onnx_ir.node("Constant", [], attributes={"value": axes})
            constant.outputs[0].name = f"{node.outputs[0].name}::axes"
            node.graph.insert_before(node, constant)
            node.resize_inputs(4)
            node.replace_input_with(3, constant.outputs[0])
