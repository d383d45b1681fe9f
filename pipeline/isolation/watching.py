"""Looks at a running child every moment: its time, its memory, its words."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .bounds import MIB, ProcessLimits

if TYPE_CHECKING:
    import psutil

_KEPT_LOG = 1 << 18  # bytes of the beginning and of the end of a log that grew beyond all bounds
_MEMORY_INTERVAL = 0.25  # seconds between two looks at memory


@dataclass(frozen=True, kw_only=True)
class LimitExceeded:
    """A bound that was hit: what was found, in words, and the option to raise."""

    told: str
    mend: str


class ChildWatchdog:
    """Holds one child to the bounds."""

    def __init__(self, process: int, bounds: ProcessLimits, logs: Path) -> None:
        self._process, self._bounds, self._logs = process, bounds, logs
        self._since = time.monotonic()
        self._looked = 0.0
        self._before = _file_sizes(logs)
        self.peak = 0  # bytes, the most that was seen
        self.blind = False  # whether the memory of the child cannot be seen here

    def entered(self) -> None:
        """A step began: its time counts from now."""
        self._since = time.monotonic()

    def overrun(self) -> LimitExceeded | None:
        """The bound that is hit now, if one is.

        Raises:
            KeyboardInterrupt: the run is to stop, though this thread was not interrupted itself.
        """
        if self._bounds.stop is not None and self._bounds.stop():
            raise KeyboardInterrupt
        return self._late() or self._loud() or self._large()

    def _late(self) -> LimitExceeded | None:
        most = self._bounds.timeout
        if most is None or time.monotonic() - self._since <= most:
            return None
        return LimitExceeded(
            told=f"it took longer than --timeout {most:g} s",
            mend=f"give it more time: --timeout {2 * most:g}s",
        )

    def _loud(self) -> LimitExceeded | None:
        most = self._bounds.chatter
        if most is None:
            return None
        found = sum(size - min(self._before.get(name, 0), size) for name, size in self._now())
        if found <= most:
            return None
        return LimitExceeded(
            told=f"it printed more than {most / MIB:.0f} MiB",
            mend="stop what prints without end; its log has the first and the last lines",
        )

    def _now(self) -> list[tuple[str, int]]:
        return list(_file_sizes(self._logs).items())

    def _large(self) -> LimitExceeded | None:
        most, now = self._bounds.memory, time.monotonic()
        if most is None or self.blind or now - self._looked < _MEMORY_INTERVAL:
            return None
        self._looked = now
        found = memory_of(self._process, most)
        if found is None:
            self.blind = True
            return None
        self.peak = max(self.peak, found)
        if found <= most:
            return None
        return LimitExceeded(
            told=f"it took {found / MIB:.0f} MiB of memory, and --memory is {most / MIB:.0f} MiB",
            mend=f"give it more memory: --memory {-(-2 * most // MIB)}MiB",
        )

    def trim(self) -> None:
        """Of logs that grew beyond all bounds keep the beginning and the end."""
        for name, size in self._now():
            if size > (self._bounds.chatter or size):
                _trim_file(self._logs / name, size)


def _file_sizes(folder: Path) -> dict[str, int]:
    """Bytes of each file in a folder; what goes meanwhile is not there."""
    try:
        with os.scandir(folder) as entries:
            return {one.name: one.stat(follow_symlinks=False).st_size for one in entries}
    except FileNotFoundError:
        return {}


def _trim_file(path: Path, size: int) -> None:
    with path.open("r+b") as stream:
        stream.seek(size - _KEPT_LOG)
        end = stream.read(_KEPT_LOG)
        stream.seek(_KEPT_LOG)
        stream.truncate()
        stream.write(f"\n[… {size - 2 * _KEPT_LOG} bytes are left out here …]\n".encode() + end)


def memory_of(process: int, most: int) -> int | None:
    """Bytes that a process and all that it started hold; None where nothing can be seen of them.

    Resident memory is quick to ask for and counts what processes share for each of them: beyond
    `most`, shares are asked for, where the system knows them.
    """
    import psutil

    try:
        root = psutil.Process(process)
        family = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    except (psutil.Error, OSError):
        return None
    found = [one for one in (_resident_memory(member) for member in family) if one is not None]
    if not found:
        return None if psutil.pid_exists(process) else 0
    resident = sum(found)
    return resident if resident <= most else sum(map(_proportional_memory, family))


def _resident_memory(process: psutil.Process) -> int | None:
    import psutil

    try:
        return int(process.memory_info().rss)
    except (psutil.Error, OSError):
        return None


def _proportional_memory(process: psutil.Process) -> int:
    """The part of memory that is the process's own: of what several share, its share."""
    import psutil

    try:
        held = process.memory_full_info()
    except (psutil.Error, OSError):
        return _resident_memory(process) or 0
    return int(getattr(held, "pss", 0) or getattr(held, "uss", 0) or held.rss)
