"""ONNX translations of adaptive pooling, nearest resizes and linspace."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .onnx_shared_ops import OpWriter, rank_of, size_of

_FLOAT, _INT64 = 1, 7  # onnx.TensorProto
_HALVES = 4096.0  # splits a float32 into the upper and the lower 12 bits of its significand
_FIRST = 2  # the axis of the first spatial dim


def adaptive_avg_pool(op: Any, self: Any, output_size: Any) -> Any:
    """Average over windows: sum along one axis after the other, then divide, as eager does."""
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
    """Return the maxima of windows and their indices: of the last NaN, else of the first maximum.

    Reduces one axis after the other, from the last: in a window rows precede columns.
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
    """Return the window size if all windows have one size and do not overlap."""
    if given is None or not isinstance(size, int) or given % size:
        return None
    return given // size


@dataclass(frozen=True, kw_only=True)
class _PoolWindows:
    """The windows along an axis, padded to the widest."""

    places: Any  # [windows, places]
    inside: Any  # [windows, places]: whether a place belongs to the window
    first: Any  # [windows]
    widths: Any  # [windows]


def _pool_windows(op: Any, count: Any, size: Any) -> _PoolWindows:
    """Return the windows along an axis of `count` places."""
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
    """Append so many axes."""
    return op.Unsqueeze(values, list(range(-axes, 0))) if axes else values


def _window_maximum(op: Any, parts: Any, inside: Any, axis: int) -> tuple[Any, Any]:
    """Return the window maximum along an axis, where NaN counts as the largest, and its index."""
    is_nan = op.IsNaN(parts)
    comparable = op.Where(op.And(inside, op.Not(is_nan)), parts, op.CastLike(-math.inf, parts))
    is_nan = op.Cast(op.And(inside, is_nan), to=_INT64)
    any_lost = op.Greater(op.ReduceMax(is_nan, [axis], keepdims=0), 0)
    top = op.ReduceMax(comparable, [axis], keepdims=0)
    last_lost = op.ArgMax(is_nan, axis=axis, keepdims=0, select_last_index=1)
    best = op.ArgMax(comparable, axis=axis, keepdims=0)
    return (
        op.Where(any_lost, op.CastLike(math.nan, parts), top),
        op.Where(any_lost, last_lost, best),
    )


POOL_OPS: Mapping[str, OpWriter] = {
    "aten::adaptive_avg_pool1d": adaptive_avg_pool,
    "aten::adaptive_avg_pool2d": adaptive_avg_pool,
    "aten::adaptive_avg_pool3d": adaptive_avg_pool,
    "aten::_adaptive_avg_pool2d": adaptive_avg_pool,
    "aten::_adaptive_avg_pool3d": adaptive_avg_pool,
    "aten::adaptive_max_pool1d": adaptive_max_pool,
    "aten::adaptive_max_pool2d": adaptive_max_pool,
    "aten::adaptive_max_pool3d": adaptive_max_pool,
}


def resize_nearest(op: Any, self: Any, output_size: Any = None, *scales: Any) -> Any:
    """Translate `upsample_nearest*d`: floor(dst * scale) per dim, scale = in / out in float32."""
    factors = _scale_factors(scales)
    if factors:
        return _resize_as_exported(op, self, [1.0, 1.0, *factors], None)
    sizes = _output_sizes(op, self, output_size)
    known = zip(sizes, (size_of(self, axis) for axis in _spatial_axes(self)), strict=True)
    if all(isinstance(out, int) and held and out % held == 0 for out, held in known):
        lengths = op.Concat(op.Shape(self, start=0, end=_FIRST), sizes, axis=0)
        return _resize_as_exported(op, self, None, lengths)
    return _resize_by_sizes(op, self, sizes, offset=0.0)


def resize_nearest_exact(op: Any, self: Any, output_size: Any = None, *scales: Any) -> Any:
    """Translate `_upsample_nearest_exact*d`: floor((dst + 0.5) * scale) per dim."""
    factors = _scale_factors(scales)
    if not factors:
        return _resize_by_sizes(op, self, _output_sizes(op, self, output_size), offset=0.5)
    for axis, factor in zip(_spatial_axes(self), factors, strict=True):
        before = op.Cast(op.Shape(self, start=axis, end=axis + 1), to=_FLOAT)
        after = op.Cast(op.Floor(op.Mul(before, factor)), to=_INT64)
        self = _pick_nearest(op, self, (axis, after), 1 / factor, offset=0.5)
    return self


def _spatial_axes(value: Any) -> range:
    return range(_FIRST, rank_of(value))


def _scale_factors(scales: Sequence[Any]) -> list[float]:
    """Return the scales that the user gave: one argument per dim, or one list of all."""
    factors = [held for one in scales for held in _list_items(one)]
    return [float(factor) for factor in factors if factor is not None]


def _list_items(given: Any) -> Sequence[Any]:
    """Return a list, or the values of a TorchScript exporter's constant."""
    import torch

    if isinstance(given, torch._C.Value):
        return [float(number) for number in given.node().t("value").flatten()]
    return given if isinstance(given, list | tuple) else [given]


