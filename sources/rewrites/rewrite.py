"""What a rewrite is: a known change to a copy of the model, under which it can be captured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import torch

if not TYPE_CHECKING:
    Module: TypeAlias = Any  # a record's fields are read by type at run time, without torch
else:
    Module: TypeAlias = torch.nn.Module


def keep_module(module: Module) -> Module:
    """Nothing is changed in the module itself."""
    return module


def no_context(module: Module) -> AbstractContextManager[None]:  # noqa: ARG001 - as every `during`
    """Nothing is changed while the copy runs."""
    return nullcontext()


def calls_any(module: Module, names: frozenset[str]) -> bool:
    """Whether a method of a part's class names one of them, as torch.nn.ELU's forward does `elu`.

    What `torch.nn.Module` itself has is left out.
    """
    kinds = {kind for part in module.modules() for kind in type(part).__mro__}
    members = [m for kind in kinds if kind.__name__ != "Module" for m in vars(kind).values()]
    codes: list[Any] = [getattr(member, "__code__", None) for member in members]
    return any(names.intersection(code.co_names) for code in codes if code is not None)


@dataclass(frozen=True, kw_only=True)
class Rewrite:
    """One known change.

    `summary` is told to the user: `captured with <name>: <summary>`. `suits` says of the module
    and the reasons of the refusals so far whether it may help. `change` works on the copy, once,
    and gives what is then captured; `during` holds while the copy is captured, and puts back what
    it changed outside of it. `alone` says that it is not joined with others: where it does not
    help by itself, it would only change more than need be. `signs` are words of refusals that it
    is the answer to: it is tried before those that have none there.
    """

    name: str
    summary: str
    suits: Callable[[Module, Sequence[str]], bool]
    change: Callable[[Module], Module] = keep_module
    during: Callable[[Module], AbstractContextManager[None]] = no_context
    alone: bool = False
    signs: tuple[str, ...] = ()
