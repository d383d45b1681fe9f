"""The child's side of `child_call`: what runs before and after the function.

A guardian process ends the child when its parent is gone, even if it hangs in native code.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import NoReturn

from .. import process
from ..process import handle_signals
from .child_call import LENGTH_PREFIX, CallRequest, ParentConnection
from .messages import Interrupted, NewProcessNeeded, Returned, describe_error
from .preloaded import NewProcessNeededError, watch_preloaded

_STDIN, _STDOUT, _STDERR = 0, 1, 2
INTERRUPTED_CODE = 130
_GUARD_INTERVAL = 0.1  # seconds


def main(grace: float, *, parent: int | None = None) -> int:
    """Carry out the request on standard input; the result goes through the connection.

    `parent` is the process that made the request, by default the one that started this one.
    """
    channel = os.dup(_STDOUT)  # away from what prints to descriptor 1
    os.dup2(_STDERR, _STDOUT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    handle_signals((signal.SIGINT, signal.SIGTERM))
    content = _read_exactly(LENGTH_PREFIX.unpack(_read_exactly(LENGTH_PREFIX.size))[0])
    guardian = start_guardian(_STDIN, grace, parent) if hasattr(os, "fork") else None
    connection = ParentConnection(channel, os.dup(_STDIN))
    _close_stdin()
    faulthandler.enable()
    try:
        connection.send(Returned(value=_call(pickle.loads(content), connection)))
    except KeyboardInterrupt:
        connection.send(Interrupted())
    except NewProcessNeededError as error:
        connection.send(NewProcessNeeded(reason=error.reason))
    except Exception as error:  # noqa: BLE001 - the edge of the process: the parent raises it again
        connection.send(describe_error(error))
    if guardian is not None:
        dismiss_guardian(guardian)
    return 0


def _read_exactly(size: int) -> bytes:
    """Read so many bytes of standard input and not one more: its end is for the guardian."""
    content = b""
    while len(content) < size:
        part = os.read(_STDIN, min(size - len(content), 1 << 20))
        if not part:
            raise SystemExit(INTERRUPTED_CODE)  # the parent is gone already
        content += part
    return content


def _close_stdin() -> None:
    """Let nothing in this process wait for the user's input."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, _STDIN)
    os.close(nothing)


def _call(request: object, connection: ParentConnection) -> object:
    if not isinstance(request, CallRequest):
        raise TypeError(f"expected a CallRequest, not a {type(request).__name__}")
    sys.path[:] = request.path
    absent: Mapping[str, None] = dict.fromkeys(request.absent)
    sys.modules.update(absent)  # type: ignore[arg-type]  # None makes their import fail
    process.sleep_while_waiting()
    if request.threads is not None:
        os.environ.update(process.thread_environment(request.threads))
        process.limit_threads(request.threads)
    watch_preloaded()
    function, argument = pickle.loads(request.call)
    result: object = function(argument, connection)
    return result


def leave_process(code: int) -> NoReturn:
    """Exit at once: native libraries may crash on their way out, and the result is sent."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def start_guardian(lifeline: int, grace: float, parent: int | None = None) -> int:
    """Have this process and its group ended once the other end of `lifeline` is closed.

    `parent` holds that end; by default it is the parent of this process.

    Must be called before any thread starts. The guardian leads a group of its own in the same
    session: ending the group spares it, and the group's id is not used again while it lives.

    Returns:
        the guardian's process id.
    """
    group, parent = os.getpgid(0), os.getppid() if parent is None else parent
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
        _end_group(group, grace, ask=not process.is_running(parent))
    finally:
        os._exit(0)


def dismiss_guardian(guardian: int) -> None:
    """End the guardian of a process that is about to exit."""
    with suppress(ProcessLookupError, ChildProcessError):
        os.kill(guardian, signal.SIGKILL)
        os.waitpid(guardian, 0)


def _end_group(group: int, grace: float, *, ask: bool) -> None:
    """End a group after `grace` seconds; a living parent has sent SIGTERM itself.

    A second SIGTERM would interrupt the cleanup that the first one began.
    """
    with suppress(ProcessLookupError, PermissionError):
        if ask:
            os.killpg(group, signal.SIGTERM)
        until = time.monotonic() + grace
        while time.monotonic() < until:
            time.sleep(_GUARD_INTERVAL)
            os.killpg(group, 0)
        os.killpg(group, signal.SIGKILL)
