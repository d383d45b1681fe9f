"""ONNX translations of operators that only the TorchScript exporter lacks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..capture.refusals import RefusedError
from ..core.errors import Hint, Option
from .onnx_image_ops import linspace_steps
from .onnx_op_builder import SymbolicOpBuilder, python_value
from .onnx_shared_ops import OpWriter, as_floats, dtype_of, expm1, log1p, rank_of, translation_error

_INT64, _BOOL = 7, 9  # onnx.TensorProto
_MATRIX = 2
_TORCH_FLOAT = 6  # c10::ScalarType::Float
# as in torch's documentation ("Alias for ...")
OPERATOR_ALIASES: Mapping[str, str] = {
    "absolute": "abs",
    "arccos": "acos",
    "arcsin": "asin",
    "arctan": "atan",
    "arctan2": "atan2",
    "clip": "clamp",
    "concat": "cat",
    "concatenate": "cat",
    "divide": "div",
    "greater": "gt",
    "greater_equal": "ge",
    "less": "lt",
    "less_equal": "le",
    "linalg_matmul": "matmul",
    "moveaxis": "movedim",
    "multiply": "mul",
    "negative": "neg",
    "not_equal": "ne",
    "row_stack": "vstack",
    "sgn": "sign",
    "special_expit": "sigmoid",
    "special_erf": "erf",
    "special_log_softmax": "log_softmax",
    "special_logsumexp": "logsumexp",
    "special_round": "round",
    "special_softmax": "softmax",
    "subtract": "sub",
    "swapaxes": "transpose",
    "swapdims": "transpose",
}


def _exporter_symbolic(name: str) -> OpWriter:
    """Return the exporter's translation of an operator in the opset being written."""

    def write(g: Any, *values: Any) -> object:
        from torch.onnx._internal.torchscript_exporter.registration import registry

        group = registry.get_function_group(f"aten::{name}")
        own = None if group is None else group.get(g.opset)
        if own is None:
            raise RefusedError(
                f"torch's exporter has no {name} in opset {g.opset}",
                hint=Hint("take another ", Option("opset")),
                option="opset",
            )
        return own(g, *values)

    return write


def _unary_writer(kind: str) -> OpWriter:
    """Return the writer of a unary ONNX operator on floats."""

    def write(op: Any, self: Any) -> Any:
        return getattr(op, kind)(as_floats(op, self))

    return write


def positive(op: Any, self: Any) -> Any:
    """Return the values unchanged."""
    return op.Identity(self)


def ravel(op: Any, self: Any) -> Any:
    """Flatten to one dim."""
    return op.Reshape(self, _number_row([-1]))


def trunc(op: Any, self: Any) -> Any:
    """Round towards zero."""
    if "int" in (dtype_of(self) or ""):
        return op.Identity(self)
    return op.Where(op.Less(self, 0.0), op.Ceil(self), op.Floor(self))


def frac(op: Any, self: Any) -> Any:
    """Return the fractional part."""
    return op.Sub(self, trunc(op, self))


def exp2(op: Any, self: Any) -> Any:
    """Return 2 to the power of each value."""
    self = as_floats(op, self)
    return op.Pow(op.CastLike(2.0, self), self)


def erfc(op: Any, self: Any) -> Any:
    """Return 1 - erf(x), which is exact to float32's step at 1, as values are at most 2."""
    return op.Sub(1.0, op.Erf(as_floats(op, self)))


def deg2rad(op: Any, self: Any) -> Any:
    """Convert degrees to radians."""
    return op.Mul(as_floats(op, self), math.pi / 180)


def rad2deg(op: Any, self: Any) -> Any:
    """Convert radians to degrees."""
    return op.Mul(as_floats(op, self), 180 / math.pi)


def sinc(op: Any, self: Any) -> Any:
    """Return sin(pi x) / (pi x), which is 1 at 0."""
    turned = op.Mul(as_floats(op, self), math.pi)
    return op.Where(op.Equal(turned, 0.0), op.CastLike(1.0, turned), op.Div(op.Sin(turned), turned))


def fmax(op: Any, self: Any, other: Any) -> Any:
    """Return the larger of two, ignoring NaN."""
    return op.Where(op.IsNaN(self), other, op.Where(op.IsNaN(other), self, op.Max(self, other)))


def fmin(op: Any, self: Any, other: Any) -> Any:
    """Return the smaller of two, ignoring NaN."""
    return op.Where(op.IsNaN(self), other, op.Where(op.IsNaN(other), self, op.Min(self, other)))


