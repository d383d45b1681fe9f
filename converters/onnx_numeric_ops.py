"""ONNX translations of linear algebra on small matrices, and of scatter, index and median."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..capture.evidence import Symptom
from .onnx_shared_ops import OpWriter, dtype_of, rank_of, size_of, swap_last, translation_error

_LARGEST = 16  # rows; each adds some thirty operators
_END = 2**63 - 1  # covers all sizes
_INT32, _INT64 = 6, 7  # onnx.TensorProto


def inverse(op: Any, self: Any) -> Any:
    """Invert each matrix; a singular one gives numbers that are not finite."""
    size = _square_size(self, "inverse")
    places = op.Range(0, size, 1)
    identity = op.Equal(op.Unsqueeze(places, [1]), op.Unsqueeze(places, [0]))
    return _eliminate(op, self, op.CastLike(identity, self), size).columns


def inverse_ex(op: Any, self: Any, check_errors: bool = False) -> tuple[Any, Any]:  # noqa: ARG001 - 0 says that none failed
    """Return `inverse`, and 0 per matrix in place of eager's error code."""
    return inverse(op, self), op.Expand(op.Cast(0, to=_INT32), op.Shape(self, start=0, end=-2))


def solve(op: Any, a: Any, b: Any, left: bool = True) -> Any:
    """Solve A X = B for X, or X A = B if `left` is False."""
    size, rank = _square_size(a, "solve"), rank_of(b)
    if left and (rank == 1 or _is_vector(a, b)):
        found = _eliminate(op, a, op.Unsqueeze(b, [-1]), size).columns
        return op.Squeeze(found, [-1])
    if rank < rank_of(a):
        raise translation_error("solve", "with fewer dims on the right: add them with unsqueeze")
    if not left:
        found = _eliminate(op, swap_last(op, a), swap_last(op, b), size).columns
        return swap_last(op, found, rank)
    return _eliminate(op, a, b, size).columns


def solve_triangular(  # noqa: PLR0913, PLR0917 - the operator's own
    op: Any, a: Any, b: Any, upper: bool, left: bool = True, unitriangular: bool = False
) -> Any:
    """Solve with one triangle of A by substitution."""
    size, rank = _square_size(a, "solve_triangular"), rank_of(b)
    if not left:
        order = range(size)[:: 1 if upper else -1]
        found = _substitute(op, swap_last(op, a), swap_last(op, b), order, unitriangular)
        return swap_last(op, found, rank)
    return _substitute(op, a, b, range(size)[:: -1 if upper else 1], unitriangular)


def _substitute(op: Any, a: Any, b: Any, order: range, unitriangular: bool) -> Any:
    """Compute the rows of X in this order, subtracting the rows before."""
    rows: list[Any] = []  # in the given order
    for at in order:
        row, of_a = _slice_axis(op, b, at, -2), _slice_axis(op, a, at, -2)
        if rows:
            known = rows[0] if len(rows) == 1 else op.Concat(*rows, axis=-2)
            first = at + 1 if order.step < 0 else 0
            factors = _slice_axis(op, of_a, first, -1, last=first + len(rows))
            row = op.Sub(row, op.MatMul(factors, known))
        row = row if unitriangular else op.Div(row, _slice_axis(op, of_a, at, -1))
        rows = [row, *rows] if order.step < 0 else [*rows, row]
    return rows[0] if len(rows) == 1 else op.Concat(*rows, axis=-2)


def det(op: Any, self: Any) -> Any:
    """Return the determinant of each matrix."""
    return _eliminate(op, self, None, _square_size(self, "det")).product


def slogdet(op: Any, self: Any) -> tuple[Any, Any]:
    """Return the sign and the logarithm of the absolute determinant of each matrix."""
    found = _eliminate(op, self, None, _square_size(self, "slogdet"))
    return found.sign, found.logarithm


def logdet(op: Any, self: Any) -> Any:
    """Return the logarithm of the determinant; NaN if that is negative."""
    sign, logarithm = slogdet(op, self)
    return op.Where(op.Less(sign, 0.0), op.CastLike(math.nan, logarithm), logarithm)


def _square_size(matrices: Any, name: str) -> int:
    size = size_of(matrices, -1)
    if size is None or size != size_of(matrices, -2):
        raise translation_error(name, "of matrices whose size is not fixed", Symptom.OPEN_INVERSE)
    if not 0 < size <= _LARGEST:
        raise translation_error(name, f"for matrices of {size} rows: the limit is {_LARGEST}")
    return size