def _output_sizes(op: Any, self: Any, size: Any) -> list[Any]:
    """Return the new size of each spatial dim."""
    if isinstance(size, list | tuple):
        return list(size)
    return [op.Gather(size, [at]) for at in range(len(_spatial_axes(self)))]


def _resize_as_exported(op: Any, self: Any, scales: Any, sizes: Any) -> Any:
    """Resize as torch's exporters do, which is correct for whole scales."""
    given = (self, None, scales) if sizes is None else (self, None, None, sizes)
    return op.Resize(
        *given, mode="nearest", nearest_mode="floor", coordinate_transformation_mode="asymmetric"
    )


def _resize_by_sizes(op: Any, self: Any, sizes: Sequence[Any], *, offset: float) -> Any:
    for axis, size in zip(_spatial_axes(self), sizes, strict=True):
        before, after = op.Shape(self, start=axis, end=axis + 1), _row(op, size)
        scale = op.Div(op.Cast(before, to=_FLOAT), op.Cast(after, to=_FLOAT))
        self = _pick_nearest(op, self, (axis, after), scale, offset=offset)
    return self


def _pick_nearest(op: Any, self: Any, along: tuple[int, Any], scale: Any, *, offset: float) -> Any:
    """Gather the elements along an axis that are nearest to each of `count` places."""
    axis, count = along
    places = _float_range(op, count)
    if offset:
        places = op.Add(places, offset)
    found = op.Cast(op.Floor(op.Mul(places, scale)), to=_INT64)
    last = op.Sub(op.Shape(self, start=axis, end=axis + 1), [1])
    return op.Gather(self, op.Min(found, last), axis=axis)


def _float_range(op: Any, length: Any) -> Any:
    """Return the float32 numbers 0, 1, ... below a length of shape [1]."""
    whole = op.Range(0, op.Squeeze(length), 1)
    return op.Cast(whole, to=_FLOAT)


def linspace(op: Any, start: Any, end: Any, steps: Any, dtype: Any = None, **named: Any) -> Any:
    """Translate `linspace` of a program; dtypes other than float32 are left to the exporter."""
    from onnxscript.function_libs.torch_lib.ops import core

    if dtype not in {None, -1, _FLOAT}:
        return core.aten_linspace(start, end, steps, dtype, **named)
    return linspace_steps(op, start, end, steps)


def linspace_steps(op: Any, start: Any, end: Any, steps: Any) -> Any:
    """Compute from each end up to the middle: start + i * step, end - (steps - 1 - i) * step."""
    length = _row(op, steps)
    first, last = (_row(op, one, _FLOAT) for one in (start, end))
    whole = op.Sub(length, [1])
    gaps = op.Cast(op.Max(whole, 1), to=_FLOAT)
    step = op.Div(op.Sub(last, first), gaps)
    near = _float_range(op, length)
    far = op.Sub(op.Cast(whole, to=_FLOAT), near)
    half = op.Cast(op.Div(length, [2]), to=_FLOAT)
    rising = multiply_add(op, step, near, first)
    falling = multiply_add(op, op.Neg(step), far, last)
    lower = op.Or(op.Less(near, half), op.Equal(length, [1]))
    return op.Where(lower, rising, falling)


def multiply_add(op: Any, x: Any, y: Any, z: Any) -> Any:
    """Return x * y + z of float32, rounded once: adds the errors of the product and the sum.

    Uses Dekker's product (1971) and Knuth's two-sum.
    """
    product = op.Mul(x, y)
    (x_high, x_low), (y_high, y_low) = _split_float(op, x), _split_float(op, y)
    error = op.Sub(op.Mul(x_high, y_high), product)
    for one, other in ((x_high, y_low), (x_low, y_high), (x_low, y_low)):
        error = op.Add(error, op.Mul(one, other))
    total = op.Add(z, product)
    added = op.Sub(total, z)
    sum_error = op.Add(op.Sub(z, op.Sub(total, added)), op.Sub(product, added))
    return op.Add(total, op.Add(sum_error, error))


def _split_float(op: Any, x: Any) -> tuple[Any, Any]:
    """Split x into two float32 of 12 bits whose sum is x (Veltkamp, 1968)."""
    shifted = op.Add(op.Mul(x, _HALVES), x)
    high = op.Sub(shifted, op.Sub(shifted, x))
    return high, op.Sub(x, high)


def _row(op: Any, number: Any, dtype: int = _INT64) -> Any:
    """Return a number in a dtype, of shape [1]."""
    row = [number] if isinstance(number, int | float) else op.Reshape(number, [1])
    return op.Cast(row, to=dtype)


RESIZE_OPS: Mapping[str, OpWriter] = {
    **{f"aten::upsample_nearest{dims}d": resize_nearest for dims in (1, 2, 3)},
    **{f"aten::_upsample_nearest_exact{dims}d": resize_nearest_exact for dims in (1, 2, 3)},
}
