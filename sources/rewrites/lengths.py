"""Sizes kept as they are where Python or torch makes numbers of them, which fixes them.

`len(tensor)` is a number of Python's, and so are `int(size / 2)` and `max(size, 1)`. torch.export
takes the steps of `torch.linspace` for one, and the size of `torch.fft.fftfreq`.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import FunctionType
from typing import Any

from .rewrite import Module, Rewrite, calls_any
from .swapping import swapped

_SIGN = "specialized it"  # what torch.export says of a size that became a number
_NUMBERS = (_SIGN, "it took for granted")  # also of what was computed of one, or compared
_LIBRARY = "torch."


def _globals_of(module: Module) -> Iterator[dict[str, Any]]:
    """The names of each file that has methods of the model's classes, once."""
    kinds = {kind for part in module.modules() for kind in type(part).__mro__}
    files = {kind.__module__ for kind in kinds if not kind.__module__.startswith(_LIBRARY)}
    files |= {
        member.__module__
        for kind in kinds
        for member in vars(kind).values()
        if isinstance(member, FunctionType) and not str(member.__module__).startswith(_LIBRARY)
    }
    yield from (vars(sys.modules[name]) for name in files if name in sys.modules)


def _calls(module: Module, wanted: Collection[str]) -> bool:
    """Whether a method of the model's classes, or a function that one names, calls one of these."""
    methods = [
        member
        for part in module.modules()
        for kind in type(part).__mro__
        if not kind.__module__.startswith(_LIBRARY)
        for member in vars(kind).values()
        if isinstance(member, FunctionType)
    ]
    named = [one.__globals__.get(name) for one in methods for name in one.__code__.co_names]
    functions = [*methods, *(one for one in named if isinstance(one, FunctionType))]
    return any(not set(wanted).isdisjoint(one.__code__.co_names) for one in functions)


def _suits(module: Module, reasons: Sequence[str]) -> bool:
    return any(_SIGN in reason for reason in reasons) and _calls(module, {"len"})


def _makes_numbers(module: Module, reasons: Sequence[str]) -> bool:
    told = any(sign in reason for reason in reasons for sign in _NUMBERS)
    return told and _calls(module, {"int", "max", "min"})


@contextmanager
def _known_as(module: Module, ours: Mapping[str, object]) -> Iterator[None]:
    """Builtins of these names in the files of the model's classes."""
    with ExitStack() as stack:
        for names in _globals_of(module):
            for name in ours.keys() - names.keys():  # who has one of their own knows what it does
                names[name] = ours[name]
                stack.callback(names.pop, name)
        yield


def _during(module: Module) -> AbstractContextManager[None]:
    return _known_as(module, {"len": _length})


def _with_numbers(module: Module) -> AbstractContextManager[None]:
    return _known_as(module, {"int": _Int, "max": _largest, "min": _smallest})


class _IntType(type):
    """What `isinstance(value, int)` asks where `int` is `_Int`: what follows from sizes is one."""

    def __instancecheck__(cls, value: object) -> bool:
        import torch

        return isinstance(value, int | torch.SymInt)


class _Int(int, metaclass=_IntType):
    """As Python's own, but for what follows from sizes, which stays symbolic."""

    def __new__(cls, value: Any = 0, *base: Any) -> Any:
        import torch

        if isinstance(value, torch.SymInt):
            return value
        if isinstance(value, torch.SymFloat):
            return torch.sym_int(value)  # type: ignore[no-untyped-call]  # torch's own
        return int(value, *base)


def _largest(*values: Any, **options: Any) -> Any:
    """As Python's own, but for two sizes."""
    import torch

    if _are_two(values):
        return torch.sym_max(*values)  # type: ignore[no-untyped-call]  # torch's own
    return max(*values, **options)


def _smallest(*values: Any, **options: Any) -> Any:
    """As Python's own, but for two sizes."""
    import torch

    if _are_two(values):
        return torch.sym_min(*values)  # type: ignore[no-untyped-call]  # torch's own
    return min(*values, **options)


def _are_two(values: Sequence[Any]) -> bool:
    """Whether they are two whole numbers of which one follows from sizes."""
    import torch

    whole = all(isinstance(one, int | torch.SymInt) for one in values)
    return len(values) == 2 and whole and any(isinstance(one, torch.SymInt) for one in values)  # noqa: PLR2004 - those that torch has an operator for


