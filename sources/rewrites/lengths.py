"""Sizes kept as they are where Python or torch makes numbers of them, which fixes them.

`len(tensor)` is a number of Python's, and torch.export takes the steps of `torch.linspace` for one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import FunctionType
from typing import Any

from .rewrite import Module, Rewrite, calls_any
from .swapping import swapped

_SIGN = "specialized it"  # what torch.export says of a size that became a number
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


def _suits(module: Module, reasons: Sequence[str]) -> bool:
    told = any(_SIGN in reason for reason in reasons)
    return told and any(
        "len" in member.__code__.co_names
        for part in module.modules()
        for kind in type(part).__mro__
        if not kind.__module__.startswith(_LIBRARY)
        for member in vars(kind).values()
        if isinstance(member, FunctionType)
    )


@contextmanager
def _during(module: Module) -> Iterator[None]:
    with ExitStack() as stack:
        for names in _globals_of(module):
            if "len" not in names:  # who has a `len` of their own knows what it does
                names["len"] = _length
                stack.callback(names.pop, "len")
        yield


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
    """As torch's own, whose formula this is: from each end up to the middle."""
    import torch

    kind = dtype or torch.get_default_dtype()
    if type(steps) is int or not kind.is_floating_point:
        return torch._C._VariableFunctions.linspace(start, end, steps, dtype=dtype, **named)
    named.pop("requires_grad", None)
    places = torch.arange(steps, **named)
    last = places * 0 + steps - 1
    step = (end - start) / last.clamp(min=1).to(kind)
    near, far = start + step * places, end - step * (last - places)
    return torch.where(2 * places <= last, near, far).to(kind)


REWRITES: tuple[Rewrite, ...] = (
    Rewrite(
        name="tensor-lengths",
        summary="len(tensor) as tensor.shape[0]",
        suits=_suits,
        during=_during,
        signs=(_SIGN,),
    ),
    Rewrite(
        name="dynamic-linspace",
        summary="torch.linspace of a dynamic number of steps by torch.arange",
        suits=_calls_linspace,
        during=_with_steps,
        signs=(_SIGN,),
    ),
)
