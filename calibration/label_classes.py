"""Class names in the order of the outputs: `classes.txt`, or the sorted names of folders."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from ..core.errors import UsageError

# Class names in the order of the outputs: `classes.txt`, or the sorted names of folders.


CLASSES_FILE = "classes.txt"


def read_lines(path: Path) -> list[str]:
    """The lines of a text file, without their ends.

    Raises:
        UsageError: it cannot be read, or is no UTF-8 text.
    """
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}", hint="save it as UTF-8 text") from error


def read_classes(folder: Path) -> tuple[str, ...]:
    """The names in the folder's `classes.txt`, one a line; none where there is no such file.

    Raises:
        UsageError: a name stands there twice.
    """
    path = folder / CLASSES_FILE
    if not path.exists():
        return ()
    names = [line.strip() for line in read_lines(path)]
    while names and not names[-1]:
        names.pop()
    for number, name in enumerate(names, start=1):
        if not name or name in names[: number - 1]:
            what = f"names {name!r} twice" if name else f"is empty at line {number}"
            raise UsageError(f"{path} {what}", hint="write one class a line, in the outputs' order")
    return tuple(names)


def order_classes(folder: Path, found: Sequence[str]) -> tuple[str, ...]:
    """The classes of folders named `found`: as told, or in the order of their sorted names.

    That order is the one of torchvision's ImageFolder. Where names are numbers and their order as
    numbers is another, it would be a guess.

    Raises:
        UsageError: a folder is none of the told classes, or the order cannot be known.
    """
    told = read_classes(folder)
    if told:
        strange = sorted(set(found) - set(told))
        if strange:
            raise UsageError(
                f"the folder {folder / strange[0]} is no class of {folder / CLASSES_FILE}",
                hint=f"add {strange[0]!r} to {CLASSES_FILE}, or move the folder away",
            )
        return told
    names = sorted(found)
    if all(name.isdecimal() for name in names) and names != sorted(names, key=int):
        first = next(a for a, b in pairwise(names) if int(a) > int(b))
        later = names[names.index(first) + 1]
        raise UsageError(
            f"the order of the class folders of {folder} is not known: by name {first!r} comes "
            f"before {later!r}, as numbers it does not",
            hint=f"write {folder / CLASSES_FILE}: one folder's name a line, in the "
            "order of the outputs",
        )
    return tuple(names)


def parse_class(text: str, classes: Sequence[str]) -> int | float | None:
    """A label as it is written: a class's name, or a number; None for neither."""
    if text in classes:
        return classes.index(text)
    try:
        value = float(text)
    except ValueError:
        return None
    return int(value) if value.is_integer() else value
