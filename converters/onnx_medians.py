"""Medians in ONNX: of an even number of values the lower of the two in the middle, as torch's."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from .onnx_translations import dtype_of, rank_of, translation_error

MedianOpWriter = Callable[..., object]
_MEDIAN_INT64 = 7  # onnx.TensorProto


def median(op: Any, self: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """The median and its place, along a dim; of all values the median alone. NaN of any NaN."""
    values, axis = _flatten_rows(op, self, dim, "median")
    lost, shown = _mask_nan(op, values, dtype_of(self))
    count = op.Div(op.Add(_axis_size(op, values, axis), 1), 2)  # up to the median
    lower, places = op.TopK(shown, count, axis=axis, largest=0, sorted=1)
    found, at = (op.Gather(one, [-1], axis=axis) for one in (lower, places))
    if lost is not None:
        is_lost = op.Greater(op.ReduceMax(lost, [axis], keepdims=1), 0)
        found = op.Where(is_lost, op.CastLike(math.nan, values), found)
        at = op.Where(is_lost, op.ArgMax(lost, axis=axis, keepdims=1), at)
    return _pick_results(op, (found, at), dim, keepdim=keepdim)


def nanmedian(op: Any, self: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """As `median`, of the values that are not NaN."""
    values, axis = _flatten_rows(op, self, dim, "nanmedian")
    lost, shown = _mask_nan(op, values, dtype_of(self))
    if lost is None:
        return median(op, self, dim, keepdim)
    ordered, places = op.TopK(shown, _axis_size(op, values, axis), axis=axis, largest=0, sorted=1)
    count = op.ReduceSum(op.Sub(1, lost), [axis], keepdims=1)
    middle = op.Div(op.Max(op.Sub(count, 1), 0), 2)
    found, at = (op.GatherElements(one, middle, axis=axis) for one in (ordered, places))
    found = op.Where(op.Equal(count, 0), op.CastLike(math.nan, values), found)
    return _pick_results(op, (found, at), dim, keepdim=keepdim)


def _flatten_rows(op: Any, values: Any, dim: int | None, name: str) -> tuple[Any, int]:
    """The values and the axis along which to look."""
    if dtype_of(values) is None:
        raise translation_error(name, "of values of an unknown dtype")
    if dim is None:
        return op.Reshape(values, [-1]), 0
    if rank_of(values) == 0:
        raise translation_error(name, "along a dim of a single number")
    return values, dim


def _mask_nan(op: Any, values: Any, kind: str | None) -> tuple[Any, Any]:
    """1 where a value is NaN, and the values with Inf there; None where none can be."""
    if "int" in str(kind):
        return None, values
    is_lost = op.IsNaN(values)
    return op.Cast(is_lost, to=_MEDIAN_INT64), op.Where(
        is_lost, op.CastLike(math.inf, values), values
    )


def _axis_size(op: Any, values: Any, axis: int) -> Any:
    return op.Gather(op.Shape(values), [axis])


def _pick_results(op: Any, found: tuple[Any, Any], dim: int | None, *, keepdim: bool) -> Any:
    if dim is None:
        return op.Squeeze(found[0], [0])
    return found if keepdim else tuple(op.Squeeze(one, [dim]) for one in found)


MEDIAN_OPS: Mapping[str, MedianOpWriter] = {
    "aten::median": median,
    "aten::nanmedian": nanmedian,
}
