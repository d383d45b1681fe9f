"""Rewrites, and tools to change a copy of a model: own classes, swapped functions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, TypeAlias

from .evidence import RefusalEvidence, Symptom

if TYPE_CHECKING:
    import torch

    Module: TypeAlias = torch.nn.Module
else:
    Module: TypeAlias = Any  # a record's fields are read by type at run time, without torch
_Context: TypeAlias = AbstractContextManager[None]


def calls(*names: str) -> Callable[[Module], bool]:
    """Return a test: whether a method of a submodule's class uses one of the names, such as `elu`.

    Methods of `torch.nn.Module` do not count.
    """
    wanted = frozenset(names)

    def uses_name(module: Module) -> bool:
        kinds = {kind for part in module.modules() for kind in type(part).__mro__}
        members = [m for kind in kinds if kind.__name__ != "Module" for m in vars(kind).values()]
        codes: list[Any] = [getattr(member, "__code__", None) for member in members]
        return any(wanted.intersection(code.co_names) for code in codes if code is not None)

    return uses_name


def swaps(functions: Mapping[str, Callable[..., Any]]) -> Callable[[Module], _Context]:
    """Return a context for captures that replaces functions, given by their dotted names."""
    return lambda _: swap_functions({resolve_name(name): new for name, new in functions.items()})


@dataclass(frozen=True, kw_only=True)
class Rewrite:
    """One known change to a model.

    Attributes:
        name: its name in records and on the command line.
        summary: shown to the user as `captured with <name>: <summary>`.
        suits: whether the module contains what it changes.
        change: changes the copy, once, and returns what is captured.
        during: a context in which the copy is captured; it restores what it changes elsewhere.
        alone: do not combine it with others: if it does not help by itself, it changes too much.
        answers: the symptoms that it removes, as `needs` if empty; rewrites that answer what was
            met are tried first.
        files: names of files, likewise: the rewrite answers a refusal that lies in one of them.
        needs: try it only if one of these symptoms was met; empty for no condition.
    """

    name: str
    summary: str
    suits: Callable[[Module], bool]
    change: Callable[[Module], Module] = lambda module: module
    during: Callable[[Module], _Context] = lambda _: nullcontext()
    alone: bool = False
    answers: frozenset[Symptom] = frozenset()
    files: frozenset[str] = frozenset()
    needs: frozenset[Symptom] = frozenset()

    def is_answer(self, evidence: RefusalEvidence) -> bool:
        """Whether it removes one of the symptoms, or changes one of the files."""
        answers = self.answers or self.needs
        return bool(answers & evidence.symptoms or self.files & evidence.files)

    def may_help(self, module: Module, evidence: RefusalEvidence) -> bool:
        """Whether it suits the module, and what it needs was met."""
        return (not self.needs or bool(self.needs & evidence.symptoms)) and self.suits(module)


# Changes to the parts of a copied module: classes of their own, replaced submodules.


def give_own_class(part: torch.nn.Module, members: Mapping[str, Any]) -> None:
    """Give a module of the copy its own class with these members.

    Classes are shared with the reference, so attributes cannot be set on them.
    """
    base = type(part)
    part.__class__ = type(
        base.__name__,
        (base,),
        {"__module__": base.__module__, "__qualname__": base.__qualname__, **members},
    )


def replace_parts(
    module: torch.nn.Module, instead: Callable[[torch.nn.Module], torch.nn.Module]
) -> torch.nn.Module:
    """Replace submodules, and the module itself, by what `instead` returns for them."""
    for part in list(module.modules()):
        for name, child in list(part.named_children()):
            other = instead(child)
            if other is not child:
                part._modules[name] = other  # not setattr: a Sequential's names are numbers
    return instead(module)


# Functions of a library exchanged for the time of a capture, under every name they go by.


@contextmanager
def swap_functions(replacements: Mapping[Callable[..., Any], Callable[..., Any]]) -> Iterator[None]:
    """Replace functions under every name in every loaded module; restore them afterwards.

    `from torch.utils.checkpoint import checkpoint` in the user's file is a separate name, which
    replacing the attribute in torch would not change.
    """
    back = {id(new): function for function, new in replacements.items()}
    ours = {id(new.__globals__) for new in replacements.values() if hasattr(new, "__globals__")}
    try:
        _exchange({id(function): new for function, new in replacements.items()}, ours)
        yield
    finally:
        _exchange(back, ours)  # also in modules that were imported meanwhile


def _exchange(wanted: Mapping[int, Callable[..., Any]], ours: Collection[int]) -> None:
    """Set every name of a loaded module that refers to one of these; not in modelc's files."""
    for module in list(sys.modules.values()):
        names: object = getattr(module, "__dict__", None)
        if not isinstance(names, dict) or id(names) in ours:
            continue
        for name, value in list(names.items()):
            if id(value) in wanted:
                names[name] = wanted[id(value)]


@contextmanager
def swap_attribute(owner: object, name: str, value: object) -> Iterator[None]:
    """Set an attribute of a library's class or module; restore it afterwards."""
    before = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
