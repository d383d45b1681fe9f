"""Values reduced by an index in ONNX: `scatter_reduce` and `index_reduce` in all their forms.

ONNX has no mean, and takes what is there for part of the reduction. Its maxima and minima lose a
NaN or keep it, by the order of the values, in ONNX Runtime and in OpenVINO.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from .onnx_translations import dtype_of, rank_of, translation_error

ScatterOpWriter = Callable[..., object]
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
    """The values of each place reduced, what was there among them or not; the rest stays."""
    rank, kind = rank_of(self), dtype_of(src)
    if kind in {None, "bool"}:
        raise translation_error("scatter_reduce", "of bools, or of values of an unknown dtype")
    if rank == 0:
        self, index, src = (op.Reshape(one, [-1]) for one in (self, index, src))
    elif not _is_same_size(index, src):  # the first of the values count
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
    """As `scatter_reduce`, of whole rows: one index for each."""
    rank = rank_of(self)
    if rank == 0:
        raise translation_error("index_reduce", "of a single number")
    axes = [axis for axis in range(rank) if axis != dim % rank]
    wide = op.Expand(op.Unsqueeze(index, axes) if axes else index, op.Shape(source))
    return scatter_reduce(op, self, dim, wide, source, reduce, include_self)


class _ScatterWriter:
    """ScatterElements of one index along one axis, for values of one dtype."""

    def __init__(self, op: Any, axis: int, index: Any, kind: str) -> None:
        self._op, self._axis, self._index = op, axis, op.Cast(index, to=_INT64)
        self._kind, self.is_real = kind, "int" not in kind

    def reduce(self, start: Any, values: Any, how: str) -> Any:
        reduction = _REDUCTIONS[how]
        return self._op.ScatterElements(
            start, self._index, values, axis=self._axis, reduction=reduction
        )

    def fill(self, value: Any) -> Any:
        """One value for every index."""
        return self._op.Expand(value, self._op.Shape(self._index))

    def neutral(self, like: Any, how: str) -> Any:
        """What changes no reduction of this kind."""
        import numpy as np

        if how in {"amax", "amin"}:
            limits = None if self.is_real else np.iinfo(self._kind)
            least = -math.inf if limits is None else int(limits.min)
            most = math.inf if limits is None else int(limits.max)
            return self._op.CastLike(least if how == "amax" else most, like)
        return self._op.CastLike(int(how == "prod"), like)

    def put(self, start: Any, value: Any) -> Any:
        """One value wherever there is an index."""
        return self._op.ScatterElements(start, self._index, self.fill(value), axis=self._axis)


def _reduce_mean(
    op: Any, scatter: _ScatterWriter, self: Any, src: Any, *, include_self: bool
) -> Any:
    """Sums over counts; of integers, rounded down."""
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
    """The largest or smallest number; NaN wherever one is among the values."""
    neutral, none = scatter.neutral(src, reduce), op.CastLike(0.0, src)
    start = self if include_self else scatter.put(self, neutral)
    lost = scatter.reduce(start, op.Where(op.IsNaN(src), src, none), "sum")
    start, src = (op.Where(op.IsNaN(one), neutral, one) for one in (start, src))
    return op.Where(op.IsNaN(lost), lost, scatter.reduce(start, src, reduce))


def _is_same_size(one: Any, other: Any) -> bool:
    """Whether two values are known to have one shape."""
    import torch

    if isinstance(one, torch._C.Value):
        kinds: list[Any] = [one.type(), other.type()]
        sizes, others = (kind.varyingSizes() for kind in kinds)
        return sizes is not None and None not in sizes and sizes == others
    if one.shape is None or other.shape is None:
        return False
    sizes, others = ([getattr(dim, "value", dim) for dim in value.shape] for value in (one, other))
    return None not in sizes and sizes == others


SCATTER_OPS: Mapping[str, ScatterOpWriter] = {
    "aten::index_reduce": index_reduce,
    "aten::scatter_reduce": scatter_reduce,
}
