"""What a child process has started: its memory, and how to end all of it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Protocol

from ..process import defer_signals

if TYPE_CHECKING:
    import psutil

CHILD_MARK = "MODELC_WORKER"  # environment variable that identifies the descendants of a child
_KILL_TIMEOUT = 2.0  # seconds to wait until killed processes are gone
_KILL_INTERVAL = 0.01  # seconds between two looks


def memory_of(process: int, limit: int) -> int | None:
    """Return the bytes that a process and its descendants hold; None where they cannot be read.

    Resident memory is cheap to read but counts shared pages once per process. Only above `limit`
    are proportional shares read, where the system has them.
    """
    import psutil

    try:
        root = psutil.Process(process)
        family = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    except (psutil.Error, OSError):
        return None
    found = [size for size in map(_resident_memory, family) if size is not None]
    if not found:
        return None if psutil.pid_exists(process) else 0
    resident = sum(found)
    return resident if resident <= limit else sum(map(_proportional_memory, family))


def _resident_memory(process: psutil.Process) -> int | None:
    import psutil

    try:
        return int(process.memory_info().rss)
    except (psutil.Error, OSError):
        return None


def _proportional_memory(process: psutil.Process) -> int:
    import psutil

    try:
        memory = process.memory_full_info()
    except (psutil.Error, OSError):
        return _resident_memory(process) or 0
    return int(getattr(memory, "pss", 0) or getattr(memory, "uss", 0) or memory.rss)


def is_stopped(process: int) -> bool:
    """Return whether a signal such as SIGSTOP has suspended the process."""
    import psutil

    try:
        return bool(psutil.Process(process).status() == psutil.STATUS_STOPPED)
    except (psutil.Error, OSError):
        return False


class StartedProcess(Protocol):
    """A child process as `subprocess.Popen` describes it."""

    pid: int
    stdin: IO[bytes] | None
    stdout: IO[bytes] | None
    stderr: IO[bytes] | None

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None if it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code."""

    def send_signal(self, sig: int) -> None:
        """Send a signal, unless it has ended."""

    def kill(self) -> None:
        """Kill it."""


@dataclass(frozen=True, kw_only=True)
class ProcessTree:
    """A child and what it started.

    `leads_session`: the child leads a session and a process group of its own. `mark`: the value
    of CHILD_MARK in the environment of the child alone; empty if it was not set for it.
    """

    process: StartedProcess
    leads_session: bool = False
    mark: str = ""

    def end(self, grace: float = 0.0, ask: Callable[[], object] = lambda: None) -> None:
        """Ask the child to stop if it has any `grace`, then kill what is left of the tree.

        `ask` is called before the child gets SIGTERM. A second interrupt ends the waiting.
        """
        descendants: list[psutil.Process] = []
        process = self.process
        try:
            with defer_signals():
                if process.poll() is None or self._has_group():
                    descendants += self._find_descendants()
                descendants += _find_marked(self.mark)
                waits = grace > 0 and process.poll() is None
                if waits:
                    ask()
                    self._signal(signal.SIGTERM)
            if waits:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(grace)
        finally:
            with defer_signals():
                self._kill()
                if descendants:
                    _kill_all(descendants)
                process.wait()

    def _has_group(self) -> bool:
        if not self.leads_session:
            return False
        try:
            os.killpg(self.process.pid, 0)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def _signal(self, number: signal.Signals) -> None:
        if not self.leads_session:
            self.process.send_signal(number)
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def _kill(self) -> None:
        if self.leads_session:
            self._signal(signal.SIGKILL)
        else:
            self.process.kill()

    def _find_descendants(self) -> Iterator[psutil.Process]:
        """Yield the child's descendants and the members of its session.

        A psutil.Process compares creation times: a process id that is used again is not killed.
        """
        import psutil

        leader = self.process.pid
        with suppress(psutil.Error, OSError):
            yield from psutil.Process(leader).children(recursive=True)
        for process in psutil.process_iter() if self.leads_session else ():
            with suppress(psutil.Error, OSError):
                if process.pid != leader and os.getsid(process.pid) == leader:
                    yield process


def _find_marked(mark: str) -> list[psutil.Process]:
    """Return the processes with this mark; environments of other users cannot be read."""
    import psutil

    found = []
    for process in psutil.process_iter() if mark else ():
        with suppress(psutil.Error, OSError):
            if process.environ().get(CHILD_MARK) == mark:
                found.append(process)
    return found


def _kill_all(processes: list[psutil.Process]) -> None:
    import psutil

    for process in processes:
        with suppress(psutil.Error, OSError):
            process.kill()
    until = time.monotonic() + _KILL_TIMEOUT
    while any(map(_is_running, processes)) and time.monotonic() < until:
        time.sleep(_KILL_INTERVAL)


def _is_running(process: psutil.Process) -> bool:
    """Return whether it may still write; a zombie may not."""
    import psutil

    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