def heaviside(op: Any, self: Any, values: Any) -> Any:
    """Return 0 below zero, 1 above, and the given values at zero."""
    return op.Where(op.Equal(self, 0.0), values, op.CastLike(op.Greater(self, 0.0), self))


def logaddexp(op: Any, self: Any, other: Any) -> Any:
    """Return log(exp(x) + exp(y)), scaled by the larger; equal values, even infinite, double."""
    return _log_of_sum(op, self, other, log_of_two=math.log(2))


def logaddexp2(op: Any, self: Any, other: Any) -> Any:
    """Translate `logaddexp` to base 2."""
    return _log_of_sum(op, self, other, log_of_two=1.0)


def _log_of_sum(op: Any, self: Any, other: Any, *, log_of_two: float) -> Any:
    scale = math.log(2) / log_of_two
    apart = op.Mul(op.Abs(op.Sub(self, other)), -scale)
    more = op.Div(op.Log(op.Add(op.Exp(apart), 1.0)), scale)
    doubled = op.Add(self, log_of_two)
    return op.Where(op.Equal(self, other), doubled, op.Add(op.Max(self, other), more))


def xlogy(op: Any, self: Any, other: Any) -> Any:
    """Return x log(y), which is 0 where x is 0 unless y is NaN."""
    none = op.And(op.Equal(self, 0.0), op.Not(op.IsNaN(other)))
    return op.Where(none, op.CastLike(0.0, other), op.Mul(self, op.Log(other)))


def addcdiv(op: Any, self: Any, one: Any, other: Any, value: float = 1) -> Any:
    """Return x + value * one / other."""
    return op.Add(self, op.Mul(op.Div(one, other), float(value)))


def inner(op: Any, self: Any, other: Any) -> Any:
    """Return the products of all pairs of rows."""
    rank = rank_of(other)
    if rank > _MATRIX or rank_of(self) == 0 or rank == 0:
        raise translation_error("inner", "for scalars, or more than two dims on the right")
    return op.MatMul(self, op.Transpose(other, perm=[1, 0]) if rank == _MATRIX else other)


def addmv(  # noqa: PLR0913, PLR0917 - the operator's own
    op: Any, self: Any, mat: Any, vec: Any, beta: float = 1, alpha: float = 1
) -> Any:
    """Return beta x + alpha (mat @ vec); ONNX Runtime 1.24 transposes mat wrongly beside a row."""
    column = op.Mul(op.Unsqueeze(vec, _number_row([1])), float(alpha))
    added = op.Squeeze(op.MatMul(mat, column), _number_row([1]))
    return op.Add(op.Mul(self, float(beta)), added)


def flipud(op: Any, self: Any) -> Any:
    """Reverse the first dim."""
    return _reverse_axis(op, self, 0)


def fliplr(op: Any, self: Any) -> Any:
    """Reverse the second dim."""
    return _reverse_axis(op, self, 1)


def _reverse_axis(op: Any, self: Any, axis: int) -> Any:
    last, least = _number_row([-1]), _number_row([-(2**63)])
    return op.Slice(self, last, least, _number_row([axis]), _number_row([-1]))


def diff(  # noqa: PLR0913, PLR0917 - the operator's own
    op: Any, self: Any, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None
) -> Any:
    """Return the differences of neighbours, n times."""
    parts = [part for part in (prepend, self, append) if part is not None]
    values = op.Concat(*parts, axis=dim) if len(parts) > 1 else self
    for _ in range(n):
        later = op.Slice(values, _number_row([1]), _number_row([2**63 - 1]), _number_row([dim]))
        values = op.Sub(
            later, op.Slice(values, _number_row([0]), _number_row([-1]), _number_row([dim]))
        )
    return values


def column_stack(op: Any, tensors: Sequence[Any]) -> Any:
    """Put columns and matrices side by side."""
    return op.Concat(*(_pad_rank(op, one, back=[1]) for one in tensors), axis=1)


def dstack(op: Any, tensors: Sequence[Any]) -> Any:
    """Stack along the third dim."""
    return op.Concat(*(_pad_rank(op, one, front=[0], back=[2]) for one in tensors), axis=2)


def _pad_rank(op: Any, value: Any, *, back: Sequence[int], front: Sequence[int] = ()) -> Any:
    """Add dims of 1 before and after a value whose rank is too low."""
    rank = rank_of(value)
    if rank == 0:
        raise translation_error("it", "for a scalar among the tensors")
    for axis in (*(front if rank == 1 else ()), *(back if rank <= back[-1] else ())):
        value = op.Unsqueeze(value, _number_row([axis]))
    return value


