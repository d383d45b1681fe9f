"""The user's files while symbols stand for sizes: `len` and `int` leave them be, nothing stays."""

from __future__ import annotations

import builtins
import operator
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .untouched import preserve_module, restore_container
from .users import is_user_file

if TYPE_CHECKING:
    from torch import nn

_CACHED = type(lru_cache(lambda: None))


@contextmanager
def symint_builtins(module: nn.Module) -> Iterator[None]:
    """Have the user's files know `len` and `int` as those that leave a symbol one.

    What forward keeps meanwhile is forgotten: tensors without data are of no use to who comes
    next.
    """
    files = list(_user_modules(module))
    with preserve_module(module), ExitStack() as stack:
        for names in map(vars, files):
            stack.callback(_restore_containers, names, _module_containers(names))
            for text in _SYMBOLIC_BUILTINS.keys() - names.keys():  # one of its own stays
                names[text] = _SYMBOLIC_BUILTINS[text]
                stack.callback(names.pop, text)
        yield


def _user_modules(module: nn.Module) -> Iterator[ModuleType]:
    """The loaded files of the packages that the model's classes are of."""
    tops = {type(part).__module__.partition(".")[0] for part in module.modules()}
    for name, file in list(sys.modules.items()):
        where = getattr(file, "__file__", None)
        if name.partition(".")[0] in tops and where and is_user_file(where):
            yield file


def _module_containers(names: dict[str, Any]) -> list[tuple[Any, Any]]:
    """The lists and dicts of a file's own, each with what it holds."""
    return [
        (one, one.copy())
        for name, one in list(names.items())
        if type(one) in (dict, list) and not name.startswith("__") and one is not sys.modules
    ]


def _restore_containers(names: dict[str, Any], kept: list[tuple[Any, Any]]) -> None:
    """Put back what lists and dicts held, and empty the caches of functions and methods."""
    for value, before in kept:
        if not _is_same(value, before):
            restore_container(value, before)
    kinds = [one for one in list(names.values()) if isinstance(one, type)]
    for one in [*names.values(), *(member for kind in kinds for member in vars(kind).values())]:
        if type(one) is _CACHED:
            one.cache_clear()


def _is_same(value: Any, before: Any) -> bool:
    """Whether they hold the very same objects, in order."""
    if isinstance(value, dict):
        return _is_same([*value, *value.values()], [*before, *before.values()])
    return len(value) == len(before) and all(map(operator.is_, value, before))


class _SymbolicIntMeta(type):
    """Of `int` while symbols run: a symbol is one, and stays a symbol."""

    def __instancecheck__(cls, value: object) -> bool:
        import torch

        return isinstance(value, (builtins.int, torch.SymInt))

    def __call__(cls, *args: Any, **kwargs: Any) -> object:
        import torch

        if len(args) == 1 and isinstance(args[0], (torch.SymInt, torch.SymFloat)):
            return torch.sym_int(args[0])  # type: ignore[no-untyped-call]  # torch's own
        return builtins.int(*args, **kwargs)


class _SymbolicInt(builtins.int, metaclass=_SymbolicIntMeta):
    """Stands for `int`."""


def _symbolic_len(value: Any) -> object:
    import torch

    return value.shape[0] if isinstance(value, torch.Tensor) and value.ndim else len(value)


_SYMBOLIC_BUILTINS = {"len": _symbolic_len, "int": _SymbolicInt}
