"""The op builder of the TorchScript exporter, and translations of operators that it lacks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..capture.refusals import RefusedError
from ..core.errors import Hint, Option
from .onnx_division_ops import are_floats, divide_down
from .onnx_image_ops import linspace_steps
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
_SUFFIXES = ((bool, "i"), (int, "i"), (float, "f"), (str, "s"))


def python_value(value: Any) -> Any:
    """Return the Python value of a constant in the graph; anything else unchanged."""
    node = value.node()
    if node.kind() == "prim::Constant":
        return value.toIValue()
    if node.kind() == "prim::ListConstruct":
        return [python_value(part) for part in node.inputs()]
    if node.kind() == "onnx::Constant" and node.kindOf("value") == "t":
        held = node.t("value")
        return held.item() if held.dim() == 0 else value
    if node.kind() == "onnx::Constant" and node.kindOf("value") == "s":
        return node.s("value")
    return value


class SymbolicOpBuilder:
    """Adds the operator called by name to the graph; accepts what onnxscript's opsets accept.

    Inputs are graph values or Python numbers, which take the dtype of the inputs that they must
    agree with. `_outputs` is the number of outputs of a variadic operator.
    """

    def __init__(self, graph: Any) -> None:
        self._graph = graph

    def __getattr__(self, name: str) -> Callable[..., Any]:
        import onnx

        schema = onnx.defs.get_schema(name, max_inclusive_version=self._graph.opset)

        def write(*inputs: Any, _outputs: int | None = None, **attributes: Any) -> Any:
            values = [self._value(schema, at, inputs) for at in range(len(inputs))]
            named = {
                f"{key}_{_attribute_suffix(value)}": value for key, value in attributes.items()
            }
            count = _outputs or schema.min_output or schema.max_output
            return self._graph.op(name, *values, outputs=count, **named)

        return write

    def _value(self, schema: Any, at: int, inputs: Sequence[Any]) -> Any:
        import torch

        value = inputs[at]
        if value is None:
            from torch.onnx import symbolic_helper

            return symbolic_helper._optional_input_placeholder_tensor(self._graph)  # type: ignore[no-untyped-call]  # torch's own
        if isinstance(value, torch.Tensor):
            return self._graph.op("Constant", value_t=value)
        if isinstance(value, torch._C.Value):
            return value
        like = self._like(schema, at, inputs)
        dtype = like.type().dtype() if like is not None and dtype_of(like) else None
        constant = self._graph.op("Constant", value_t=torch.tensor(value, dtype=dtype))
        return constant if like is None or dtype else self._graph.op("CastLike", constant, like)

    def _like(self, schema: Any, at: int, inputs: Sequence[Any]) -> Any:
        """Return the input whose dtype this one must have."""
        import torch

        last = len(schema.inputs) - 1  # indices beyond belong to it: it is variadic
        types = [schema.inputs[min(index, last)].type_str for index in range(len(inputs))]
        for index, value in enumerate(inputs):
            if isinstance(value, torch._C.Value) and types[index] == types[at]:
                return value
        return None


def _attribute_suffix(value: Any) -> str:
    """Return the exporter's suffix for the type of an attribute."""
    import torch

    if isinstance(value, torch.Tensor):
        return "t"
    one = value[0] if isinstance(value, (list, tuple)) and value else value
    found = [suffix for kind, suffix in _SUFFIXES if isinstance(one, kind)]
    if not found:
        raise TypeError(f"an attribute cannot be a {type(value).__name__}")
    return found[0]


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


def ravel(op: Any, self: Any) -> Any:
    """Flatten to one dim."""
    return op.Reshape(self, _number_row([-1]))


def _erfc(op: Any, self: Any) -> Any:
    """Return 1 - erf(x), which is exact to float32's step at 1, as values are at most 2."""
    return op.Sub(1.0, op.Erf(as_floats(op, self)))


def trunc(op: Any, self: Any) -> Any:
    """Round towards zero."""
    if "int" in (dtype_of(self) or ""):
        return op.Identity(self)
    return op.Where(op.Less(self, 0.0), op.Ceil(self), op.Floor(self))


def exp2(op: Any, self: Any) -> Any:
    """Return 2 to the power of each value."""
    self = as_floats(op, self)
    return op.Pow(op.CastLike(2.0, self), self)


def sinc(op: Any, self: Any) -> Any:
    """Return sin(pi x) / (pi x), which is 1 at 0."""
    turned = op.Mul(as_floats(op, self), math.pi)
    return op.Where(op.Equal(turned, 0.0), op.CastLike(1.0, turned), op.Div(op.Sin(turned), turned))


def _ignore_nan(op: Any, kind: str, one: Any, other: Any) -> Any:
    """Return the larger or smaller of two, or the one that is not NaN."""
    chosen = getattr(op, kind)(one, other)
    return op.Where(op.IsNaN(one), other, op.Where(op.IsNaN(other), one, chosen))


