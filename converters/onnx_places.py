"""Places along a dim in ONNX, computed in float32 in torch's order: nearest resizes and linspace.

Where they become indices, one step of float32 more or less is another element. ONNX's Resize takes
dst / (out / in) where torch takes dst * (in / out); torch's linspace rounds once per number (FMA).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .onnx_translations import rank_of, size_of

if TYPE_CHECKING:
    from .onnx_translations import OpWriter

_FLOAT, _INT64 = 1, 7  # onnx.TensorProto
_HALVES = 4096.0  # a float32 splits into the upper and the lower 12 bits of its significand
_FIRST = 2  # the axis of the first spatial dim


def resize_nearest(op: Any, self: Any, output_size: Any = None, *scales: Any) -> Any:
    """`upsample_nearest*d`: floor(dst * scale) along each dim, scale = in / out in float32."""
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
    """`_upsample_nearest_exact*d`: floor((dst + 0.5) * scale) along each dim."""
    factors = _scale_factors(scales)
    if not factors:
        return _resize_by_sizes(op, self, _output_sizes(op, self, output_size), offset=0.5)
    for axis, factor in zip(_spatial_axes(self), factors, strict=True):
        before = op.Cast(op.Shape(self, start=axis, end=axis + 1), to=_FLOAT)
        after = op.Cast(op.Floor(op.Mul(before, factor)), to=_INT64)
        self = _pick_nearest(op, self, (axis, after), 1 / factor, offset=0.5)
    return self


def _spatial_axes(value: Any) -> range:
    """The spatial dims."""
    return range(_FIRST, rank_of(value))


def _scale_factors(scales: Sequence[Any]) -> list[float]:
    """The scales that the user gave, by which torch computes: one a dim, or one list of all."""
    factors = [held for one in scales for held in _list_items(one)]
    return [float(factor) for factor in factors if factor is not None]


def _list_items(given: Any) -> Sequence[Any]:
    """A list, or what a constant of the TorchScript exporter holds."""
    import torch

    if isinstance(given, torch._C.Value):
        return [float(number) for number in given.node().t("value").flatten()]
    return given if isinstance(given, list | tuple) else [given]


def _output_sizes(op: Any, self: Any, size: Any) -> list[Any]:
    """The size that each spatial dim becomes."""
    if isinstance(size, list | tuple):
        return list(size)
    return [op.Gather(size, [at]) for at in range(len(_spatial_axes(self)))]


def _resize_as_exported(op: Any, self: Any, scales: Any, sizes: Any) -> Any:
    """As torch's exporters write it, which is right where the scales are whole."""
    given = (self, None, scales) if sizes is None else (self, None, None, sizes)
    return op.Resize(
        *given, mode="nearest", nearest_mode="floor", coordinate_transformation_mode="asymmetric"
    )


def _resize_by_sizes(op: Any, self: Any, sizes: Sequence[Any], *, offset: float) -> Any:
    for axis, size in zip(_spatial_axes(self), sizes, strict=True):
        before, after = op.Shape(self, start=axis, end=axis + 1), _size_row(op, size)
        scale = op.Div(op.Cast(before, to=_FLOAT), op.Cast(after, to=_FLOAT))
        self = _pick_nearest(op, self, (axis, after), scale, offset=offset)
    return self


def _pick_nearest(op: Any, self: Any, along: tuple[int, Any], scale: Any, *, offset: float) -> Any:
    """The elements along an axis that are nearest to each of so many places."""
    axis, count = along
    places = _float_range(op, count)
    if offset:
        places = op.Add(places, offset)
    found = op.Cast(op.Floor(op.Mul(places, scale)), to=_INT64)
    last = op.Sub(op.Shape(self, start=axis, end=axis + 1), [1])
    return op.Gather(self, op.Min(found, last), axis=axis)


def _float_range(op: Any, length: Any) -> Any:
    """The float32 from 0 to below a length, which is a row of one."""
    whole = op.Range(0, op.Squeeze(length), 1)
    return op.Cast(whole, to=_FLOAT)


def linspace(op: Any, start: Any, end: Any, steps: Any, dtype: Any = None, **named: Any) -> Any:
    """`linspace` of a program; of other numbers than float32 as the exporter writes it."""
    from onnxscript.function_libs.torch_lib.ops import core

    if dtype not in {None, -1, _FLOAT}:
        return core.aten_linspace(start, end, steps, dtype, **named)
    return linspace_steps(op, start, end, steps)


def linspace_steps(op: Any, start: Any, end: Any, steps: Any) -> Any:
    """From each end up to the middle: start + i * step, end - (steps - 1 - i) * step."""
    length = _size_row(op, steps)
    first, last = (_float_row(op, one) for one in (start, end))
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
    """Return x * y + z of float32, rounded once: with what the product and the sum left out.

    By Dekker's product (1971) and Knuth's sum of two.
    """
    product = op.Mul(x, y)
    (x_high, x_low), (y_high, y_low) = _split_float(op, x), _split_float(op, y)
    error = op.Sub(op.Mul(x_high, y_high), product)
    for one, other in ((x_high, y_low), (x_low, y_high), (x_low, y_low)):
        error = op.Add(error, op.Mul(one, other))
    total = op.Add(z, product)
    added = op.Sub(total, z)
    lost = op.Add(op.Sub(z, op.Sub(total, added)), op.Sub(product, added))
    return op.Add(total, op.Add(lost, error))


def _split_float(op: Any, x: Any) -> tuple[Any, Any]:
    """Two float32 of 12 bits whose sum is x (Veltkamp, 1968)."""
    shifted = op.Add(op.Mul(x, _HALVES), x)
    high = op.Sub(shifted, op.Sub(shifted, x))
    return high, op.Sub(x, high)


def _float_row(op: Any, number: Any) -> Any:
    """A row of one."""
    if isinstance(number, int | float):
        return op.Cast([float(number)], to=_FLOAT)
    return op.Cast(op.Reshape(number, [1]), to=_FLOAT)


def _size_row(op: Any, size: Any) -> Any:
    """A size as a row of one, of int64."""
    if isinstance(size, int):
        return op.Cast([size], to=_INT64)
    return op.Cast(op.Reshape(size, [1]), to=_INT64)


RESIZE_OPS: Mapping[str, OpWriter] = {
    **{f"aten::upsample_nearest{dims}d": resize_nearest for dims in (1, 2, 3)},
    **{f"aten::_upsample_nearest_exact{dims}d": resize_nearest_exact for dims in (1, 2, 3)},
}
