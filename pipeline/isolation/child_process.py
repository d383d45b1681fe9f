"""A child process from start to end: its messages, its log and its exit code."""

from __future__ import annotations

import os
import secrets
import selectors
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import IO, TypeAlias

from ...checkpoints.user_code import extra_folders
from ...core.events import Entered, Started
from ..inspection import ApiCall
from .ipc import (
    CallResult,
    ChildRequest,
    ChildWork,
    FinalManifest,
    Interrupted,
    Message,
    StoppedByError,
    decode_message,
    pack_request,
)
from .watchdog import WORKER_MARK, ChildWatchdog, LimitExceeded, ProcessLimits, end_process

OnMessage: TypeAlias = Callable[[Message], object]
_POLL_INTERVAL = 0.1  # seconds between two looks at the child
_EXIT_TIMEOUT = 5.0  # seconds that a child may take to leave when all was told
_CHANNEL_BLOCK = 1 << 16
# Nothing of the working folder may stand in for the standard library on the way to the worker.
_START_CODE = (
    "import sys; sys.path.insert(0, sys.argv.pop(1));"
    " from modelc.pipeline.isolation.worker import leave_process, main;"
    " leave_process(main(int(sys.argv[1]), float(sys.argv[2])))"
)
_IMPORT_ROOT = Path(__file__).absolute().parents[3]


@dataclass(frozen=True, kw_only=True)
class ChildDeath:
    """A child that ended without a result: its exit code, and the bound that it was killed for."""

    code: int
    overrun: LimitExceeded | None = None
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


def run_child(
    work: ChildWork,
    heard: OnMessage,
    bounds: ProcessLimits,
    logs: Path,
    environment: Mapping[str, str] | None,
) -> ChildDeath | None:
    """Start a child and hear it to its end; None where it told how it ended.

    What the child prints outside of its steps goes to a file in `logs`.

    Raises:
        KeyboardInterrupt: this process was interrupted; the child has ended.
    """
    mark = secrets.token_hex(16)
    marked = {**(os.environ if environment is None else environment), WORKER_MARK: mark}
    with _start_child(bounds, marked) as (process, channel), _log_output(process, logs):
        try:
            _send_request(process, work, bounds)
            watch = ChildWatchdog(process.pid, bounds, logs)
            begins = Started if isinstance(work, ApiCall) else Entered
            death = _listen_to_child(process, channel, heard, watch, begins)
        except BaseException:
            end_process(process, grace=bounds.grace, mark=mark)
            raise
        end_process(process, mark=mark)
        watch.trim()
        return death


@contextmanager
def _start_child(
    bounds: ProcessLimits, environment: Mapping[str, str]
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The process in a session of its own, and the end of its channel that is ours."""
    ours, theirs = os.pipe()
    command = [
        sys.executable,
        "-P",
        "-c",
        _START_CODE,
        str(_IMPORT_ROOT),
        str(theirs),
        str(bounds.grace),
    ]
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
            _close_quietly(process.stdin)


def _close_quietly(stream: object) -> None:
    """Close a pipe to a child that may be gone with some of what it was sent."""
    try:
        stream.close()  # type: ignore[attr-defined]
    except BrokenPipeError:
        return


@contextmanager
def _log_output(process: subprocess.Popen[bytes], logs: Path) -> Iterator[None]:
    """What the child prints outside of its steps goes to a log; it can start while we wait."""
    if process.stdout is None:
        raise RuntimeError("the child was started without a pipe")
    log = WorkerLog(process.stdout)
    try:
        yield
    finally:
        log.close(logs)


def _send_request(process: subprocess.Popen[bytes], work: ChildWork, bounds: ProcessLimits) -> None:
    """Send the request; a child that died meanwhile is found dead by who listens."""
    modules: Mapping[str, object] = sys.modules
    absent = tuple(name for name, module in modules.items() if module is None)
    request = ChildRequest(
        work=work,
        path=tuple(sys.path),
        code_folders=extra_folders(),
        absent=absent,
        threads=bounds.threads,
    )
    if process.stdin is None:
        raise RuntimeError("the child was started without a pipe")
    try:
        process.stdin.write(pack_request(request))
        process.stdin.flush()
    except BrokenPipeError:
        return


def _listen_to_child(
    process: subprocess.Popen[bytes],
    channel: int,
    heard: OnMessage,
    watch: ChildWatchdog,
    begins: type[Message],
) -> ChildDeath | None:
    """Hear messages until one says how it ended, a bound is hit, or the child is dead.

    The time that `--timeout` bounds starts anew at each message of the kind `begins`.
    """
    lines = _LineReader(channel)
    while True:
        alive = process.poll() is None  # asked first: what it told before its end is still heard
        for message in lines.now():
            if isinstance(message, begins):
                watch.entered()
            heard(message)
            if isinstance(message, FinalManifest | CallResult | StoppedByError | Interrupted):
                _wait_for_exit(process)
                return None
        if not alive or lines.ended:
            return ChildDeath(code=_wait_for_exit(process), peak=watch.peak)
        overrun = watch.overrun()
        if overrun is not None:
            return ChildDeath(code=-signal.SIGKILL, overrun=overrun, peak=watch.peak)


def _wait_for_exit(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait(_EXIT_TIMEOUT)
    except subprocess.TimeoutExpired:  # it hangs on its way out, and is killed
        return -signal.SIGKILL


class _LineReader:
    """The messages that come through a pipe."""

    def __init__(self, channel: int) -> None:
        self._channel, self._rest = channel, b""
        self.ended = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(channel, selectors.EVENT_READ)

    def now(self) -> Iterator[Message]:
        """What is there, or comes within a moment."""
        if self.ended or not self._selector.select(_POLL_INTERVAL):
            return
        block = os.read(self._channel, _CHANNEL_BLOCK)
        self.ended = not block
        *lines, self._rest = (self._rest + block).split(b"\n")
        yield from map(decode_message, lines)


WORKER_LOG_FILE = "worker.log"
_KEPT_BYTES = 1 << 16  # bytes of the beginning, and as many of the end
_PIPE_BLOCK = 1 << 14


class WorkerLog:
    """Reads a pipe to its end in a thread of its own, so that the child never waits for it."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._head = b""
        self._tail: deque[bytes] = deque()
        self._held = self._left_out = 0
        self._thread = Thread(target=self._read, daemon=True, name="modelc-worker-log")
        self._thread.start()

    def _read(self) -> None:
        while block := os.read(self._stream.fileno(), _PIPE_BLOCK):
            room = _KEPT_BYTES - len(self._head)
            self._head += block[:room]
            self._add(block[max(room, 0) :])

    def _add(self, block: bytes) -> None:
        if not block:
            return
        self._tail.append(block)
        self._held += len(block)
        while self._held - len(self._tail[0]) >= _KEPT_BYTES:
            self._held -= len(self._tail[0])
            self._left_out += len(self._tail.popleft())

    def text(self) -> bytes:
        """What is kept; where something was left out between, that says how much."""
        gap = f"\n[… {self._left_out} bytes are left out here …]\n" if self._left_out else ""
        return self._head + gap.encode() + b"".join(self._tail)

    def close(self, folder: Path, *, patience: float = 1.0) -> None:
        """Write it to the folder, where there is one and anything was printed."""
        self._thread.join(timeout=patience)  # a grandchild may hold the pipe open
        if self.text() and folder.is_dir():
            with (folder / WORKER_LOG_FILE).open("ab") as stream:
                stream.write(self.text())
        if not self._thread.is_alive():
            self._stream.close()
