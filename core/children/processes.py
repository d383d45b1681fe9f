"""Run a program that may crash, hang, flood its pipes or leave them to what it started."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Empty, Full, Queue, SimpleQueue
from threading import Lock, Thread
from typing import IO, TypeAlias

from .fork_server import ForkedProcess, ForkServer
from .limits import LimitExceeded, SuspensionWatch
from .process_tree import CHILD_MARK, ProcessTree, StartedProcess

OnLine: TypeAlias = Callable[[bytes], bool]
Watch: TypeAlias = Callable[[int], LimitExceeded | None]
_POLL_INTERVAL = 0.1  # seconds between two looks at the child
_EXIT_TIMEOUT = 5.0  # seconds that a child may take to exit after its last message
_PIPE_TIMEOUT = 1.0  # seconds to wait for the end of a pipe that a grandchild may hold open
_BLOCK = 1 << 16
_MAX_LINE = 1 << 28  # bytes; longer than any manifest
_MAX_QUEUED = 1 << 12  # lines; a child that floods the pipe waits for the parent
_KILLED = -9
_TAIL_LINES = 40


@dataclass(frozen=True, kw_only=True)
class ProcessSpec:
    """What to start, and how to stop it.

    `environment`: None inherits that of this process. `request`: bytes for the standard input. It
    stays open while the program runs, so that its end signals that the parent is gone,
    unless `ends_input`. `more`: blocks for the standard input after the request, until None.
    `leads_session`: a session of its own, which the terminal's signals do
    not go to. `grace`: seconds between the request to stop and the kill. `merged`: standard error
    is read line by line with standard output, and not logged. `server` forks the process where it
    can; the command must be that of a `child_call`.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str] | None = None
    request: bytes = b""
    more: SimpleQueue[bytes | None] | None = None
    ends_input: bool = False
    leads_session: bool = False
    grace: float = 5.0
    merged: bool = False
    server: ForkServer | None = None


@dataclass(frozen=True, kw_only=True)
class ProcessEnd:
    """How a process ended: its exit code, and the limit that it was killed for.

    `peak` is the bytes of memory that were measured, `tail` the last lines of its log, `began` the
    time at which it was started.
    """

    code: int
    overrun: LimitExceeded | None = None
    peak: int = 0
    tail: tuple[str, ...] = ()
    began: float = 0.0

    @property
    def signal_name(self) -> str:
        """`SIGSEGV` if a signal ended the process, else empty."""
        if self.code >= 0:
            return ""
        try:
            return signal.Signals(-self.code).name
        except ValueError:
            return f"signal {-self.code}"

    @property
    def name(self) -> str:
        """`SIGSEGV`, or `exit code 3`."""
        return self.signal_name or f"exit code {self.code}"


def run_process(
    program: ProcessSpec,
    on_line: OnLine,
    *,
    log: OutputLog | None = None,
    watch: Watch = lambda _: None,
) -> ProcessEnd:
    """Run a program to its end; nothing of it is left when this returns or raises.

    Args:
        program: what to start.
        on_line: gets each line of its standard output, and returns whether that was the last.
        log: collects its standard error.
        watch: polled with the process id; returns the limit that the process exceeds.

    Raises:
        OSError: the program cannot be started.
        KeyboardInterrupt: this process was interrupted, or `watch` says so.
    """
    log = OutputLog() if log is None else log
    environment = dict(os.environ if program.environment is None else program.environment)
    mark = ""
    if program.leads_session and CHILD_MARK not in environment:  # else the outer child is marked
        mark = environment[CHILD_MARK] = secrets.token_hex(16)
    process = _start_process(program, environment)
    leads = program.leads_session and os.name == "posix"
    tree = ProcessTree(process=process, leads_session=leads, mark=mark)
    pipes = _Pipes(process, program, log)
    try:
        end = _follow(process, pipes, on_line, watch)
    except BaseException:
        tree.end(program.grace, pipes.close_input)
        raise
    else:
        tree.end()
    finally:
        pipes.close()
        if isinstance(process, ForkedProcess):
            process.close()
    return replace(end, tail=log.last_lines())


def _start_process(program: ProcessSpec, environment: Mapping[str, str]) -> StartedProcess:
    if program.server is not None:
        forked = program.server.fork(environment, program.grace)
        if forked is not None:
            return forked
    return subprocess.Popen(
        program.command,
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if program.merged else subprocess.PIPE,
        env=environment,
        start_new_session=program.leads_session,
    )


def _follow(process: StartedProcess, pipes: _Pipes, on_line: OnLine, watch: Watch) -> ProcessEnd:
    suspended = SuspensionWatch()
    while True:
        alive = process.poll() is None  # asked first: what it wrote before its end is still read
        for line in pipes.lines(_POLL_INTERVAL if alive else _PIPE_TIMEOUT):
            if on_line(line):
                return ProcessEnd(code=_wait_for_exit(process))
            exceeded = watch(process.pid) if alive else None  # it may never stop writing
            if exceeded is not None:
                return ProcessEnd(code=_KILLED, overrun=exceeded)
        if not alive:
            return ProcessEnd(code=_wait_for_exit(process))
        exceeded = watch(process.pid) or suspended(process.pid)
        if exceeded is not None:
            return ProcessEnd(code=_KILLED, overrun=exceeded)
        if pipes.ended:  # it closed its end: it is about to exit, or will never write anything
            return ProcessEnd(code=_wait_for_exit(process))


def _wait_for_exit(process: StartedProcess) -> int:
    try:
        return process.wait(_EXIT_TIMEOUT)
    except subprocess.TimeoutExpired:  # it hangs on its way out, and is killed
        return _KILLED