def _is_vector(matrices: Any, values: Any) -> bool:
    """Return whether torch takes the values for one vector per matrix, judged by their sizes.

    The TorchScript exporter's graph does not say which dynamic sizes are equal.
    """
    import torch

    known = not isinstance(matrices, torch._C.Value)
    return known and list(matrices.shape)[:-1] == list(values.shape)


def _slice_axis(op: Any, values: Any, at: int, axis: int, last: int | None = None) -> Any:
    # steps are required: torch's optimizer fuses two slices without into a wrong Split of odd sizes
    return op.Slice(values, [at], [at + 1 if last is None else last], [axis], [1])


@dataclass(frozen=True, kw_only=True)
class _Elimination:
    """The remaining columns, and the determinant of each matrix in two forms."""

    columns: Any
    product: Any
    sign: Any
    logarithm: Any


def _eliminate(op: Any, matrices: Any, columns: Any, size: int) -> _Elimination:
    """Run Gauss-Jordan elimination: the matrices become the identity, the columns solutions."""
    left = matrices
    product = sign = logarithm = None
    for at in range(size):
        exchange, flipped = _pivot(op, left, at, size)
        left = op.MatMul(exchange, left)
        row = _slice_axis(op, left, at, -2)
        pivot = _slice_axis(op, row, at, -1)
        product = _multiply(op, _multiply(op, product, pivot), flipped)
        sign = _multiply(op, _multiply(op, sign, op.Sign(pivot)), flipped)
        length = op.Log(op.Abs(pivot))
        logarithm = length if logarithm is None else op.Add(logarithm, length)
        factors = _slice_axis(op, left, at, -1)
        if columns is not None:  # divides by a pivot of 0, so that a singular matrix is visible
            columns = op.MatMul(exchange, columns)
            part = op.Div(_slice_axis(op, columns, at, -2), pivot)
            columns = _subtract_pivot(op, columns, factors, part, at, size)
        none = op.Equal(pivot, 0.0)  # then all numbers below it are 0
        row = op.Div(row, op.Where(none, op.CastLike(1.0, pivot), pivot))
        left = _subtract_pivot(op, left, factors, row, at, size)
    product, sign, logarithm = (op.Squeeze(one, [-2, -1]) for one in (product, sign, logarithm))
    return _Elimination(columns=columns, product=product, sign=sign, logarithm=logarithm)


def _multiply(op: Any, product: Any, factor: Any) -> Any:
    return factor if product is None else op.Mul(product, factor)


def _pivot(op: Any, left: Any, at: int, size: int) -> tuple[Any, Any]:
    """Return the swap with the row below that is largest in this column, and its sign."""
    column = op.Squeeze(_slice_axis(op, left, at, -1), [-1])
    below = _slice_axis(op, op.Abs(column), at, -1, last=_END)
    best = op.Add(op.ArgMax(below, axis=-1, keepdims=1), at)  # [..., 1]
    places = op.Range(0, size, 1)
    found = op.Where(op.Equal(places, at), best, op.Where(op.Equal(places, best), at, places))
    chosen = op.Equal(op.Unsqueeze(found, [-1]), places)  # [..., size, size]
    stays = op.Unsqueeze(op.Equal(best, at), [-1])
    flipped = op.Where(stays, op.CastLike(1.0, left), op.CastLike(-1.0, left))
    return op.CastLike(chosen, left), flipped


def _subtract_pivot(op: Any, values: Any, factors: Any, row: Any, at: int, size: int) -> Any:  # noqa: PLR0913, PLR0917
    """Subtract the pivot row times each row's factor; the pivot row itself is replaced."""
    is_own = op.Unsqueeze(op.Equal(op.Range(0, size, 1), at), [1])
    return op.Where(is_own, row, op.Sub(values, op.Mul(factors, row)))


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


NUMERIC_OPS: Mapping[str, OpWriter] = {
    "aten::det": det,
    "aten::index_reduce": index_reduce,
    "aten::inverse": inverse,
    "aten::linalg_det": det,
    "aten::linalg_inv": inverse,
    "aten::linalg_inv_ex": inverse_ex,
    "aten::linalg_slogdet": slogdet,
    "aten::linalg_solve": solve,
    "aten::linalg_solve_triangular": solve_triangular,
    "aten::logdet": logdet,
    "aten::median": median,
    "aten::nanmedian": nanmedian,
    "aten::scatter_reduce": scatter_reduce,
    "aten::slogdet": slogdet,
}