def take_along_dim(op: Any, self: Any, indices: Any, dim: int | None = None) -> Any:
    """Gather along a dim; of the flattened values if there is none."""
    if dim is None:
        return op.GatherElements(ravel(op, self), ravel(op, indices), axis=0)
    axis = dim % rank_of(self)
    sizes = [op.Shape(self, start=0, end=axis), op.Shape(self, start=axis + 1)]
    theirs = [op.Shape(indices, start=0, end=axis), op.Shape(indices, start=axis + 1)]
    ones = _number_row([1])
    shape_of_self = op.Concat(theirs[0], ones, theirs[1], axis=0)
    shape_of_indices = op.Concat(sizes[0], ones, sizes[1], axis=0)
    values, places = op.Expand(self, shape_of_self), op.Expand(indices, shape_of_indices)
    return op.GatherElements(values, places, axis=axis)


def msort(op: Any, self: Any) -> Any:
    """Sort along the first dim."""
    size = op.Shape(self, start=0, end=1)
    return op.TopK(self, size, axis=0, largest=0, sorted=1)[0]


def argwhere(op: Any, self: Any) -> Any:
    """Return the indices of non-zero values, one per row."""
    return op.Transpose(op.NonZero(self), perm=[1, 0])


def trace(op: Any, self: Any) -> Any:
    """Return the sum of a matrix's diagonal."""
    on = op.Cast(op.EyeLike(self, dtype=_INT64), to=_BOOL)
    return op.ReduceSum(op.Where(on, self, 0.0), keepdims=0)


def isposinf(op: Any, self: Any) -> Any:
    """Return where values are positive infinity."""
    return op.IsInf(self, detect_negative=0)


def isneginf(op: Any, self: Any) -> Any:
    """Return where values are negative infinity."""
    return op.IsInf(self, detect_positive=0)


def linspace(g: Any, start: Any, end: Any, steps: Any, dtype: Any, *others: Any) -> Any:
    """Return float32 steps between two numbers; other dtypes are left to the exporter."""
    from torch.onnx._internal.torchscript_exporter import symbolic_opset9

    if python_value(dtype) not in {None, _TORCH_FLOAT}:
        return symbolic_opset9.linspace(g, start, end, steps, dtype, *others)
    return linspace_steps(SymbolicOpBuilder(g), *map(python_value, (start, end, steps)))


def _number_row(values: list[int]) -> Any:
    import torch

    return torch.tensor(values)


_UNARY = {
    "acosh": "Acosh",
    "asinh": "Asinh",
    "atanh": "Atanh",
    "cosh": "Cosh",
    "sinh": "Sinh",
}
_OWN_OPS: Mapping[str, OpWriter] = {
    **{name: _unary_writer(kind) for name, kind in _UNARY.items()},
    **{f"arc{name[1:]}": _unary_writer(_UNARY[name]) for name in ("acosh", "asinh", "atanh")},
    "addcdiv": addcdiv,
    "addmv": addmv,
    "argwhere": argwhere,
    "column_stack": column_stack,
    "deg2rad": deg2rad,
    "diff": diff,
    "dstack": dstack,
    "erfc": erfc,
    "exp2": exp2,
    "fix": trunc,
    "fliplr": fliplr,
    "flipud": flipud,
    "fmax": fmax,
    "fmin": fmin,
    "frac": frac,
    "heaviside": heaviside,
    "inner": inner,
    "isneginf": isneginf,
    "isposinf": isposinf,
    "linspace": linspace,
    "logaddexp": logaddexp,
    "logaddexp2": logaddexp2,
    "msort": msort,
    "positive": positive,
    "rad2deg": rad2deg,
    "ravel": ravel,
    "sinc": sinc,
    "special_erfc": erfc,
    "special_exp2": exp2,
    "special_expm1": expm1,
    "special_log1p": log1p,
    "special_sinc": sinc,
    "special_xlogy": xlogy,
    "take_along_dim": take_along_dim,
    "trace": trace,
    "trunc": trunc,
    "xlogy": xlogy,
}
TORCHSCRIPT_OPS: Mapping[str, OpWriter] = {
    f"aten::{name}": write
    for name, write in {
        **{name: _exporter_symbolic(other) for name, other in OPERATOR_ALIASES.items()},
        **_OWN_OPS,
    }.items()
}
