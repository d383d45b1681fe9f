"""One text for equal values and another for different ones, to be hashed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path, PurePath


def canonical_text(value: object) -> str:
    """The text of a value made of records, mappings, sequences, enums, paths and plain values.

    Every text says its type and its length, so that no two values share one. The order of a mapping
    does not count.

    Raises:
        TypeError: it is of another type; to guess a text would be to share one.
    """
    if is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: getattr(value, field.name) for field in fields(value)}
        return _frame(type(value).__name__, canonical_text(parts))
    if isinstance(value, Mapping):
        pairs = sorted((canonical_text(key), canonical_text(item)) for key, item in value.items())
        return _frame("map", "".join(key + item for key, item in pairs))
    if isinstance(value, (frozenset, set)):
        return _frame("set", "".join(sorted(map(canonical_text, value))))
    if isinstance(value, (list, tuple)):
        return _frame("list", "".join(map(canonical_text, value)))
    return _canonical_plain(value)


def _canonical_plain(value: object) -> str:
    if isinstance(value, Enum):
        return _frame(type(value).__name__, str(value.value))
    if isinstance(value, PurePath):
        return _frame("path", Path(value).as_posix())
    if value is None or isinstance(value, (bool, int, float, str)):
        return _frame(type(value).__name__, value if isinstance(value, str) else repr(value))
    raise TypeError(f"a {type(value).__name__} has no canonical text")


def _frame(kind: str, text: str) -> str:
    return f"{kind}:{len(text)}:{text};"
