"""Limits of a child process, and the watchdog that enforces them."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..errors import ErrorCode, UsageError
from ..records import size_text
from .process_tree import is_stopped, memory_of

MIB = 1 << 20
MAX_CHATTER = 64 * MIB  # bytes; the logs of an INT8 search over a large model have a tenth of that
_MEMORY_INTERVAL = 0.25  # seconds between two looks at memory
_LOG_END = 1 << 18  # bytes of the beginning and of the end that a trimmed log keeps
MAX_SUSPENDED = 30.0  # seconds; job schedulers resume parent and child a moment apart
_SUSPENDED_INTERVAL = 1.0  # seconds between two looks at the state of the child


@dataclass(frozen=True, kw_only=True)
class LimitExceeded:
    """A limit that the child exceeded: what was measured, and the option to raise."""

    text: str
    hint: str


@dataclass(frozen=True, kw_only=True)
class ProcessLimits:
    """What one step may use before its process is ended.

    `timeout` is in seconds per step. `memory` is in bytes, of the process and its descendants.
    `chatter` is in bytes that the run writes to its logs. `threads` is the limit of each runtime.
    None is no limit. `grace` is the seconds that an interrupted run has to clean up. `stop` is
    polled: once it returns True, the run ends as by an interrupt.
    """

    timeout: float | None = None
    memory: int | None = None
    chatter: int | None = MAX_CHATTER
    threads: int | None = None
    grace: float = 5.0
    stop: Callable[[], bool] | None = None

    def __post_init__(self) -> None:
        for name, value in (("--timeout", self.timeout), ("--memory", self.memory)):
            if value is not None and os.name != "posix":
                raise UsageError(
                    f"{name} {value:g} needs a POSIX system",
                    hint="leave it out: docs/platforms.md lists what Windows supports",
                )
        if self.timeout is not None and not 0 < self.timeout < math.inf:
            raise UsageError(
                f"--timeout must be positive and finite, not {self.timeout:g}",
                hint="give seconds: 600",
                option="timeout",
                code=ErrorCode.INVALID_VALUE,
            )
        if self.memory is not None and self.memory < MIB:
            raise UsageError(
                f"--memory must be at least 1 MiB, not {self.memory} bytes",
                hint="give a size: 8GB",
                option="memory",
            )
        if self.threads is not None and self.threads < 1:
            raise UsageError(
                f"the number of threads must be positive, not {self.threads}", hint="give 1 or more"
            )


class SuspensionWatch:
    """Ends a child that SIGSTOP has suspended; nobody would wait for its end otherwise."""

    def __init__(self, limit: float = MAX_SUSPENDED) -> None:
        self._limit = limit
        self._since: float | None = None
        self._checked = time.monotonic()

    def __call__(self, process: int) -> LimitExceeded | None:
        """Return the limit, if the process has been suspended for longer."""
        now = time.monotonic()
        if now - self._checked < min(_SUSPENDED_INTERVAL, self._limit):
            return None
        self._checked = now
        if not is_stopped(process):
            self._since = None
            return None
        self._since = now if self._since is None else self._since
        if now - self._since < self._limit:
            return None
        return LimitExceeded(
            text=f"it was suspended (SIGSTOP) for {self._limit:g} s",
            hint="look for SIGSTOP in the model's code, or for what suspends processes here",
        )


class ChildWatchdog:
    """Holds one child to the limits; `logs` is the folder that the run writes its logs to."""

    def __init__(self, limits: ProcessLimits, logs: Path) -> None:
        self._limits, self._logs = limits, logs
        self._since = time.monotonic()
        self._memory_read = 0.0
        self._before = _file_sizes(logs)
        self.peak = 0  # bytes, the most that was measured
        self._blind = False  # whether the memory of the child cannot be read

    def restart_clock(self) -> None:
        """Start the time of a new step."""
        self._since = time.monotonic()

    def __call__(self, process: int) -> LimitExceeded | None:
        """Return the limit that the process exceeds now, if any.

        Raises:
            KeyboardInterrupt: `stop` returned True.
        """
        if self._limits.stop is not None and self._limits.stop():
            raise KeyboardInterrupt
        return self._check_time() or self._check_chatter() or self._check_memory(process)

    def _check_time(self) -> LimitExceeded | None:
        limit = self._limits.timeout
        if limit is None or time.monotonic() - self._since <= limit:
            return None
        return LimitExceeded(
            text=f"it took longer than --timeout {limit:g} s",
            hint=f"give it more time: --timeout {2 * limit:g}s",
        )

    def _check_chatter(self) -> LimitExceeded | None:
        limit = self._limits.chatter
        if limit is None:
            return None
        sizes = _file_sizes(self._logs).items()
        if sum(size - min(self._before.get(name, 0), size) for name, size in sizes) <= limit:
            return None
        return LimitExceeded(
            text=f"it printed more than {size_text(limit)}",
            hint="stop what prints without end; its log has the first and the last lines",
        )

    def _check_memory(self, process: int) -> LimitExceeded | None:
        limit, now = self._limits.memory, time.monotonic()
        if limit is None or self._blind or now - self._memory_read < _MEMORY_INTERVAL:
            return None
        self._memory_read = now
        used = memory_of(process, limit)
        if used is None:
            self._blind = True
            return None
        self.peak = max(self.peak, used)
        if used <= limit:
            return None
        return LimitExceeded(
            text=f"it took {size_text(used)} of memory, and --memory is {size_text(limit)}",
            hint=f"give it more memory: --memory {-(-2 * limit // MIB)}MiB",
        )

    def trim_logs(self) -> None:
        """Cut the middle out of logs that are larger than the limit."""
        for name, size in _file_sizes(self._logs).items():
            if size > (self._limits.chatter or size):
                _trim_file(self._logs / name, size)


def _file_sizes(folder: Path) -> dict[str, int]:
    try:
        with os.scandir(folder) as entries:
            return {entry.name: entry.stat(follow_symlinks=False).st_size for entry in entries}
    except FileNotFoundError:  # the folder, or a file that was removed meanwhile
        return {}


def _trim_file(path: Path, size: int) -> None:
    with path.open("r+b") as stream:
        stream.seek(size - _LOG_END)
        end = stream.read(_LOG_END)
        stream.seek(_LOG_END)
        stream.truncate()
        stream.write(f"\n[… {size - 2 * _LOG_END} bytes are left out here …]\n".encode() + end)
