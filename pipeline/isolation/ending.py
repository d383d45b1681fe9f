"""Ends a child and everything that it started."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from ...core.interrupts import held_back

if TYPE_CHECKING:
    import psutil

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
        with held_back():
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
        with held_back():
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
