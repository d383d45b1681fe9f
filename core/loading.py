"""Samples from the user's own code: what iterates, and which part of an item is which input."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import UsageError, first_line
from .tree import iterate_leaves

if TYPE_CHECKING:
    from .tree import IsLeaf

_LOADER_SPEC = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")


def is_loader_spec(text: str) -> bool:
    """Whether it is `package.module:loader` and no file of that name."""
    return bool(_LOADER_SPEC.fullmatch(text)) and not Path(text).exists()


def load_items(spec: str, load: Callable[[str], object]) -> Iterable[object]:
    """What `spec` names, called where it has to be, as an iterable.

    Raises:
        UsageError: it is no iterable, or its own code raised.
    """
    found = load(spec)
    if not isinstance(found, Iterable) and callable(found):
        try:
            found = found()
        except Exception as error:
            raise UsageError(
                f"the loader {spec} raised {type(error).__name__}: {first_line(error)}",
                hint="it is called without arguments",
            ) from error
    if isinstance(found, Iterable) and not isinstance(found, (str, bytes)):
        return found
    if (
        isinstance(found, Sized)
        and hasattr(found, "__getitem__")
        and not isinstance(found, Iterable)
    ):
        return (found[index] for index in range(len(found)))  # as a torch Dataset
    raise UsageError(
        f"{spec} is of type {type(found).__name__}, which cannot be iterated over",
        hint="name a DataLoader, a list of feeds, or a function that yields them",
    )


def wrap_loader_errors(items: Iterable[object], spec: str) -> Iterator[object]:
    """The items of the loader `spec`; an error of the user's code becomes one of ours.

    Raises:
        UsageError: the loader raised.
    """
    try:
        yield from items
    except Exception as error:
        raise UsageError(
            f"the loader {spec} raised {type(error).__name__}: {first_line(error)}",
            hint="the error is in the loader's code; iterate it in Python to see all of it",
        ) from error


@dataclass(frozen=True, kw_only=True)
class NamedItem:
    """An item taken apart: its parts by the inputs' names, and what no input takes."""

    parts: Mapping[str, object]
    surplus: tuple[str, ...] = ()


def name_parts(value: object, names: Sequence[str], is_leaf: IsLeaf) -> NamedItem | None:
    """Give the parts of an item the names of inputs; None for a lone one beside several inputs.

    A lone array is the only input; a tuple or list goes by position; a mapping goes by name, nested
    ones by dotted names, numpy's own `arr_0` by position. A mapping that stands first in a tuple is
    the inputs, what follows is surplus, as all that is left over.
    """
    if isinstance(value, (tuple, list)) and value and isinstance(value[0], Mapping):
        first = _match_names(value[0], names, is_leaf)
        return NamedItem(parts=first.parts, surplus=(*first.surplus, *_surplus_positions(value, 1)))
    if isinstance(value, Mapping):
        return _match_names(value, names, is_leaf)
    if isinstance(value, (tuple, list)):
        parts = dict(zip(names, value, strict=False))
        return NamedItem(parts=parts, surplus=_surplus_positions(value, len(names)))
    return NamedItem(parts={names[0]: value}) if len(names) == 1 else None


def _surplus_positions(value: Sequence[object], taken: int) -> tuple[str, ...]:
    return tuple(f"position {index}" for index in range(taken, len(value)))


def _match_names(value: Mapping[str, object], names: Sequence[str], is_leaf: IsLeaf) -> NamedItem:
    found = {".".join(path): leaf for path, leaf in iterate_leaves(value, is_leaf)}
    if not any(name in found for name in names):
        for index, name in enumerate(names):
            if f"arr_{index}" in found:
                found[name] = found.pop(f"arr_{index}")
    parts = {name: found[name] for name in names if name in found}
    return NamedItem(parts=parts, surplus=tuple(name for name in found if name not in parts))