def _log_of_sum(op: Any, self: Any, other: Any, *, log_of_two: float) -> Any:
    """Return log(b^x + b^y), scaled by the larger; equal values, even infinite, double."""
    scale = math.log(2) / log_of_two
    apart = op.Mul(op.Abs(op.Sub(self, other)), -scale)
    more = op.Div(op.Log(op.Add(op.Exp(apart), 1.0)), scale)
    doubled = op.Add(self, log_of_two)
    return op.Where(op.Equal(self, other), doubled, op.Add(op.Max(self, other), more))


def xlogy(op: Any, self: Any, other: Any) -> Any:
    """Return x log(y), which is 0 where x is 0 unless y is NaN."""
    none = op.And(op.Equal(self, 0.0), op.Not(op.IsNaN(other)))
    return op.Where(none, op.CastLike(0.0, other), op.Mul(self, op.Log(other)))


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


def trace(op: Any, self: Any) -> Any:
    """Return the sum of a matrix's diagonal."""
    on = op.Cast(op.EyeLike(self, dtype=_INT64), to=_BOOL)
    return op.ReduceSum(op.Where(on, self, 0.0), keepdims=0)


def linspace(g: Any, start: Any, end: Any, steps: Any, dtype: Any, *others: Any) -> Any:
    """Return float32 steps between two numbers; other dtypes are left to the exporter."""
    from torch.onnx._internal.torchscript_exporter import symbolic_opset9

    if python_value(dtype) not in {None, _TORCH_FLOAT}:
        return symbolic_opset9.linspace(g, start, end, steps, dtype, *others)
    return linspace_steps(SymbolicOpBuilder(g), *map(python_value, (start, end, steps)))


def floor_divide(g: Any, self: Any, other: Any) -> Any:
    """Round quotients of floats down exactly; integers are left to the exporter."""
    from torch.onnx._internal.torchscript_exporter import symbolic_opset9

    one, two = python_value(self), python_value(other)
    if are_floats(one, two):
        return divide_down(SymbolicOpBuilder(g), one, two)
    return symbolic_opset9.floor_divide(g, self, other)


def div(g: Any, self: Any, other: Any, *mode: Any) -> Any:
    """Round quotients of floats down exactly if asked; others are left to the exporter."""
    from torch.onnx._internal.torchscript_exporter import symbolic_opset10

    one, two = python_value(self), python_value(other)
    if are_floats(one, two) and [python_value(how) for how in mode] == ["floor"]:
        return divide_down(SymbolicOpBuilder(g), one, two)
    return symbolic_opset10.div(g, self, other, *mode)


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
    "addcdiv": lambda op, x, one, other, value=1: op.Add(
        x, op.Mul(op.Div(one, other), float(value))
    ),
    "addmv": addmv,
    "argwhere": lambda op, x: op.Transpose(op.NonZero(x), perm=[1, 0]),
    "column_stack": lambda op, tensors: op.Concat(
        *(_pad_rank(op, one, back=[1]) for one in tensors), axis=1
    ),
    "deg2rad": lambda op, x: op.Mul(as_floats(op, x), math.pi / 180),
    "diff": diff,
    "div": div,
    "dstack": lambda op, tensors: op.Concat(
        *(_pad_rank(op, one, front=[0], back=[2]) for one in tensors), axis=2
    ),
    "erfc": _erfc,
    "exp2": exp2,
    "fix": trunc,
    "fliplr": lambda op, x: _reverse_axis(op, x, 1),
    "flipud": lambda op, x: _reverse_axis(op, x, 0),
    "floor_divide": floor_divide,
    "fmax": lambda op, x, y: _ignore_nan(op, "Max", x, y),
    "fmin": lambda op, x, y: _ignore_nan(op, "Min", x, y),
    "frac": lambda op, x: op.Sub(x, trunc(op, x)),
    "heaviside": lambda op, x, values: op.Where(
        op.Equal(x, 0.0), values, op.CastLike(op.Greater(x, 0.0), x)
    ),
    "inner": inner,
    "isneginf": lambda op, x: op.IsInf(x, detect_positive=0),
    "isposinf": lambda op, x: op.IsInf(x, detect_negative=0),
    "linspace": linspace,
    "logaddexp": lambda op, x, y: _log_of_sum(op, x, y, log_of_two=math.log(2)),
    "logaddexp2": lambda op, x, y: _log_of_sum(op, x, y, log_of_two=1.0),
    "msort": lambda op, x: op.TopK(x, op.Shape(x, start=0, end=1), axis=0, largest=0, sorted=1)[0],
    "positive": lambda op, x: op.Identity(x),
    "rad2deg": lambda op, x: op.Mul(as_floats(op, x), 180 / math.pi),
    "ravel": ravel,
    "sinc": sinc,
    "special_erfc": _erfc,
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
