"""Run a child process that may crash, hang or be stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, Queue
from threading import Thread
from typing import IO, TypeAlias

LineHandler: TypeAlias = Callable[[str], None]
_TAIL = 40  # lines of the log that are kept for a message
_TICK = 0.2  # seconds between two looks at whether the process lives
_STDERR = 2


@dataclass(frozen=True, kw_only=True)
class ProcessTimeouts:
    """Seconds to wait for each way of ending the process.

    `stop` is for the step of a build that is running. How long the whole may take is a bound of
    the step that it belongs to: `--timeout` ends that step with all its processes.
    """

    stop: float = 30.0
    terminate: float = 5.0


@dataclass(frozen=True, kw_only=True)
class ProcessEnd:
    """How a process ended; `tail` holds the last lines that it wrote to its standard error."""

    code: int
    tail: tuple[str, ...]

    @property
    def signal_name(self) -> str:
        """`SIGSEGV` where a signal ended it, else nothing."""
        try:
            return signal.Signals(-self.code).name if self.code < 0 else ""
        except ValueError:
            return f"signal {-self.code}"


def run_supervised(
    command: Sequence[str], heard: LineHandler, patience: ProcessTimeouts
) -> ProcessEnd:
    """Run a command to its end.

    Its standard output is heard line by line, in this thread. Its standard error goes to ours.
    To stop, its standard input is closed; if that does not help, it is terminated, then killed.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
    )
    lines: Queue[str | None] = Queue()
    tail: deque[str] = deque(maxlen=_TAIL)
    threads = (
        Thread(target=_read_stream, args=(process.stdout, lines.put), daemon=True),
        Thread(
            target=_read_stream,
            args=(process.stderr, lambda line: _keep_line(line, tail)),
            daemon=True,
        ),
    )
    for thread in threads:
        thread.start()
    try:
        _read_lines(process, lines, heard)
    except BaseException:
        _stop_process(process, patience)
        raise
    finally:
        _release(process, threads)
    return ProcessEnd(code=process.returncode, tail=tuple(tail))


def _read_lines(
    process: subprocess.Popen[str], lines: Queue[str | None], heard: LineHandler
) -> None:
    """Hear lines until the process has ended and no more come."""
    while True:
        try:
            line = lines.get(timeout=_TICK)
        except Empty:
            if process.poll() is not None:
                return
        else:
            if line is None:
                break
            heard(line)
    process.wait()


def _stop_process(process: subprocess.Popen[str], patience: ProcessTimeouts) -> None:
    """Ask, then terminate; what is left of it is killed. A second interrupt skips the asking."""
    try:
        if process.stdin is not None:
            process.stdin.close()
        process.wait(patience.stop)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        process.terminate()
        with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            process.wait(patience.terminate)


def _release(process: subprocess.Popen[str], threads: Sequence[Thread]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait()
    for thread in threads:
        thread.join(timeout=1.0)  # a grandchild may hold the pipe open
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def _read_stream(stream: IO[str] | None, put: Callable[[str | None], object]) -> None:
    for line in stream or ():
        put(line.rstrip("\n"))
    put(None)


def _keep_line(line: str | None, tail: deque[str]) -> None:
    if line is None:
        return
    tail.append(line)
    write_log(line)


def write_log(line: str) -> None:
    """To our own standard error by its descriptor: the pipeline sends that to the step's log."""
    sys.stderr.flush()
    os.write(_STDERR, f"{line}\n".encode())
