"""The child process: `python -m modelc.pipeline.isolation.worker CHANNEL GRACE`.

A guardian process ends it when its parent dies, even if it hangs in native code.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, NoReturn

from ...checkpoints.user_code import register_folders
from ...core import process
from ...core.process import handle_signals
from ..inspection import ApiCall, perform_call
from ..recorded_run import FinishRequest
from .ipc import (
    LENGTH_PREFIX,
    CallResult,
    ChildRequest,
    FinalManifest,
    InitialManifest,
    Interrupted,
    Message,
    describe_error,
    encode_message,
    unpack_request,
)

if TYPE_CHECKING:
    from ...core.events import Event
    from ...core.manifest import Manifest

_LIFELINE_FD = 0  # standard input
INTERRUPTED_CODE = 130


def main(channel: int, grace: float) -> int:
    """Carry out the order on standard input; the exit code says nothing that was not told."""
    os.set_inheritable(channel, False)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    handle_signals((signal.SIGINT, signal.SIGTERM))
    content = _read_exactly(LENGTH_PREFIX.unpack(_read_exactly(LENGTH_PREFIX.size))[0])
    guardian = start_guardian(_LIFELINE_FD, grace)
    _close_stdin()
    faulthandler.enable()
    told = _Channel(channel)
    try:
        told.send(_perform(unpack_request(content), told))
    except KeyboardInterrupt:
        told.send(Interrupted())
    except Exception as error:  # noqa: BLE001 - the process's edge: the parent raises it again
        told.send(describe_error(error))
    dismiss_guardian(guardian)
    return 0


def _read_exactly(size: int) -> bytes:
    """So many bytes of standard input, and not one more: its end is for the guard to see."""
    content = b""
    while len(content) < size:
        part = os.read(_LIFELINE_FD, min(size - len(content), 1 << 20))
        if not part:
            raise SystemExit(INTERRUPTED_CODE)  # the parent is gone already
        content += part
    return content


def _close_stdin() -> None:
    """Nothing in here may wait for words of the user."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, _LIFELINE_FD)
    os.close(nothing)


def _perform(request: ChildRequest, told: _Channel) -> FinalManifest | CallResult:
    sys.path[:] = request.path
    register_folders(request.code_folders)
    absent: Mapping[str, None] = dict.fromkeys(request.absent)
    sys.modules.update(absent)  # type: ignore[arg-type]  # None makes their import fail
    process.sleep_while_waiting()
    if request.threads is not None:
        os.environ.update(process.thread_environment(request.threads))
        process.limit_threads(request.threads)
    order = request.work
    if isinstance(order, ApiCall):
        return CallResult.of(perform_call(order, told.send))

    def begun(manifest: Manifest) -> None:
        told.send(InitialManifest(manifest=manifest))

    if isinstance(order, FinishRequest):
        from ..finish_pending import finish_pending

        return FinalManifest(manifest=finish_pending(order, told.send, begun=begun))
    from ..run_order import run

    return FinalManifest(manifest=run(order, told.send, begun=begun))


class _Channel:
    """The pipe to the parent. Runtimes may tell progress from threads of their own."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._lock = Lock()

    def send(self, message: Message | Event) -> None:
        """Send one message whole."""
        left = memoryview(encode_message(message))
        with self._lock:
            while left:
                left = left[os.write(self._number, left) :]


def leave_process(code: int) -> NoReturn:
    """End this process at once: native libraries may crash on their way out, and all was told."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


if __name__ == "__main__":
    leave_process(main(int(sys.argv[1]), float(sys.argv[2])))


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
