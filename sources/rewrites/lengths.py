"""`len(tensor)` as the size it is: Python makes a number of it, which fixes that size."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import FunctionType
from typing import Any

from .rewrite import Module, Rewrite

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


REWRITES: tuple[Rewrite, ...] = (
    Rewrite(
        name="tensor-lengths",
        summary="len(tensor) as tensor.shape[0]",
        suits=_suits,
        during=_during,
        signs=(_SIGN,),
    ),
)
