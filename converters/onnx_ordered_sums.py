"""Operators of ONNX's evaluator with sums and means in sequential order, as in some runtimes.

numpy sums in pairs, whose roundoff hardly grows with the number of elements. Sequential sums err
by far more, most of all where all elements are equal, and are valid float32 too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..core.contract import Array

_LONGEST_SUM = 16_384  # elements; longer sums stay numpy's
_LANES = 8  # parallel sums of a norm: the floats in a SIMD register of 256 bits


def _sum_in_order(x: Array, axes: Sequence[int], *, keeps: bool, lanes: int = 1) -> Array:
    """Sum so many interleaved parts in sequential order, and then the parts."""
    import numpy as np

    count = math.prod(x.shape[axis] for axis in axes)
    if x.dtype != np.float32 or not 1 < count <= _LONGEST_SUM:
        return np.asarray(np.sum(x, axis=tuple(axes), keepdims=keeps, dtype=x.dtype))
    moved = np.moveaxis(x, tuple(axes), tuple(range(-len(axes), 0)))
    rows = moved.reshape(*moved.shape[: x.ndim - len(axes)], count)
    rows = np.pad(rows, [*[(0, 0)] * (rows.ndim - 1), (0, -count % lanes)])
    parts = np.add.accumulate(rows.reshape(*rows.shape[:-1], -1, lanes), axis=-2)[..., -1, :]
    total = np.add.accumulate(parts, axis=-1)[..., -1]
    return np.expand_dims(total, tuple(axes)) if keeps else np.asarray(total)


def _sum_axes(x: Array, axes: Any, given: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the axes of a reduction, from its input or its attribute; none at all means all."""
    axes = given.get("axes") if axes is None else axes
    found = [int(axis) % x.ndim for axis in (() if axes is None else axes)]
    return (
        tuple(sorted(found)) if found or given.get("noop_with_empty_axes") else tuple(range(x.ndim))
    )


def _reduce_sum(self: Any, x: Array, axes: Array | None = None, **given: Any) -> tuple[Array]:  # noqa: ARG001 - an operator's method
    keeps = given.get("keepdims") != 0
    return (_sum_in_order(x, _sum_axes(x, axes, given), keeps=keeps),)


def _reduce_mean(self: Any, x: Array, axes: Array | None = None, **given: Any) -> tuple[Array]:  # noqa: ARG001 - an operator's method
    return (_mean_in_order(x, _sum_axes(x, axes, given), keeps=given.get("keepdims") != 0),)


def _mean_in_order(x: Array, axes: Sequence[int], *, keeps: bool = True, lanes: int = 1) -> Array:
    import numpy as np

    count = x.dtype.type(math.prod(x.shape[axis] for axis in axes))
    return np.asarray(_sum_in_order(x, axes, keeps=keeps, lanes=lanes) / count)


def _pool_globally(self: Any, x: Array) -> tuple[Array]:  # noqa: ARG001 - an operator's method
    return (_mean_in_order(x, range(2, x.ndim)),)


def _normalize(x: Array, axes: Sequence[int], epsilon: float) -> tuple[Array, Array, Array]:
    """Return the normalized values, the mean and the inverse deviation."""
    import numpy as np

    mean = _mean_in_order(x, axes, lanes=_LANES)
    apart = x - mean
    variance = _mean_in_order(apart * apart, axes, lanes=_LANES)
    inverse = 1 / np.sqrt(variance + x.dtype.type(epsilon))
    return apart * inverse, mean, inverse


def _normalize_layer(
    self: Any,  # noqa: ARG001 - an operator's method
    x: Array,
    scale: Array,
    bias: Array | None = None,
    **given: Any,
) -> tuple[Array, ...]:
    first = given.get("axis", -1) % x.ndim
    found, mean, inverse = _normalize(x, range(first, x.ndim), given.get("epsilon") or 1e-5)
    return (found * scale if bias is None else found * scale + bias, mean, inverse)


def _normalize_instance(self: Any, x: Array, scale: Array, bias: Array, **given: Any) -> Any:  # noqa: ARG001 - an operator's method
    found, _, _ = _normalize(x, range(2, x.ndim), given.get("epsilon") or 1e-5)
    shape = (-1, *[1] * (x.ndim - 2))
    return (found * scale.reshape(shape) + bias.reshape(shape),)


ORDERED_SUMS = {
    "ReduceSum": _reduce_sum, "ReduceMean": _reduce_mean, "GlobalAveragePool": _pool_globally,
    "LayerNormalization": _normalize_layer, "InstanceNormalization": _normalize_instance,
}  # fmt: skip
