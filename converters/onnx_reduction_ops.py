"""ONNX translations of reductions: `scatter_reduce`, `index_reduce`, `median` and `nanmedian`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from .onnx_shared_ops import OpWriter, dtype_of, rank_of, size_of, translation_error

_INT64 = 7  # onnx.TensorProto
_REDUCTIONS = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min", "mean": "add"}


def scatter_reduce(  # noqa: PLR0913, PLR0917 - the operator's own
    op: Any,
    self: Any,
    dim: int,
    index: Any,
    src: Any,
    reduce: str,
    include_self: bool = True,
) -> Any:
    """Reduce the values by index, including `self` if asked; other places keep their values."""
    rank, kind = rank_of(self), dtype_of(src)
    if kind in {None, "bool"}:
        raise translation_error("scatter_reduce", "for bools or an unknown dtype")
    if rank == 0:
        self, index, src = (op.Reshape(one, [-1]) for one in (self, index, src))
    elif not _is_same_size(index, src, rank):  # values beyond the index are ignored
        src = op.Slice(src, [0] * rank, op.Shape(index), list(range(rank)))
    scatter = _ScatterWriter(op, dim, index, str(kind))
    if reduce == "mean":
        found = _reduce_mean(op, scatter, self, src, include_self=include_self)
    elif reduce in {"amax", "amin"} and scatter.is_real:
        found = _reduce_extreme(op, scatter, self, src, reduce, include_self=include_self)
    else:
        start = self if include_self else scatter.put(self, scatter.neutral(src, reduce))
        found = scatter.reduce(start, src, reduce)
    return op.Squeeze(found, [0]) if rank == 0 else found


def index_reduce(  # noqa: PLR0913, PLR0917 - the operator's own
    op: Any,
    self: Any,
    dim: int,
    index: Any,
    source: Any,
    reduce: str,
    include_self: bool = True,
) -> Any:
    """Reduce whole rows by index."""
    rank = rank_of(self)
    if rank == 0:
        raise translation_error("index_reduce", "for a scalar")
    axes = [axis for axis in range(rank) if axis != dim % rank]
    wide = op.Expand(op.Unsqueeze(index, axes) if axes else index, op.Shape(source))
    return scatter_reduce(op, self, dim, wide, source, reduce, include_self)


class _ScatterWriter:
    """Writes ScatterElements of one index along one axis, for values of one dtype."""

    def __init__(self, op: Any, axis: int, index: Any, kind: str) -> None:
        self._op, self._axis, self._index = op, axis, op.Cast(index, to=_INT64)
        self._kind, self.is_real = kind, "int" not in kind

    def reduce(self, start: Any, values: Any, how: str) -> Any:
        reduction = _REDUCTIONS[how]
        return self._op.ScatterElements(
            start, self._index, values, axis=self._axis, reduction=reduction
        )

    def fill(self, value: Any) -> Any:
        """Expand a value to the index's shape."""
        return self._op.Expand(value, self._op.Shape(self._index))

    def neutral(self, like: Any, how: str) -> Any:
        """Return the neutral element of a reduction."""
        import numpy as np

        if how in {"amax", "amin"}:
            limits = None if self.is_real else np.iinfo(self._kind)
            least = -math.inf if limits is None else int(limits.min)
            most = math.inf if limits is None else int(limits.max)
            return self._op.CastLike(least if how == "amax" else most, like)
        return self._op.CastLike(int(how == "prod"), like)

    def put(self, start: Any, value: Any) -> Any:
        """Write one value at every index."""
        return self._op.ScatterElements(start, self._index, self.fill(value), axis=self._axis)


def _reduce_mean(
    op: Any, scatter: _ScatterWriter, self: Any, src: Any, *, include_self: bool
) -> Any:
    """Divide sums by counts; round down for integers."""
    none, one = op.CastLike(0, src), op.CastLike(1, src)
    start = self if include_self else scatter.put(self, none)
    total = scatter.reduce(start, src, "sum")
    first = op.Expand(one if include_self else none, op.Shape(self))
    count = op.Max(scatter.reduce(first, scatter.fill(one), "sum"), one)
    if not scatter.is_real:
        total = op.Sub(total, op.Mod(total, count))
    return op.Div(total, count)


