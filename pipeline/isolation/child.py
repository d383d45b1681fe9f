"""A child that carries out an order, from its start to its end, as messages and a way of dying."""

from __future__ import annotations

import os
import secrets
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from ...core.events import Entered, Started
from ...sources.user_code import extra_folders
from ..calls import Call
from .bounds import Bounds
from .crossing import Answered, Interrupted, Message, Result, Stopped, message_in
from .ending import MARK, end
from .request import Request, Work, packed
from .watching import Overrun, Watch
from .worker_log import WorkerLog

Heard: TypeAlias = Callable[[Message], object]
_TICK = 0.1  # seconds between two looks at the child
_LAST = 5.0  # seconds that a child may take to leave when all was told
_BLOCK = 1 << 16
# Nothing of the working folder may stand in for the standard library on the way to the worker.
_START = (
    "import sys; sys.path.insert(0, sys.argv.pop(1));"
    " from modelc.pipeline.isolation.worker import leave, main;"
    " leave(main(int(sys.argv[1]), float(sys.argv[2])))"
)
_ROOT = Path(__file__).absolute().parents[3]


@dataclass(frozen=True, kw_only=True)
class Death:
    """A child that ended without a result: its exit code, and the bound that it was killed for."""

    code: int
    overrun: Overrun | None = None
    peak: int = 0  # bytes of memory that were seen

    @property
    def name(self) -> str:
        """`SIGSEGV`, or `exit code 3`."""
        if self.code >= 0:
            return f"exit code {self.code}"
        try:
            return signal.Signals(-self.code).name
        except ValueError:
            return f"signal {-self.code}"


def carried_out(
    work: Work,
    heard: Heard,
    bounds: Bounds,
    logs: Path,
    environment: Mapping[str, str] | None,
) -> Death | None:
    """Start a child and hear it to its end; None where it told how it ended.

    What the child prints outside of its steps goes to a file in `logs`.

    Raises:
        KeyboardInterrupt: this process was interrupted; the child has ended.
    """
    mark = secrets.token_hex(16)
    marked = {**(os.environ if environment is None else environment), MARK: mark}
    with _started(bounds, marked) as (process, channel), _logged(process, logs):
        try:
            _give(process, work, bounds)
            watch = Watch(process.pid, bounds, logs)
            begins = Started if isinstance(work, Call) else Entered
            death = _listen(process, channel, heard, watch, begins)
        except BaseException:
            end(process, grace=bounds.grace, mark=mark)
            raise
        end(process, mark=mark)
        watch.trim()
        return death


@contextmanager
def _started(
    bounds: Bounds, environment: Mapping[str, str]
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The process in a session of its own, and the end of its channel that is ours."""
    ours, theirs = os.pipe()
    command = [sys.executable, "-P", "-c", _START, str(_ROOT), str(theirs), str(bounds.grace)]
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            pass_fds=(theirs,),
            start_new_session=True,
        )
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    try:
        yield process, ours
    finally:
        os.close(ours)
        if process.stdin is not None:
            _close(process.stdin)


def _close(stream: object) -> None:
    """Close a pipe to a child that may be gone with some of what it was sent."""
    try:
        stream.close()  # type: ignore[attr-defined]
    except BrokenPipeError:
        return


@contextmanager
def _logged(process: subprocess.Popen[bytes], logs: Path) -> Iterator[None]:
    """What the child prints outside of its steps goes to a log; it can start while we wait."""
    if process.stdout is None:
        raise RuntimeError("the child was started without a pipe")
    log = WorkerLog(process.stdout)
    try:
        yield
    finally:
        log.close(logs)


def _give(process: subprocess.Popen[bytes], work: Work, bounds: Bounds) -> None:
    """Send the request; a child that died meanwhile is found dead by who listens."""
    modules: Mapping[str, object] = sys.modules
    absent = tuple(name for name, module in modules.items() if module is None)
    request = Request(
        work=work,
        path=tuple(sys.path),
        code_folders=extra_folders(),
        absent=absent,
        threads=bounds.threads,
    )
    if process.stdin is None:
        raise RuntimeError("the child was started without a pipe")
    try:
        process.stdin.write(packed(request))
        process.stdin.flush()
    except BrokenPipeError:
        return


def _listen(
    process: subprocess.Popen[bytes],
    channel: int,
    heard: Heard,
    watch: Watch,
    begins: type[Message],
) -> Death | None:
    """Hear messages until one says how it ended, a bound is hit, or the child is dead.

    The time that `--timeout` bounds starts anew at each message of the kind `begins`.
    """
    lines = _Lines(channel)
    while True:
        alive = process.poll() is None  # asked first: what it told before its end is still heard
        for message in lines.now():
            if isinstance(message, begins):
                watch.entered()
            heard(message)
            if isinstance(message, Result | Answered | Stopped | Interrupted):
                _await(process)
                return None
        if not alive or lines.ended:
            return Death(code=_await(process), peak=watch.peak)
        overrun = watch.overrun()
        if overrun is not None:
            return Death(code=-signal.SIGKILL, overrun=overrun, peak=watch.peak)


def _await(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait(_LAST)
    except subprocess.TimeoutExpired:  # it hangs on its way out, and is killed
        return -signal.SIGKILL


class _Lines:
    """The messages that come through a pipe."""

    def __init__(self, channel: int) -> None:
        self._channel, self._rest = channel, b""
        self.ended = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(channel, selectors.EVENT_READ)

    def now(self) -> Iterator[Message]:
        """What is there, or comes within a moment."""
        if self.ended or not self._selector.select(_TICK):
            return
        block = os.read(self._channel, _BLOCK)
        self.ended = not block
        *lines, self._rest = (self._rest + block).split(b"\n")
        yield from map(message_in, lines)
