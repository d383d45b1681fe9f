"""Modules that the user's own code asked for in vain: once one is there, the code does more.

Python asks a list of finders for a module. One at its end hears of what no other has found. What
an installed package tries to import for itself is its own affair.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from ...sources.user_code import code_folders
from .asking import USER, asker
from .places import is_theirs


class Missing:
    """What was asked for in this process so far; it outlives a run.

    `looked_in` are by dotted name the user's own folders that were looked through.
    """

    def __init__(self) -> None:
        self.looked_in: dict[str, set[str]] = {}

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,  # noqa: ARG002 - as a finder is called
    ) -> ModuleSpec | None:
        """Find nothing, and remember it where the user's code asks."""
        if asker(direct=True) == USER:
            places = (*sys.path, *code_folders()) if path is None else path
            folders = map(os.path.abspath, places)  # "" is this one
            own = (one for one in folders if not _is_theirs(one))
            self.looked_in.setdefault(name, set()).update(own)
        return None


@contextmanager
def missing_heard(by: Missing) -> Iterator[None]:
    """Have `by` told of what no finder finds until the end of the block."""
    sys.meta_path.append(by)
    try:
        yield
    finally:
        if by in sys.meta_path:  # the user's code may have put the list back as it was
            sys.meta_path.remove(by)


def found_of(missing: Mapping[str, Sequence[str]], root: Path) -> Iterator[str]:
    """Which of the modules are there today; nothing is imported.

    Args:
        missing: by dotted name the user's folders that it was looked for in. It is looked for where
            Python looks today as well: that is where it would be installed.
        root: what the folders are relative to.
    """
    if missing:
        importlib.invalidate_caches()  # finders remember folders for a tick of the clock
    for name, folders in missing.items():
        path = [*(str(root / one) for one in folders), *_places_of(name)]
        if _spec(name, path) is not None or ("." not in name and _is_made(name)):
            yield name


def _places_of(name: str) -> list[str]:
    """Where Python looks for a module today: on its path, or in the package that it is of."""
    path = list(sys.path)
    for part in name.split(".")[:-1]:
        found = _spec(part, path)
        path = [] if found is None else list(found.submodule_search_locations or ())
    return path


def _spec(name: str, path: Sequence[str]) -> ModuleSpec | None:
    """By the last part of a name alone: Python would import the packages before it."""
    return PathFinder.find_spec(name.rpartition(".")[2], path)


def _is_made(name: str) -> bool:
    """Whether a finder of another kind has it, as a package that is installed to be edited has."""
    for finder in list(sys.meta_path):
        ask = getattr(finder, "find_spec", None)
        if ask is None or finder is PathFinder:
            continue
        try:
            if ask(name, None) is not None:
                return True
        except Exception:  # noqa: BLE001 - a finder of anybody's: what it cannot say is a change
            return True
    return False


def _is_theirs(folder: str) -> bool:
    return is_theirs(folder) or is_theirs(f"{folder}{os.sep}")
