"""Progress in a job's log: plain lines, those of a model in a group that can be folded."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import assert_never

from ..core.events import Advanced, Entered, Event, Finished, Noted, Started, Tell
from .ci_commands import Forge

_SHARED_GROUP = "models"  # the one group of those that run side by side


class CiScreen:
    """Writes what models tell.

    Where they run one after the other, each has its group; where side by side, all have one and
    every line names its model.
    """

    def __init__(self, forge: Forge, write: Callable[[str], None], *, jobs: int) -> None:
        self._forge = forge
        self._write = write
        self._together = jobs > 1
        self._open = ""
        self._lock = Lock()

    def of(self, model: str) -> Tell:
        """The listener to one model."""

        def tell(event: Event) -> None:
            line = _event_line(event)
            if line:
                with self._lock:
                    self._into(_SHARED_GROUP if self._together else model)
                    named = f"{model}  {line}" if self._together else line
                    self._write(self._forge.foreign(named))

        return tell

    def note(self, event: Event) -> None:
        """What is of no model, as a cache that cannot be reached."""
        line = _event_line(event)
        if line:
            with self._lock:
                self._write(self._forge.foreign(line))

    def close(self) -> None:
        """End the group that is open."""
        with self._lock:
            self._into("")

    def _into(self, name: str) -> None:
        if name == self._open:
            return
        if self._open:
            self._write(self._forge.end(self._open))
        if name:
            self._write(self._forge.begin(name))
        self._open = name


def _event_line(event: Event) -> str:
    """A line for what ended and what is noted; no line for what only goes on.

    An attempt that did not pass is followed by the next; the summary says how the artifact ended.
    """
    match event:
        case Finished():
            mark = "ok  " if event.passed else "miss" if event.attempt else "FAIL"
            detail = f"  {event.detail}" if event.detail else ""
            return f"{mark} {event.step} {event.seconds:.1f} s{detail}"
        case Noted():
            return f"{'warning: ' if event.warning else ''}{event.text}"
        case Started() | Advanced() | Entered():
            return ""
        case _:
            assert_never(event)
