"""A process that ends a run whose parent is gone, also where the run hangs in native code.

A thread could not: a hanging library may hold the interpreter. It costs a fork of an interpreter
that has loaded nothing yet.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

_GUARD_INTERVAL = 0.1  # seconds


def start_guardian(lifeline: int, grace: float) -> int:
    """Have this process and its group ended once the other end of `lifeline` is closed.

    Called before anything starts a thread. The guard leads a group of its own in the same session,
    so that ending the group spares it, and the group's number is not given to others meanwhile.

    Returns:
        the guard's process id.
    """
    group = os.getpgid(0)
    if guardian := os.fork():
        return guardian
    try:
        os.setpgid(0, 0)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        if lifeline:  # an empty range up to 0 would close every descriptor
            os.closerange(0, lifeline)
        os.closerange(lifeline + 1, os.sysconf("SC_OPEN_MAX"))
        while os.read(lifeline, 1 << 10):
            pass
        _end_group(group, grace)
    finally:
        os._exit(0)


def dismiss_guardian(guardian: int) -> None:
    """End the guard of a process that is about to end by itself."""
    with suppress(ProcessLookupError, ChildProcessError):
        os.kill(guardian, signal.SIGKILL)
        os.waitpid(guardian, 0)


def _end_group(group: int, grace: float) -> None:
    """Ask the group to end, then kill it; where there is none any more, that is all."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGTERM)
        until = time.monotonic() + grace
        while time.monotonic() < until:
            time.sleep(_GUARD_INTERVAL)
            os.killpg(group, 0)
        os.killpg(group, signal.SIGKILL)