def _reduce_extreme(  # noqa: PLR0913 - the operator's own
    op: Any, scatter: _ScatterWriter, self: Any, src: Any, reduce: str, *, include_self: bool
) -> Any:
    """Return the largest or smallest number; NaN if any value is NaN."""
    neutral, none = scatter.neutral(src, reduce), op.CastLike(0.0, src)
    start = self if include_self else scatter.put(self, neutral)
    nan_sum = scatter.reduce(start, op.Where(op.IsNaN(src), src, none), "sum")
    start, src = (op.Where(op.IsNaN(one), neutral, one) for one in (start, src))
    return op.Where(op.IsNaN(nan_sum), nan_sum, scatter.reduce(start, src, reduce))


def _is_same_size(one: Any, other: Any, rank: int) -> bool:
    """Return whether two values of this rank are known to have equal shapes."""
    sizes = [size_of(one, axis) for axis in range(rank)]
    return None not in sizes and sizes == [size_of(other, axis) for axis in range(rank)]


SCATTER_OPS: Mapping[str, OpWriter] = {
    "aten::index_reduce": index_reduce,
    "aten::scatter_reduce": scatter_reduce,
}


def median(op: Any, self: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """Return the median and its index along a dim, or the median of all values; NaN propagates."""
    values, axis = _flatten_rows(op, self, dim, "median")
    nan_mask, filled = _mask_nan(op, values, dtype_of(self))
    count = op.Div(op.Add(_axis_size(op, values, axis), 1), 2)  # up to the median
    lower, places = op.TopK(filled, count, axis=axis, largest=0, sorted=1)
    found, at = (op.Gather(one, [-1], axis=axis) for one in (lower, places))
    if nan_mask is not None:
        is_lost = op.Greater(op.ReduceMax(nan_mask, [axis], keepdims=1), 0)
        found = op.Where(is_lost, op.CastLike(math.nan, values), found)
        at = op.Where(is_lost, op.ArgMax(nan_mask, axis=axis, keepdims=1), at)
    return _pick_results(op, (found, at), dim, keepdim=keepdim)


def nanmedian(op: Any, self: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """Return the `median` of the values that are not NaN."""
    values, axis = _flatten_rows(op, self, dim, "nanmedian")
    nan_mask, filled = _mask_nan(op, values, dtype_of(self))
    if nan_mask is None:
        return median(op, self, dim, keepdim)
    ordered, places = op.TopK(filled, _axis_size(op, values, axis), axis=axis, largest=0, sorted=1)
    count = op.ReduceSum(op.Sub(1, nan_mask), [axis], keepdims=1)
    middle = op.Div(op.Max(op.Sub(count, 1), 0), 2)
    found, at = (op.GatherElements(one, middle, axis=axis) for one in (ordered, places))
    found = op.Where(op.Equal(count, 0), op.CastLike(math.nan, values), found)
    return _pick_results(op, (found, at), dim, keepdim=keepdim)


def _flatten_rows(op: Any, values: Any, dim: int | None, name: str) -> tuple[Any, int]:
    """Return the values and the axis to reduce."""
    if dtype_of(values) is None:
        raise translation_error(name, "for an unknown dtype")
    if dim is None:
        return op.Reshape(values, [-1]), 0
    if rank_of(values) == 0:
        raise translation_error(name, "along a dim of a scalar")
    return values, dim


def _mask_nan(op: Any, values: Any, kind: str | None) -> tuple[Any, Any]:
    """Return 1 where a value is NaN, and the values with Inf there; None for integers."""
    if "int" in str(kind):
        return None, values
    is_lost = op.IsNaN(values)
    return op.Cast(is_lost, to=_INT64), op.Where(is_lost, op.CastLike(math.inf, values), values)


def _axis_size(op: Any, values: Any, axis: int) -> Any:
    return op.Gather(op.Shape(values), [axis])


def _pick_results(op: Any, found: tuple[Any, Any], dim: int | None, *, keepdim: bool) -> Any:
    if dim is None:
        return op.Squeeze(found[0], [0])
    return found if keepdim else tuple(op.Squeeze(one, [dim]) for one in found)


MEDIAN_OPS: Mapping[str, OpWriter] = {
    "aten::median": median,
    "aten::nanmedian": nanmedian,
}