def _length(value: Any) -> Any:
    """As Python's own, but for tensors: `value.shape[0]`, which captures follow."""
    import torch

    if isinstance(value, torch.Tensor) and value.ndim:
        return value.shape[0]
    return len(value)


def _calls_linspace(module: Module, reasons: Sequence[str]) -> bool:
    told = any(_SIGN in reason for reason in reasons)
    return told and calls_any(module, frozenset({"linspace"}))


@contextmanager
def _with_steps(module: Module) -> Iterator[None]:  # noqa: ARG001 - as every `during`
    import torch

    with swapped({torch.linspace: _linspace}):
        yield


def _linspace(start: Any, end: Any, steps: Any, *, dtype: Any = None, **named: Any) -> Any:
    """As torch's own, whose formula this is: from each end up to the middle, rounded once."""
    import torch

    kind = dtype or torch.get_default_dtype()
    if type(steps) is int or not kind.is_floating_point:
        return torch._C._VariableFunctions.linspace(start, end, steps, dtype=dtype, **named)
    named.pop("requires_grad", None)
    whole = torch.arange(steps, **named)
    last = whole * 0 + steps - 1
    places, nothing = whole.to(kind), (whole * 0).to(kind)
    step = (end - start) / last.clamp(min=1).to(kind)
    near = _fused(step, places, nothing + start)
    far = _fused(-step, last.to(kind) - places, nothing + end)
    return torch.where((2 * whole < last) | (last == 0), near, far)


def _fused(x: Any, y: Any, z: Any) -> Any:
    """Return x * y + z, rounded once: with what the product and the sum left out (Dekker, Knuth).

    As torch's own kernel has it, where the CPU has FMA; in operators that every runtime has.
    """
    product = x * y
    (x_high, x_low), (y_high, y_low) = _split(x), _split(y)
    error = x_high * y_high - product + x_high * y_low + x_low * y_high + x_low * y_low
    total = z + product
    added = total - z
    return total + ((z - (total - added)) + (product - added) + error)


def _split(x: Any) -> tuple[Any, Any]:
    """Two float32 of 12 bits whose sum is x (Veltkamp)."""
    shifted = x * 4096 + x
    high = shifted - (shifted - x)
    return high, x - high


def _calls_frequencies(module: Module, reasons: Sequence[str]) -> bool:
    told = any(_SIGN in reason for reason in reasons)
    return told and calls_any(module, frozenset({"fftfreq", "rfftfreq"}))


@contextmanager
def _with_frequencies(module: Module) -> Iterator[None]:  # noqa: ARG001 - as every `during`
    import torch

    with swapped({torch.fft.fftfreq: _fftfreq, torch.fft.rfftfreq: _rfftfreq}):
        yield


def _fftfreq(n: Any, d: float = 1.0, *, dtype: Any = None, device: Any = None) -> Any:
    """As torch's own: 0 and above, then those below 0."""
    import torch

    kind = dtype or torch.get_default_dtype()
    places = torch.arange(n, device=device)
    return torch.where(places < (n + 1) // 2, places, places - n).to(kind) * (1.0 / (n * d))


def _rfftfreq(n: Any, d: float = 1.0, *, dtype: Any = None, device: Any = None) -> Any:
    """As torch's own: 0 and above."""
    import torch

    kind = dtype or torch.get_default_dtype()
    return torch.arange(n // 2 + 1, device=device).to(kind) * (1.0 / (n * d))


REWRITES: tuple[Rewrite, ...] = (
    Rewrite(
        name="tensor-lengths",
        summary="len(tensor) as tensor.shape[0]",
        suits=_suits,
        during=_during,
        signs=(_SIGN,),
    ),
    Rewrite(
        name="symbolic-numbers",
        summary="int(), max() and min() of what follows from sizes, without fixing them",
        suits=_makes_numbers,
        during=_with_numbers,
        signs=("math.trunc(", "max(", "min("),
    ),
    Rewrite(
        name="dynamic-linspace",
        summary="torch.linspace of a dynamic number of steps by torch.arange",
        suits=_calls_linspace,
        during=_with_steps,
        signs=(_SIGN,),
    ),
    Rewrite(
        name="dynamic-frequencies",
        summary="torch.fft.fftfreq and rfftfreq of a dynamic size by torch.arange",
        suits=_calls_frequencies,
        during=_with_frequencies,
        signs=(_SIGN,),
    ),
)