class _Pipes:
    """The three pipes of a child. Threads serve them, so that neither side waits for the other.

    A pipe that a grandchild holds open is left to its thread, which closes it at its end.
    """

    def __init__(self, process: StartedProcess, program: ProcessSpec, log: OutputLog) -> None:
        self._stdin, stdout = process.stdin, process.stdout
        self._more = program.more
        if self._stdin is None or stdout is None:
            raise RuntimeError("the child was started without pipes")
        self._queue: Queue[bytes | None] = Queue(_MAX_QUEUED)
        self._closed = self.ended = False
        self._writer = Thread(target=_write_input, args=(self._stdin, program), daemon=True)
        self._readers = [Thread(target=self._read_lines, args=(stdout,), daemon=True)]
        if process.stderr is not None:
            self._readers.append(Thread(target=log.read, args=(process.stderr,), daemon=True))
        for thread in (self._writer, *self._readers):
            thread.start()

    def lines(self, timeout: float) -> Iterator[bytes]:
        """Yield what is there, or comes within `timeout` seconds of the line before."""
        while not self.ended:
            try:
                line = self._queue.get(timeout=timeout)
            except Empty:
                return
            self.ended = line is None
            if line is not None:
                yield line
                timeout = min(timeout, _POLL_INTERVAL)

    def close_input(self) -> None:
        """Close the standard input: a child that reads it is asked to stop."""
        self._writer.join(timeout=0.0)
        if self._stdin is not None and not self._writer.is_alive():
            self._stdin.close()

    def close(self) -> None:
        """Close all pipes; called when the process has ended."""
        self._closed = True
        if self._more is not None:
            self._more.put(None)  # the writer may wait for it
        self._writer.join(timeout=_PIPE_TIMEOUT)
        self.close_input()
        for thread in self._readers:
            thread.join(timeout=_PIPE_TIMEOUT)

    def _read_lines(self, stream: IO[bytes]) -> None:
        rest = b""
        with stream:
            while block := os.read(stream.fileno(), _BLOCK):
                *lines, rest = (rest + block).split(b"\n")
                for line in lines:
                    self._put(line)
                if len(rest) > _MAX_LINE:
                    self._put(rest)
                    rest = b""
        if rest:
            self._put(rest)
        self._put(None)

    def _put(self, line: bytes | None) -> None:
        while not self._closed:
            with suppress(Full):
                self._queue.put(line, timeout=_POLL_INTERVAL)
                return


def _write_input(stream: IO[bytes], program: ProcessSpec) -> None:
    with suppress(BrokenPipeError):  # the child died; whoever waits for it notices
        _write_block(stream, program.request)
        for block in () if program.more is None else iter(program.more.get, None):
            _write_block(stream, block)
    if program.ends_input:
        stream.close()


def _write_block(stream: IO[bytes], block: bytes) -> None:
    left = memoryview(block)
    while left:
        left = left[os.write(stream.fileno(), left[:_BLOCK]) :]


_KEPT_BYTES = 1 << 16  # bytes of the beginning, and as many of the end


class OutputLog:
    """The beginning and the end of what a child printed; `echo` also prints it here."""

    def __init__(self, *, echo: bool = False) -> None:
        self._echo = echo
        self._head = b""
        self._tail: deque[bytes] = deque()
        self._held = self._left_out = 0
        self._lock = Lock()

    def read(self, stream: IO[bytes]) -> None:
        """Read a pipe to its end, and close it."""
        with stream:
            while block := os.read(stream.fileno(), _BLOCK):
                self.add(block)

    def add(self, block: bytes) -> None:
        """Add to the end."""
        if self._echo:
            with suppress(OSError):  # by its descriptor: the pipeline redirects it to a log
                os.write(2, block)
        with self._lock:
            room = _KEPT_BYTES - len(self._head)
            self._head += block[:room]
            if not (rest := block[max(room, 0) :]):
                return
            self._tail.append(rest)
            self._held += len(rest)
            while self._held - len(self._tail[0]) >= _KEPT_BYTES:
                self._held -= len(self._tail[0])
                self._left_out += len(self._tail.popleft())

    def content(self) -> bytes:
        """Return what was kept, with the number of bytes that were left out."""
        with self._lock:
            gap = f"\n[… {self._left_out} bytes are left out here …]\n" if self._left_out else ""
            return self._head + gap.encode() + b"".join(self._tail)

    def last_lines(self) -> tuple[str, ...]:
        """Return the last lines."""
        lines = self.content().decode("utf-8", "replace").splitlines()
        return tuple(line for line in lines if line.strip())[-_TAIL_LINES:]

    def append_to(self, path: Path) -> None:
        """Append it to a file in a folder that exists, if the child printed anything."""
        if (content := self.content()) and path.parent.is_dir():
            with path.open("ab") as stream:
                stream.write(content)


class Deadline:
    """A watch that ends a program after so many seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._since = seconds, time.monotonic()

    def __call__(self, _: int) -> LimitExceeded | None:
        """Return the limit once it is over."""
        if time.monotonic() - self._since <= self._seconds:
            return None
        return LimitExceeded(text=f"no answer within {self._seconds:g} s", hint="run it by hand")


def capture_output(
    command: tuple[str, ...], *, text: str = "", seconds: float = 60.0
) -> tuple[ProcessEnd, str]:
    """Run a short program and return all that it printed, its standard error included.

    Args:
        command: the program with its arguments.
        text: its standard input.
        seconds: how long it may take.

    Raises:
        OSError: it cannot be started.
    """
    printed: list[str] = []

    def keep(line: bytes) -> bool:
        printed.append(line.decode("utf-8", "replace"))
        return False

    program = ProcessSpec(command=command, request=text.encode(), ends_input=True, merged=True)
    end = run_process(program, keep, watch=Deadline(seconds))
    return end, "\n".join(printed)
