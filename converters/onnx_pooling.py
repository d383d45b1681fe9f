"""Pooling in ONNX: to a given size, of images of any size; behind a padding of its own.

The exporter writes pooling to a given size for one size of images. A window of torch's reaches from
floor(i n / m) to ceil((i + 1) n / m), for m windows over n places.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .onnx_translations import rank_of, size_of

if TYPE_CHECKING:
    import onnx_ir

PoolOpWriter = Callable[..., object]
_POOL_INT64 = 7  # onnx.TensorProto


def adaptive_avg_pool(op: Any, self: Any, output_size: Any) -> Any:
    """Means over windows: sums along one axis after the other, then divided, as eager does."""
    sizes, rank = _as_list(output_size), rank_of(self)
    if all(size == 1 for size in sizes):
        return op.ReduceMean(self, list(range(-len(sizes), 0)), keepdims=1)
    given = [size_of(self, axis) for axis in range(-len(sizes), 0)]
    strides = [_uniform_stride(one, size) for one, size in zip(given, sizes, strict=True)]
    if None not in strides and rank == len(sizes) + 2:
        return op.AveragePool(self, kernel_shape=strides, strides=strides)
    total, widths = self, []
    for axis, size in zip(range(rank - len(sizes), rank), sizes, strict=True):
        windows = _pool_windows(op, op.Shape(self, start=axis, end=axis + 1), size)
        parts = op.Gather(total, windows.places, axis=axis)
        inside = _add_axes(op, windows.inside, rank - axis - 1)
        parts = op.Where(inside, parts, op.CastLike(0.0, self))
        total = op.ReduceSum(parts, [axis + 1], keepdims=0)
        widths.append(op.CastLike(_add_axes(op, windows.widths, rank - axis - 1), self))
    for width in widths:
        total = op.Div(total, width)
    return total


def adaptive_max_pool(op: Any, self: Any, output_size: Any) -> tuple[Any, Any]:
    """Maxima of windows, and their places in the image: of the last NaN, else of the first maximum.

    Along one axis after the other, from the last: in a window the rows come before the columns.
    """
    sizes, rank = _as_list(output_size), rank_of(self)
    top, found, stride = self, None, None
    for axis, size in reversed(list(zip(range(rank - len(sizes), rank), sizes, strict=True))):
        count = op.Shape(self, start=axis, end=axis + 1)
        windows = _pool_windows(op, count, size)
        parts = op.Gather(top, windows.places, axis=axis)
        top, best = _window_maximum(
            op, parts, _add_axes(op, windows.inside, rank - axis - 1), axis + 1
        )
        at = op.Add(best, _add_axes(op, windows.first, rank - axis - 1))
        if found is None:
            found, stride = at, count
        else:
            inner = op.Gather(found, windows.places, axis=axis)
            inner = op.GatherElements(inner, op.Unsqueeze(best, [axis + 1]), axis=axis + 1)
            found = op.Add(op.Squeeze(inner, [axis + 1]), op.Mul(at, stride))
            stride = op.Mul(stride, count)
    return top, found


def _as_list(sizes: Any) -> list[Any]:
    return list(sizes) if isinstance(sizes, list | tuple) else [sizes]


def _uniform_stride(given: int | None, size: Any) -> int | None:
    """The size of the windows where they are all alike and do not overlap."""
    if given is None or not isinstance(size, int) or given % size:
        return None
    return given // size


@dataclass(frozen=True, kw_only=True)
class _PoolWindows:
    """The windows along an axis, written as wide as the widest."""

    places: Any  # [windows, places]
    inside: Any  # [windows, places]: whether a place is one of the window's
    first: Any  # [windows]
    widths: Any  # [windows]


def _pool_windows(op: Any, count: Any, size: Any) -> _PoolWindows:
    """The windows along an axis of `count` places."""
    length = op.Constant(value_ints=[size]) if isinstance(size, int) else op.Reshape(size, [1])
    numbers = op.Range(0, op.Squeeze(length), 1)
    first = op.Div(op.Mul(count, numbers), length)
    end = op.Add(op.Mul(op.Add(numbers, 1), count), op.Sub(length, 1))
    last = op.Div(end, length)
    widths = op.Sub(last, first)
    steps = op.Range(0, op.ReduceMax(widths, keepdims=0), 1)
    places = op.Add(op.Unsqueeze(first, [1]), steps)
    return _PoolWindows(
        places=op.Min(places, op.Sub(count, 1)),
        inside=op.Less(places, op.Unsqueeze(last, [1])),
        first=first,
        widths=widths,
    )


def _add_axes(op: Any, values: Any, axes: int) -> Any:
    """With as many axes more, behind all others."""
    return op.Unsqueeze(values, list(range(-axes, 0))) if axes else values


def _window_maximum(op: Any, parts: Any, inside: Any, axis: int) -> tuple[Any, Any]:
    """The largest inside along an axis, NaN before all others, and its place."""
    lost = op.IsNaN(parts)
    shown = op.Where(op.And(inside, op.Not(lost)), parts, op.CastLike(-math.inf, parts))
    lost = op.Cast(op.And(inside, lost), to=_POOL_INT64)
    any_lost = op.Greater(op.ReduceMax(lost, [axis], keepdims=0), 0)
    top = op.ReduceMax(shown, [axis], keepdims=0)
    last_lost = op.ArgMax(lost, axis=axis, keepdims=0, select_last_index=1)
    best = op.ArgMax(shown, axis=axis, keepdims=0)
    return (
        op.Where(any_lost, op.CastLike(math.nan, parts), top),
        op.Where(any_lost, last_lost, best),
    )


POOL_OPS: Mapping[str, PoolOpWriter] = {
    "aten::adaptive_avg_pool1d": adaptive_avg_pool,
    "aten::adaptive_avg_pool2d": adaptive_avg_pool,
    "aten::adaptive_avg_pool3d": adaptive_avg_pool,
    "aten::_adaptive_avg_pool2d": adaptive_avg_pool,
    "aten::_adaptive_avg_pool3d": adaptive_avg_pool,
    "aten::adaptive_max_pool1d": adaptive_max_pool,
    "aten::adaptive_max_pool2d": adaptive_max_pool,
    "aten::adaptive_max_pool3d": adaptive_max_pool,
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
