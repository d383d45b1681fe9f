"""Modules that the user's own code asked for in vain: once one is installed, the code does more.

Python asks a list of finders for a module. One at its end hears of what no other has found. What
an installed package tries to import for itself is its own affair.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from itertools import accumulate
from types import ModuleType

from .asking import USER, asker


class Missing:
    """What was asked for in this process so far, by its dotted name; it outlives a run."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,  # noqa: ARG002 - as a finder is called
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Find nothing, and remember it where the user's code asks."""
        if asker(direct=True) == USER:
            self.names.add(name)
        return None


@contextmanager
def missing_heard(by: Missing) -> Iterator[None]:
    """Have `by` told of what no finder finds until the end of the block."""
    sys.meta_path.append(by)
    try:
        yield
    finally:
        sys.meta_path.remove(by)


def is_there(name: str) -> bool:
    """Whether a module of that dotted name would be found today; nothing is imported."""
    path: Sequence[str] | None = None
    for dotted in accumulate(name.split("."), "{}.{}".format):
        spec = _spec(dotted, path)
        if spec is None:
            return False
        path = spec.submodule_search_locations or ()
    return True


def _spec(name: str, path: Sequence[str] | None) -> ModuleSpec | None:
    for finder in list(sys.meta_path):
        spec = finder.find_spec(name, path)
        if spec is not None:
            return spec
    return None
