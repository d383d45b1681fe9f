"""Repeat an operation of eager with typical mistakes of conversions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from ..core.torch_tools import to_array

if TYPE_CHECKING:
    from ..core.contract import Array
    from .activation_tape import TracedCall

Variants: TypeAlias = Iterator[tuple[str, Callable[[], Any]]]
_EPSILONS = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-12, 0.0)
_MODES = ("nearest", "nearest-exact", "bilinear", "bicubic", "trilinear", "linear", "area")
_PADS = ("constant", "reflect", "replicate", "circular")
_BIAS, _TRAINING = 2, 5  # positions of the arguments of linear and conv, and of batch_norm
_TWO_OPERANDS = frozenset({"sub", "div", "truediv", "matmul", "pow", "bmm", "rsub"})


def make_variants(operation: TracedCall) -> Iterator[tuple[str, Array]]:
    """Yield the results of variants of an operation, each with its description.

    Variants that torch rejects for these arguments are skipped.
    """
    import torch

    for description, call in _fit_variants(operation):
        try:
            with torch.no_grad():
                result = call()
        except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError):
            continue  # not every variant fits every shape
        if isinstance(result, torch.Tensor):
            yield description, to_array(result)


def _fit_variants(operation: TracedCall) -> Variants:
    """Yield the variants that fit the call; a call with keywords only may have none."""
    try:
        yield from _list_variants(operation)
    except (IndexError, TypeError):
        return


def _list_variants(operation: TracedCall) -> Variants:
    if operation.name in _VARIANT_TABLE:
        yield from _VARIANT_TABLE[operation.name](operation)
    yield from _other_axes(operation)
    if operation.name in _TWO_OPERANDS:
        first, second, *rest = operation.args
        yield "the two operands are swapped", _rerun(operation, second, first, *rest)
    if operation.name in ("add", "radd", "sub", "mul", "truediv"):
        yield "the second operand has no effect", lambda: operation.args[0]


def _rerun(operation: TracedCall, *args: object, **changed: object) -> Callable[[], Any]:
    """Return the call with other arguments, if given, and changed keyword arguments."""
    return partial(operation.function, *(args or operation.args), **{**operation.kwargs, **changed})


def _gelu(operation: TracedCall) -> Variants:
    is_tanh = operation.kwargs.get("approximate") == "tanh"
    other = "none" if is_tanh else "tanh"
    names = {"none": "exact (erf)", "tanh": "the tanh approximation"}
    description = f"GELU is {names[other]} here, {names['tanh' if is_tanh else 'none']} in eager"
    yield description, _rerun(operation, approximate=other)


def _epsilon(place: int) -> Callable[[TracedCall], Variants]:
    def variants(operation: TracedCall) -> Variants:
        args, kwargs = operation.args, operation.kwargs
        if "eps" in kwargs or len(args) <= place:
            mine = kwargs.get("eps")
            for value in _EPSILONS:
                if value != mine:
                    yield f"epsilon {value:g} instead of {mine}", _rerun(operation, eps=value)
            return
        for value in _EPSILONS:
            if value != args[place]:
                given = (*args[:place], value, *args[place + 1 :])
                yield f"epsilon {value:g} instead of {args[place]:g}", _rerun(operation, *given)

    return variants


def _batch_norm(operation: TracedCall) -> Variants:
    yield from _epsilon(7)(operation)
    args = operation.args
    if operation.kwargs.get("training") is False or (
        len(args) > _TRAINING and args[_TRAINING] is False
    ):
        yield (
            "normalizes by the batch, as in training mode: eval() was not called",
            lambda: _normalize_by_batch(operation),
        )


def _normalize_by_batch(operation: TracedCall) -> Any:
    from torch.nn import functional

    named = dict(zip(("weight", "bias"), operation.args[3:5], strict=False))
    weight, bias = (operation.kwargs.get(key, named.get(key)) for key in ("weight", "bias"))
    return functional.batch_norm(
        operation.args[0], None, None, weight=weight, bias=bias, training=True
    )


def _linear(operation: TracedCall) -> Variants:
    args, kwargs = operation.args, operation.kwargs
    x, weight = args[0], args[1]
    bias = args[_BIAS] if len(args) > _BIAS else kwargs.get("bias")
    if weight.shape[0] == weight.shape[-1]:
        yield "the weight is transposed", lambda: operation.function(x, weight.T, bias)
    if bias is not None:
        yield "the bias is left out", lambda: operation.function(x, weight, None)


def _conv(operation: TracedCall) -> Variants:
    args = operation.args
    weight = args[1]
    if weight.shape[0] == weight.shape[1]:
        yield (
            "the weight is transposed",
            _rerun(operation, args[0], weight.transpose(0, 1), *args[2:]),
        )
    if len(args) > _BIAS and args[_BIAS] is not None:
        yield "the bias is left out", _rerun(operation, *args[:2], None, *args[3:])


def _interpolate(operation: TracedCall) -> Variants:
    kwargs = operation.kwargs
    for mode in _MODES:
        for align in (None, True, False):
            if (mode, align) != (kwargs.get("mode", "nearest"), kwargs.get("align_corners")):
                description = f"interpolates {mode}" + (
                    "" if align is None else f", align_corners={align}"
                )
                mine = f"{kwargs.get('mode', 'nearest')}, {kwargs.get('align_corners')}"
                yield (
                    f"{description}; eager {mine}",
                    _rerun(operation, mode=mode, align_corners=align),
                )


def _pad(operation: TracedCall) -> Variants:
    for mode in _PADS:
        if mode != operation.kwargs.get("mode", "constant"):
            kwargs = {k: v for k, v in operation.kwargs.items() if k not in ("mode", "value")}
            yield (
                f"pads by {mode}",
                partial(operation.function, *operation.args[:2], mode=mode, **kwargs),
            )


def _round(operation: TracedCall) -> Variants:
    import torch

    for function in (torch.floor, torch.ceil, torch.trunc, torch.round):
        if function.__name__ != operation.name:
            yield f"rounds by {function.__name__}", partial(function, operation.args[0])


def _extreme(operation: TracedCall) -> Variants:
    import torch

    others = {"argmax": ("argmin", "smallest"), "argmin": ("argmax", "largest")}
    name, kind = others[operation.name]
    other = getattr(torch, name)
    yield (
        f"takes the place of the {kind} ({name} instead of {operation.name})",
        partial(other, *operation.args, **operation.kwargs),
    )


def _comparison(operation: TracedCall) -> Variants:
    import torch

    for name in _COMPARISONS:
        if name != operation.name:
            other = getattr(torch, name)
            description = f"compares by {name} instead of {operation.name}"
            yield description, partial(other, *operation.args, **operation.kwargs)


def _cast(operation: TracedCall) -> Variants:
    """Yield casts that round, where eager truncates."""
    import torch

    first, *rest = operation.args
    if not first.is_floating_point():
        return
    for function in (torch.round, torch.floor, torch.ceil):
        rounded = function(first)
        description = f"rounds by {function.__name__} before the cast, where eager truncates"
        yield description, _rerun(operation, rounded, *rest)


def _pool(operation: TracedCall) -> Variants:
    for key in ("count_include_pad", "ceil_mode"):
        if key in operation.kwargs:
            value = not operation.kwargs[key]
            yield f"pools with {key}={value}", _rerun(operation, **{key: value})


def _other_axes(operation: TracedCall) -> Variants:
    """Yield variants along other axes."""
    tensor = operation.args[0] if operation.args else None
    rank = getattr(tensor, "ndim", 0)
    dim = operation.kwargs.get("dim")
    if isinstance(dim, int) and operation.name in _AXIS_FUNCTIONS:
        for axis in range(rank):
            if axis != dim % max(rank, 1):
                yield (
                    f"works along axis {axis} instead of {dim % rank}",
                    _rerun(operation, dim=axis),
                )
    elif (
        operation.name in _AXIS_FUNCTIONS
        and len(operation.args) > 1
        and type(operation.args[1]) is int
    ):
        first, mine, *rest = operation.args
        for axis in range(rank):
            if axis != mine % rank:
                description = f"works along axis {axis} instead of {mine % rank}"
                yield description, _rerun(operation, first, axis, *rest)


_AXIS_FUNCTIONS = frozenset({
    "softmax", "log_softmax", "cumsum", "flip", "normalize", "logsumexp", "argmax", "argmin",
    "sort", "argsort",
})  # fmt: skip
_COMPARISONS = ("gt", "ge", "lt", "le", "eq", "ne")
_VARIANT_TABLE: Mapping[str, Callable[[TracedCall], Variants]] = {
    "gelu": _gelu,
    "layer_norm": _epsilon(4),
    "rms_norm": _epsilon(3),
    "group_norm": _epsilon(4),
    "instance_norm": _epsilon(7),
    "batch_norm": _batch_norm,
    "linear": _linear,
    "conv1d": _conv,
    "conv2d": _conv,
    "interpolate": _interpolate,
    "pad": _pad,
    "round": _round,
    "floor": _round,
    "ceil": _round,
    "trunc": _round,
    "avg_pool2d": _pool,
    "max_pool2d": _pool,
    "argmax": _extreme,
    "argmin": _extreme,
    **dict.fromkeys(_COMPARISONS, _comparison),
    **dict.fromkeys(("to", "long", "int"), _cast),
}
