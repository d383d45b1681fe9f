"""Functions of a library exchanged for the time of a capture, under every name they go by."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

# Functions of a library exchanged for the time of a capture, under every name they go by.


@contextmanager
def swap_functions(replacements: Mapping[Callable[..., Any], Callable[..., Any]]) -> Iterator[None]:
    """Have every loaded module that knows a function by any name know its replacement instead.

    `from torch.utils.checkpoint import checkpoint` in the user's file is a name of its own: setting
    the one in torch would not reach it. All are put back, whatever happens in between.
    """
    back = {id(new): function for function, new in replacements.items()}
    ours = {id(new.__globals__) for new in replacements.values() if hasattr(new, "__globals__")}
    try:
        _exchange({id(function): new for function, new in replacements.items()}, ours)
        yield
    finally:
        _exchange(back, ours)  # also where a module was imported meanwhile, and knows the new one


def _exchange(wanted: Mapping[int, Callable[..., Any]], ours: Collection[int]) -> None:
    """Set every name of a loaded module that stands for one of these; not in files of ours."""
    for module in list(sys.modules.values()):
        names: object = getattr(module, "__dict__", None)
        if not isinstance(names, dict) or id(names) in ours:
            continue
        for name, value in list(names.items()):
            if id(value) in wanted:
                names[name] = wanted[id(value)]


@contextmanager
def swap_attribute(owner: object, name: str, value: object) -> Iterator[None]:
    """Set an attribute of a library's class or module, and put the old one back."""
    before = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
