"""Carries out an order: `python -m modelc.pipeline.isolation.worker CHANNEL GRACE`.

The order comes by pickle on standard input, which then stays open as long as the parent lives.
Messages go to the descriptor CHANNEL. What is printed outside of a step goes to the parent.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from collections.abc import Mapping
from threading import Lock
from typing import TYPE_CHECKING, NoReturn

from ...core import threads
from ...core.interrupts import heed
from ...sources.user_code import register_folders
from ..calls import Call, perform
from ..finish_order import FinishOrder
from .crossing import Answered, Begun, Interrupted, Message, Result, line_of, stopped_by
from .guarding import dismiss, guard
from .request import LENGTH, Request, unpacked

if TYPE_CHECKING:
    from ...core.events import Event
    from ...core.manifest import Manifest

_LIFELINE = 0  # standard input
INTERRUPTED = 130


def main(channel: int, grace: float) -> int:
    """Carry out the order on standard input; the exit code says nothing that was not told."""
    os.set_inheritable(channel, False)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    heed((signal.SIGINT, signal.SIGTERM))
    content = _exactly(LENGTH.unpack(_exactly(LENGTH.size))[0])
    guardian = guard(_LIFELINE, grace)
    _close_stdin()
    faulthandler.enable()
    told = _Channel(channel)
    try:
        told.send(_carried_out(unpacked(content), told))
    except KeyboardInterrupt:
        told.send(Interrupted())
    except Exception as error:  # noqa: BLE001 - the process's edge: the parent raises it again
        told.send(stopped_by(error))
    dismiss(guardian)
    return 0


def _exactly(size: int) -> bytes:
    """So many bytes of standard input, and not one more: its end is for the guard to see."""
    content = b""
    while len(content) < size:
        part = os.read(_LIFELINE, min(size - len(content), 1 << 20))
        if not part:
            raise SystemExit(INTERRUPTED)  # the parent is gone already
        content += part
    return content


def _close_stdin() -> None:
    """Nothing in here may wait for words of the user."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, _LIFELINE)
    os.close(nothing)


def _carried_out(request: Request, told: _Channel) -> Result | Answered:
    sys.path[:] = request.path
    register_folders(request.code_folders)
    absent: Mapping[str, None] = dict.fromkeys(request.absent)
    sys.modules.update(absent)  # type: ignore[arg-type]  # None makes their import fail
    threads.sleep_while_waiting()
    if request.threads is not None:
        os.environ.update(threads.variables(request.threads))
        threads.allow(request.threads)
    order = request.work
    if isinstance(order, Call):
        return Answered.of(perform(order, told.send))

    def begun(manifest: Manifest) -> None:
        told.send(Begun(manifest=manifest))

    if isinstance(order, FinishOrder):
        from ..finishing import finish

        return Result(manifest=finish(order, told.send, begun=begun))
    from ..run import run

    return Result(manifest=run(order, told.send, begun=begun))


class _Channel:
    """The pipe to the parent. Runtimes may tell progress from threads of their own."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._lock = Lock()

    def send(self, message: Message | Event) -> None:
        """Send one message whole."""
        left = memoryview(line_of(message))
        with self._lock:
            while left:
                left = left[os.write(self._number, left) :]


def leave(code: int) -> NoReturn:
    """End this process at once: native libraries may crash on their way out, and all was told."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


if __name__ == "__main__":
    leave(main(int(sys.argv[1]), float(sys.argv[2])))
