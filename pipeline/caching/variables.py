"""Which environment variables the user's own code reads.

Python tells nobody of `os.environ`, so its class is wrapped while a run is watched. What packages
read for themselves does not count, nor what the code itself has set.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ...core import threads
from .asking import USER, asker
from .needs import digest_of_value


@dataclass
class Variables:
    """What was read in this process so far, SHA-256 of the value by name; it outlives a run."""

    read: dict[str, str] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)
    listed: deque[str] = field(default_factory=deque)  # names in their order, not read since

    def heard(self, name: str | bytes, value: str | bytes | None) -> None:
        """Take in that a variable was read; None where it is not set."""
        told = os.fsdecode(name)
        if self._is_copied(told):
            return
        ours = (*threads.VARIABLES, threads.WAITING)
        known = told in self.read or told in self.written or told in ours
        if not known and asker(direct=True) == USER:
            self.read[told] = digest_of_value(None if value is None else os.fsdecode(value))

    def _is_copied(self, name: str) -> bool:
        """Whether all are read in their order, as for another program: none in particular."""
        if self.listed and self.listed[0] == name:
            self.listed.popleft()
            return True
        self.listed.clear()
        return False


@contextmanager
def variables_heard(by: Variables) -> Iterator[None]:
    """Have `by` told of what is read of `os.environ` until the end of the block."""
    kind: Any = type(os.environ)
    get, put, names = kind.__getitem__, kind.__setitem__, kind.__iter__

    def getitem(self: Any, key: Any) -> Any:
        value = None
        try:
            value = get(self, key)
        finally:
            by.heard(key, value)
        return value

    def setitem(self: Any, key: Any, value: Any) -> None:
        put(self, key, value)
        by.written.add(os.fsdecode(key))

    def iterate(self: Any) -> Iterator[Any]:
        by.listed.clear()
        for name in names(self):
            by.listed.append(os.fsdecode(name))
            yield name

    kind.__getitem__, kind.__setitem__, kind.__iter__ = getitem, setitem, iterate
    try:
        yield
    finally:
        kind.__getitem__, kind.__setitem__, kind.__iter__ = get, put, names
