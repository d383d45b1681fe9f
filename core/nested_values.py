"""Nested Python values as named leaves, and items from the user's loaders."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeAlias

from .errors import ErrorCode, UsageError, first_line

ValuePath: TypeAlias = tuple[str, ...]
IsLeaf: TypeAlias = Callable[[object], bool]
PartsOf: TypeAlias = Callable[[object], Iterable[tuple[str, object]] | None]


@dataclass(frozen=True, kw_only=True)
class NamedLeaves:
    """A flattened value: its leaves by name, and what is neither leaf, container nor None."""

    found: dict[str, Any]  # leaves are of the caller's type
    dropped: dict[str, object]


def iterate_leaves(
    value: object, is_leaf: IsLeaf, parts_of: PartsOf | None = None
) -> Iterator[tuple[ValuePath, object]]:
    """Yield every leaf with its path, in order, without None.

    Mappings, named tuples and dataclasses contribute their keys and fields, tuples and lists their
    positions, any other object the result of `parts_of`. A value that is neither a leaf nor has
    parts is yielded unchanged, for the caller to judge.
    """
    if value is None:
        return
    children = None if is_leaf(value) else container_items(value)
    if children is None and parts_of is not None and not is_leaf(value):
        children = parts_of(value)
    if children is None:
        yield (), value
        return
    for key, child in children:
        for path, leaf in iterate_leaves(child, is_leaf, parts_of):
            yield (key, *path), leaf


def container_items(value: object) -> Iterable[tuple[str, object]] | None:
    """Return the items of a Python container, by key or position; None for any other object."""
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
    value: object, is_leaf: IsLeaf, *, root: str = "output", reserved: Collection[str] = ()
) -> NamedLeaves:
    """Flatten a value under stable names.

    A lone leaf is `root`; a leaf in a bare sequence is `root.0`; any other is named by its path,
    joined by dots (`hidden_states.0`). A name in `reserved` (a graph has one tensor per name, so an
    output cannot share an input's) gets `_out`; a repeated name gets underscores.
    """
    pairs = list(iterate_leaves(value, is_leaf))
    names = name_parts_of(pairs, is_leaf, root=root, reserved=reserved)
    found = {n: leaf for n, (_, leaf) in zip(names, pairs, strict=True) if is_leaf(leaf)}
    dropped = {n: leaf for n, (_, leaf) in zip(names, pairs, strict=True) if not is_leaf(leaf)}
    return NamedLeaves(found=found, dropped=dropped)


def name_parts_of(
    pairs: Iterable[tuple[ValuePath, object]],
    is_leaf: IsLeaf,
    *,
    root: str = "output",
    reserved: Collection[str] = (),
) -> list[str]:
    """Return the name of each part of a value, by the rules of `name_leaves`."""
    names: list[str] = []
    used = set(reserved)
    for path, leaf in pairs:
        name = ".".join(path if path and not path[0].isdigit() else (root, *path))
        if is_leaf(leaf):
            if name in reserved:
                name += "_out"
            while name in used:
                name += "_"
            used.add(name)
        names.append(name)
    return names


def nest_leaves(parts: Mapping[ValuePath, object], *, sparse: bool = False) -> object:
    """Nest leaves by their paths: positions make a tuple, other keys a dict.

    If `sparse`, outer positions may be left out: they make a dict.

    Raises:
        UsageError: the paths contradict each other or leave out a position.
    """
    if set(parts) == {()}:
        return parts[()]
    groups: dict[str, dict[ValuePath, object]] = {}
    for path, leaf in parts.items():
        if not path:
            raise UsageError(
                "an input is given whole and in parts",
                hint="give either name or name.part inputs, not both",
            )
        groups.setdefault(path[0], {})[path[1:]] = leaf
    children = {key: nest_leaves(group) for key, group in groups.items()}
    if sparse or not all(key.isdigit() for key in children):
        return children
    places = sorted(children, key=int)
    if [int(place) for place in places] != list(range(len(places))):
        raise UsageError(
            f"an input sequence has the positions {', '.join(places)}",
            hint="number the parts from 0 without gaps: name.0, name.1, ...",
        )
    return tuple(children[place] for place in places)


OBJECT_SPEC = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")


def is_loader_spec(text: str) -> bool:
    """Return whether it is `package.module:loader` and not an existing file."""
    return bool(OBJECT_SPEC.fullmatch(text)) and not Path(text).exists()


def load_items(spec: str, load: Callable[[str], object]) -> Iterable[object]:
    """Return what `spec` names as an iterable, calling it if necessary.

    Raises:
        UsageError: it is not iterable, or its code raised.
    """
    found = load(spec)
    if not isinstance(found, Iterable) and callable(found):
        try:
            found = found()
        except Exception as error:
            raise UsageError(
                f"the loader {spec} raised {type(error).__name__}: {first_line(error)}",
                hint="it is called without arguments",
                code=ErrorCode.LOADER_FAILED,
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
        code=ErrorCode.LOADER_FAILED,
    )


def wrap_loader_errors(items: Iterable[object], spec: str) -> Iterator[object]:
    """Yield the items of the loader `spec`; convert errors of the user's code.

    Raises:
        UsageError: the loader raised.
    """
    try:
        yield from items
    except Exception as error:
        raise UsageError(
            f"the loader {spec} raised {type(error).__name__}: {first_line(error)}",
            hint="the error is in the loader's code; iterate it in Python to see all of it",
            code=ErrorCode.LOADER_FAILED,
        ) from error


@dataclass(frozen=True, kw_only=True)
class NamedItem:
    """A flattened item: its parts by the inputs' names, and what no input takes."""

    parts: Mapping[str, object]
    surplus: tuple[str, ...] = ()


def name_parts(value: object, names: Sequence[str], is_leaf: IsLeaf) -> NamedItem | None:
    """Name the parts of an item after inputs; None for a lone part with several inputs.

    A lone array is the only input; a tuple or list is matched by position; a mapping by name,
    nested ones by dotted names, numpy's own `arr_0` by position. A mapping that comes first in a
    tuple holds the inputs, and the rest is surplus, as is anything left over.
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


def _surplus_positions(value: Sequence[object], count: int) -> tuple[str, ...]:
    return tuple(f"position {index}" for index in range(count, len(value)))


def _match_names(value: Mapping[str, object], names: Sequence[str], is_leaf: IsLeaf) -> NamedItem:
    found = {".".join(path): leaf for path, leaf in iterate_leaves(value, is_leaf)}
    if not any(name in found for name in names):
        for index, name in enumerate(names):
            if f"arr_{index}" in found:
                found[name] = found.pop(f"arr_{index}")
    parts = {name: found[name] for name in names if name in found}
    return NamedItem(parts=parts, surplus=tuple(name for name in found if name not in parts))
