"""ONNX translations, for both exporters, of operators that torch's exporters lack."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..capture.evidence import Symptom, evidence_of
from ..capture.refusals import RefusedError
from ..core.errors import Hint, Option

OpWriter = Callable[..., object]
_FLOAT, _INT32, _INT64 = 1, 6, 7  # onnx.TensorProto
_STABLE = 3  # arguments of argsort.stable: stable, dim, descending


def cumprod(op: Any, self: Any, dim: int, dtype: int | None = None) -> Any:
    """Return cumulative products."""
    if dtype is not None:
        raise translation_error("cumprod", "with a dtype")
    seen, wide = _prefixes(op, self, dim)
    return _reduce(op.ReduceProd, op.Where(seen, wide, 1.0), _prefix_axis(self, dim))


def logcumsumexp(op: Any, self: Any, dim: int) -> Any:
    """Return logarithms of cumulative sums of exponentials."""
    seen, wide = _prefixes(op, self, dim)
    return _reduce(op.ReduceLogSumExp, op.Where(seen, wide, -math.inf), _prefix_axis(self, dim))


def cummax(op: Any, self: Any, dim: int) -> tuple[Any, Any]:
    """Return cumulative maxima of floats, with the index of the last of equal ones."""
    seen, wide = _prefixes(op, self, dim)
    values, axis = op.Where(seen, wide, -math.inf), _prefix_axis(self, dim)
    places = op.ArgMax(values, axis=axis, keepdims=0, select_last_index=1)
    return _reduce(op.ReduceMax, values, axis), places


def log1p(op: Any, self: Any) -> Any:
    """Return log(1 + x) as 2 atanh(x / (2 + x)), as the sum would round small x away.

    The series of atanh is Abramowitz and Stegun, 4.1.29 and 4.6.22. ONNX Runtime lacks Atanh of
    doubles, which divide out the rounding of u = 1 + x instead: log(u) x / (u - 1), as in Goldberg,
    "What every computer scientist should know about floating-point arithmetic", theorem 4.
    """
    self = as_floats(op, self)
    one = op.CastLike(1.0, self)
    total = op.Add(self, one)
    plain = op.Log(total)
    if dtype_of(self) in {None, "float64", "double"}:
        part = op.Sub(total, one)
        return op.Where(op.Equal(total, one), self, op.Mul(plain, op.Div(self, part)))
    near = op.Mul(2.0, op.Atanh(op.Div(self, op.Add(self, 2.0))))
    return op.Where(_is_small(op, self), near, plain)


def expm1(op: Any, self: Any) -> Any:
    """Return exp(x) - 1 as 2 t / (1 - t), t = tanh(x / 2), as the difference would lose small x.

    Abramowitz and Stegun, 4.5.32.
    """
    self = as_floats(op, self)
    half = op.Tanh(op.Mul(self, 0.5))
    near = op.Div(op.Mul(half, 2.0), op.Sub(1.0, half))
    return op.Where(_is_small(op, self), near, op.Sub(op.Exp(self), 1.0))


def atan2(op: Any, self: Any, other: Any) -> Any:
    """Return the angle of (x, y), x being `other`: of |y| / |x|, then by signs, also those of 0."""
    y, x = as_floats(op, self), as_floats(op, other)
    high, wide = op.Abs(y), op.Abs(x)
    even = op.Where(op.Equal(wide, 0.0), op.CastLike(0.0, x), op.CastLike(math.pi / 4, x))
    steep = op.Where(op.Equal(high, wide), even, op.Atan(op.Div(high, wide)))
    angle = op.Where(_is_negative(op, x), op.Sub(math.pi, steep), steep)
    return op.Where(_is_negative(op, y), op.Neg(angle), angle)


def hypot(op: Any, self: Any, other: Any) -> Any:
    """Return the length of (x, y), scaled by the larger one so that no square overflows."""
    one, two = op.Abs(self), op.Abs(other)
    long = op.Max(one, two)
    part = op.Div(op.Min(one, two), op.Where(op.Equal(long, 0.0), op.CastLike(1.0, long), long))
    found = op.Mul(long, op.Sqrt(op.Add(op.Mul(part, part), 1.0)))
    endless = op.Or(op.IsInf(one), op.IsInf(two))  # also for NaN
    return op.Where(endless, op.CastLike(math.inf, long), found)


def search_sorted(  # noqa: PLR0913, PLR0917 - the operator's own
    op: Any,
    sorted_sequence: Any,
    self: Any,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Any = None,
) -> Any:
    """Count the sorted edges before each value; NaN comes last."""
    if sorter is not None or not is_graph_value(self):
        raise translation_error("searchsorted", "with a sorter or a scalar")
    edges, values = sorted_sequence, op.Unsqueeze(self, [-1])
    if rank_of(edges) > 1:
        edges = op.Unsqueeze(edges, [-2])
    after = right or side == "right"
    beyond = op.Greater(edges, values) if after else op.GreaterOrEqual(edges, values)
    count = _reduce(op.ReduceSum, op.Cast(op.Not(beyond), to=_INT64), -1)
    return op.Cast(count, to=_INT32) if out_int32 else count


def bucketize(
    op: Any, self: Any, boundaries: Any, out_int32: bool = False, right: bool = False
) -> Any:
    """Translate `search_sorted` with one row of edges."""
    return search_sorted(op, boundaries, self, out_int32, right)


def cdist(op: Any, x1: Any, x2: Any, p: float = 2.0, compute_mode: int | None = None) -> Any:  # noqa: ARG001 - how eager computes it
    """Return the distances between all pairs of rows."""
    apart = op.Sub(op.Unsqueeze(x1, [-2]), op.Unsqueeze(x2, [-3]))
    if p == 1:
        return _reduce(op.ReduceL1, apart, -1)
    if p == 2:  # noqa: PLR2004 - Euclid's
        return _reduce(op.ReduceL2, apart, -1)
    raise translation_error("cdist", f"with p={p}")


def argsort(op: Any, self: Any, *others: Any, **named: Any) -> Any:
    """Return the sorting order; always stable."""
    names = ("stable", "dim", "descending") if len(others) == _STABLE else ("dim", "descending")
    options = {"dim": -1, "descending": False, **dict(zip(names, others, strict=False)), **named}
    dim, descending = int(options["dim"]), int(options["descending"])
    size = op.Gather(op.Shape(self), [dim])
    _, places = op.TopK(self, size, axis=dim, largest=descending, sorted=1)
    return places


def equal(op: Any, self: Any, other: Any) -> Any:
    """Return whether two tensors have equal shapes and values."""
    if rank_of(self) != rank_of(other):
        raise translation_error("equal", "for tensors of different ranks")
    shapes = all_true(op, op.Equal(op.Shape(self), op.Shape(other)))
    return op.And(shapes, all_true(op, op.Equal(self, other)))


def contains(op: Any, items: Any, item: Any) -> Any:
    """Return whether a number is in a list of numbers."""
    import torch

    if isinstance(items, list) and not any(map(is_graph_value, [*items, item])):
        return op.Constant(value=torch.tensor(item in items))
    found = op.Cast(op.Equal(_number_tensor(items), item), to=_INT64)
    return op.Greater(op.ReduceMax(found, keepdims=0), 0)


def bilinear(op: Any, input1: Any, input2: Any, weight: Any, bias: Any = None) -> Any:
    """Return x1^T W x2 per output."""
    out = op.Einsum(input1, weight, input2, equation="...i,oij,...j->...o")
    return out if bias is None else op.Add(out, bias)


def swap_last(op: Any, self: Any, rank: int | None = None) -> Any:
    """Swap the last two dims, as `.mT` does; `rank` is that of a computed value."""
    rank = rank_of(self) if rank is None else rank
    return op.Transpose(self, perm=[*range(rank - 2), rank - 1, rank - 2])


def gru_cell(op: Any, x: Any, state: Any, *weights: Any) -> Any:
    """Compute a step of a GRU; weights and biases alternate between input and state."""
    of_x, of_state = _gates(op, x, state, weights, count=3)
    reset = op.Sigmoid(op.Add(of_x[0], of_state[0]))
    update = op.Sigmoid(op.Add(of_x[1], of_state[1]))
    new = op.Tanh(op.Add(of_x[2], op.Mul(reset, of_state[2])))
    return op.Add(new, op.Mul(update, op.Sub(state, new)))


def lstm_cell(op: Any, x: Any, states: Any, *weights: Any) -> tuple[Any, Any]:
    """Compute a step of an LSTM: the new state and cell."""
    state, cell = states
    both = zip(*_gates(op, x, state, weights, count=4), strict=True)
    take, keep, new, give = (op.Add(one, other) for one, other in both)
    remembered = op.Mul(op.Sigmoid(keep), cell)
    cell = op.Add(remembered, op.Mul(op.Sigmoid(take), op.Tanh(new)))
    return op.Mul(op.Sigmoid(give), op.Tanh(cell)), cell


def rnn_tanh_cell(op: Any, x: Any, state: Any, *weights: Any) -> Any:
    """Compute a step of a plain RNN."""
    return op.Tanh(op.Add(*_linears(op, x, state, weights)))


def rnn_relu_cell(op: Any, x: Any, state: Any, *weights: Any) -> Any:
    """Compute a step of a plain RNN with ReLU."""
    return op.Relu(op.Add(*_linears(op, x, state, weights)))


def _linears(op: Any, x: Any, state: Any, weights: Sequence[Any]) -> tuple[Any, Any]:
    """Apply the linear layers of input and state, with optional biases."""
    of_x, of_state, *biases = weights
    x_bias, state_bias = biases or (None, None)
    x_inputs = (x, of_x) if x_bias is None else (x, of_x, x_bias)
    state_inputs = (state, of_state) if state_bias is None else (state, of_state, state_bias)
    return op.Gemm(*x_inputs, transB=1), op.Gemm(*state_inputs, transB=1)


def _gates(
    op: Any, x: Any, state: Any, weights: Sequence[Any], *, count: int
) -> tuple[Sequence[Any], Sequence[Any]]:
    """Split the linear layers of input and state by gate."""
    one, other = _linears(op, x, state, weights)
    return (
        op.Split(one, axis=-1, num_outputs=count, _outputs=count),
        op.Split(other, axis=-1, num_outputs=count, _outputs=count),
    )


def _prefixes(op: Any, values: Any, dim: int) -> tuple[Any, Any]:
    """Add an axis after `dim`, and return the mask of the values up to each place."""
    back = _negative_axis(values, dim)
    size = op.Gather(op.Shape(values), back)
    places = op.Range(0, size, 1)
    seen = op.LessOrEqual(op.Unsqueeze(places, [1]), op.Unsqueeze(places, [0]))
    if back < -1:
        seen = op.Unsqueeze(seen, list(range(2, 1 - back)))
    return seen, op.Unsqueeze(values, [back])


def _prefix_axis(values: Any, dim: int) -> int:
    """Return the axis to reduce after `_prefixes`."""
    return _negative_axis(values, dim) - 1


def _negative_axis(values: Any, dim: int) -> int:
    return dim if dim < 0 else dim - rank_of(values)


def rank_of(value: Any) -> int:
    """Return the rank of a value of either exporter."""
    import torch

    if isinstance(value, torch._C.Value):
        kind: Any = value.type()
        rank = kind.dim() if kind.kind() == "TensorType" else None
    else:
        rank = None if value.shape is None else len(value.shape)
    if rank is None:
        raise translation_error("it", "for a tensor of unknown rank")
    return int(rank)


def size_of(value: Any, axis: int) -> int | None:
    """Return the size of a dim of a value of either exporter; None if dynamic."""
    import torch

    if isinstance(value, torch._C.Value):
        kind: Any = value.type()
        sizes = kind.varyingSizes() if kind.kind() == "TensorType" else None
        return None if sizes is None else sizes[axis]
    size = None if value.shape is None else value.shape[axis]
    return size if isinstance(size, int) else None


def _reduce(reduction: OpWriter, values: Any, axis: int) -> Any:
    return reduction(values, [axis], keepdims=0)


def all_true(op: Any, flags: Any) -> Any:
    """Return whether no element is false."""
    return op.Equal(op.ReduceSum(op.Cast(op.Not(flags), to=_INT64), keepdims=0), 0)


def as_floats(op: Any, values: Any) -> Any:
    """Cast to float32 what torch computes in floats for integers."""
    name = dtype_of(values) or "float"
    return values if "float" in name or name == "double" else op.Cast(values, to=_FLOAT)


def dtype_of(values: Any) -> str | None:
    """Return the dtype of a value of either exporter, such as `float32`; None if unknown."""
    import torch

    if isinstance(values, torch._C.Value):
        kind: Any = values.type()
        dtype = kind.dtype() if kind.kind() == "TensorType" else None
        return None if dtype is None else str(dtype).removeprefix("torch.")
    return None if values.dtype is None else str(values.dtype).lower()


def _is_small(op: Any, values: Any) -> Any:
    return op.Less(op.Abs(values), 0.5)


def _is_negative(op: Any, values: Any) -> Any:
    """Return where the sign is minus, including -0."""
    return op.Or(op.Less(values, 0.0), op.Less(op.Div(1.0, values), 0.0))


def is_graph_value(given: Any) -> bool:
    """Return whether it is a value of the graph, not a Python constant."""
    return not isinstance(given, int | float | str | None)


def _number_tensor(items: Any) -> Any:
    import torch

    if not isinstance(items, list):
        return items
    if any(map(is_graph_value, items)):
        raise translation_error("`in`", "a list that holds tensors")
    return torch.tensor(items)


def translation_error(operator: str, why: str, *symptoms: Symptom) -> RefusedError:
    """Return the error for a call of an operator that has no translation here."""
    return RefusedError(
        f"{operator} cannot be written in ONNX {why}",
        hint=Hint(
            "compose it from other operators, or translate it: ",
            Option("custom-op", "NS::OP=PKG.MOD:FN"),
        ),
        option="custom-op",
        evidence=evidence_of(*symptoms),
    )


SHARED_OPS: Mapping[str, OpWriter] = {
    "aten::argsort": argsort,
    "aten::atan2": atan2,  # torch's own gives -pi for y = 0, x < 0
    "aten::bucketize": bucketize,
    "aten::cdist": cdist,
    "aten::cummax": cummax,
    "aten::cumprod": cumprod,
    "aten::hypot": hypot,
    "aten::expm1": expm1,  # torch's own subtracts 1 from exp(x)
    "aten::log1p": log1p,  # torch's own adds 1 to x
    "aten::logcumsumexp": logcumsumexp,  # torch's own gives -inf far below the maximum
    "aten::searchsorted": search_sorted,
}
# operators that torch.export rejects or decomposes, or whose translation is in its exporter
SCRIPT_OPS: Mapping[str, OpWriter] = {
    **SHARED_OPS,
    "aten::__contains_": contains,
    "aten::bilinear": bilinear,
    "aten::equal": equal,
    "aten::gru_cell": gru_cell,
    "aten::lstm_cell": lstm_cell,
    "aten::mT": swap_last,
    "aten::rnn_relu_cell": rnn_relu_cell,
    "aten::rnn_tanh_cell": rnn_tanh_cell,
}
