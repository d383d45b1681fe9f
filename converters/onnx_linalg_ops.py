"""ONNX translations of inverses, determinants and linear solvers of small matrices."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..capture.evidence import Symptom
from .onnx_shared_ops import OpWriter, rank_of, size_of, translation_error

_LARGEST = 16  # rows; each adds some thirty operators
_END, _INT32 = 2**63 - 1, 6  # covers all sizes; onnx.TensorProto


def inverse(op: Any, self: Any) -> Any:
    """Invert each matrix; a singular one gives numbers that are not finite."""
    size = _square_size(self, "inverse")
    return _eliminate(op, self, op.CastLike(_identity(op, size), self), size).columns


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
        found = _eliminate(
            op, _swap_last_axes(op, a, rank_of(a)), _swap_last_axes(op, b, rank), size
        ).columns
        return _swap_last_axes(op, found, rank)
    return _eliminate(op, a, b, size).columns


def solve_triangular(  # noqa: PLR0913, PLR0917 - the operator's own
    op: Any, a: Any, b: Any, upper: bool, left: bool = True, unitriangular: bool = False
) -> Any:
    """Solve with one triangle of A by substitution."""
    size, rank = _square_size(a, "solve_triangular"), rank_of(b)
    if not left:
        turned = _swap_last_axes(op, a, rank_of(a)), _swap_last_axes(op, b, rank)
        found = _substitute(op, *turned, range(size)[:: 1 if upper else -1], unitriangular)
        return _swap_last_axes(op, found, rank)
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


def _identity(op: Any, size: int) -> Any:
    places = op.Range(0, size, 1)
    return op.Equal(op.Unsqueeze(places, [1]), op.Unsqueeze(places, [0]))


def _swap_last_axes(op: Any, values: Any, rank: int) -> Any:
    return op.Transpose(values, perm=[*range(rank - 2), rank - 1, rank - 2])


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


MATRIX_OPS: Mapping[str, OpWriter] = {
    "aten::det": det,
    "aten::inverse": inverse,
    "aten::linalg_det": det,
    "aten::linalg_inv": inverse,
    "aten::linalg_inv_ex": inverse_ex,
    "aten::linalg_slogdet": slogdet,
    "aten::linalg_solve": solve,
    "aten::linalg_solve_triangular": solve_triangular,
    "aten::logdet": logdet,
    "aten::slogdet": slogdet,
}
