"""Nested Python values, taken apart into named leaves and put together again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, TypeAlias

from .errors import UsageError

Path: TypeAlias = tuple[str, ...]
IsLeaf: TypeAlias = Callable[[object], bool]


@dataclass(frozen=True, kw_only=True)
class Leaves:
    """A value taken apart: its leaves by name, and what was neither leaf, container nor None."""

    found: dict[str, Any]  # leaves are of the caller's type
    dropped: dict[str, object]


def leaves(value: object, is_leaf: IsLeaf) -> Iterator[tuple[Path, object]]:
    """Every leaf with its path, in order; None is left out.

    Mappings, named tuples and dataclasses give their keys and fields, tuples and lists their
    positions. Any other object that is no leaf comes as it is, for the caller to judge.
    """
    if value is None:
        return
    children = None if is_leaf(value) else _children(value)
    if children is None:
        yield (), value
        return
    for key, child in children:
        for path, leaf in leaves(child, is_leaf):
            yield (key, *path), leaf


def _children(value: object) -> Iterable[tuple[str, object]] | None:
    if isinstance(value, Mapping):
        return [(str(key), child) for key, child in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return zip(value._fields, value, strict=True)
    if isinstance(value, (tuple, list)):
        return [(str(index), child) for index, child in enumerate(value)]
    if is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in fields(value)]
    return None


def name_leaves(
    value: object, is_leaf: IsLeaf, *, root: str = "output", taken: Collection[str] = ()
) -> Leaves:
    """Take a value apart under stable names.

    A lone leaf is `root`; a leaf in a bare sequence is `root.0`; any other goes by its path, with
    dots between (`hidden_states.0`). A name that is `taken` (a graph has one name for one tensor,
    so not for an input and an output) gets `_out`; one that comes twice gets underscores.
    """
    found: dict[str, Any] = {}
    dropped: dict[str, object] = {}
    for path, leaf in leaves(value, is_leaf):
        name = ".".join(path if path and not path[0].isdigit() else (root, *path))
        if not is_leaf(leaf):
            dropped[name] = leaf
            continue
        if name in taken:
            name += "_out"
        while name in found or name in taken:
            name += "_"
        found[name] = leaf
    return Leaves(found=found, dropped=dropped)


def nest(parts: Mapping[Path, object]) -> object:
    """Put leaves together by their paths: positions make a tuple, other keys a dict.

    Raises:
        UsageError: the paths contradict each other or leave out a position.
    """
    if set(parts) == {()}:
        return parts[()]
    groups: dict[str, dict[Path, object]] = {}
    for path, leaf in parts.items():
        if not path:
            raise UsageError(
                "an input is given whole and in parts",
                hint="give either name or name.part inputs, not both",
            )
        groups.setdefault(path[0], {})[path[1:]] = leaf
    children = {key: nest(group) for key, group in groups.items()}
    if not all(key.isdigit() for key in children):
        return children
    places = sorted(children, key=int)
    if [int(place) for place in places] != list(range(len(places))):
        raise UsageError(
            f"an input sequence has the positions {', '.join(places)}",
            hint="number the parts from 0 without gaps: name.0, name.1, ...",
        )
    return tuple(children[place] for place in places)
