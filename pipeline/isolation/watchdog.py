"""Limits of a child process, the watchdog that enforces them, and ending a process tree."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...core.errors import ErrorCode, UsageError
from ...core.process import defer_signals

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


WORKER_MARK = "MODELC_WORKER"  # the variable by which what a child started is known
_KILL_TIMEOUT, _KILL_INTERVAL = (
    2.0,
    0.01,
)  # seconds that what was killed may take to be gone, and between looks


def end_process(process: subprocess.Popen[bytes], *, grace: float = 0.0, mark: str = "") -> None:
    """Ask the child to end where it has any grace, then kill what is left of it and its own.

    A second interrupt while it is waited for ends the waiting. The child leads a session: what it
    started is in its group, or in its session, or below it, or has left all of these and still the
    `mark` in its environment.
    """
    kin: list[psutil.Process] = []
    try:
        with defer_signals():
            if process.poll() is None or _has_group(process.pid):
                kin += _find_kin(process.pid)
            kin += _find_marked(mark)
            waits = bool(grace) and process.poll() is None
            if waits:
                _signal_group(process.pid, signal.SIGTERM)
        if waits:
            with suppress(subprocess.TimeoutExpired):
                process.wait(grace)
    finally:
        with defer_signals():
            _signal_group(process.pid, signal.SIGKILL)
            if kin:
                _kill_all(kin)
            process.wait()


def _has_group(leader: int) -> bool:
    try:
        os.killpg(leader, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _signal_group(leader: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def _find_kin(leader: int) -> Iterator[psutil.Process]:
    """What descends from the process or is in its session; psutil knows a number given anew."""
    import psutil

    with suppress(psutil.Error, OSError):
        yield from psutil.Process(leader).children(recursive=True)
    for one in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if one.pid != leader and os.getsid(one.pid) == leader:
                yield one


def _find_marked(mark: str) -> list[psutil.Process]:
    """Processes that inherited the variable; of other users' processes nothing is known."""
    import psutil

    found = []
    for one in psutil.process_iter() if mark else ():
        with suppress(psutil.Error, OSError):
            if one.environ().get(WORKER_MARK) == mark:
                found.append(one)
    return found


def _kill_all(processes: list[psutil.Process]) -> None:
    import psutil

    for one in processes:
        with suppress(psutil.Error, OSError):
            one.kill()
    until = time.monotonic() + _KILL_TIMEOUT
    while any(map(_may_still_write, processes)) and time.monotonic() < until:
        time.sleep(_KILL_INTERVAL)


def _may_still_write(process: psutil.Process) -> bool:
    """Whether it may still write; a zombie, which nobody has asked for its end, does not."""
    import psutil

    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


MIB = 1 << 20
MAX_CHATTER = 64 * MIB  # bytes; the logs of an INT8 search over a large model have a tenth of that


@dataclass(frozen=True, kw_only=True)
class ProcessLimits:
    """The most that one step may take before its process is ended.

    `timeout` is in seconds, for each step. `memory` is in bytes, of the process and all that it
    started. `chatter` is in bytes that the run writes to its logs. `threads` are those of one
    runtime. None is no bound. `grace` is how many seconds an interrupted run has to put away what
    it was at. `stop` is asked every moment: once it says so, the run ends as by an interrupt.
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
                    f"{name} {value:g} needs a POSIX system, and this is none",
                    hint="leave it out: what Windows supports is in docs/platforms.md",
                )
        if self.timeout is not None and not 0 < self.timeout < math.inf:
            raise UsageError(
                f"--timeout {self.timeout:g} is no time",
                hint="give seconds: 600",
                option="timeout",
                code=ErrorCode.INVALID_VALUE,
            )
        if self.memory is not None and self.memory < MIB:
            raise UsageError(
                f"--memory {self.memory} bytes is too little for any step",
                hint="give a size: 8GB",
                option="memory",
            )
        if self.threads is not None and self.threads < 1:
            raise UsageError(f"{self.threads} threads are none", hint="give 1 or more")
