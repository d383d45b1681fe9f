"""A process that has libraries loaded and forks a child for each call: the parent's side.

Importing torch and what an export needs takes longer than the export of a small model. The server
runs none of the user's code. It starts as every other child does and has what this process
passes on at that time: environment, import path, limits. A call that passes on anything else is
not for the server. Linux only.
"""

from __future__ import annotations

import array
import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import IO

from ..process import thread_environment
from .preloaded import ProcessSurroundings
from .process_tree import CHILD_MARK, ProcessTree

IMPORT_ROOT = Path(__file__).absolute().parents[3]
IS_SUPPORTED = sys.platform == "linux"
READY, STARTED, ENDED, REFUSED = b"ready", b"started", b"ended", b"refused"
MESSAGE_SIZE = 1 << 12
# In a child, the rest of the line runs: it is that of `child_call`.
_START_CODE = (
    "import sys; sys.path.insert(0, sys.argv.pop(1));"
    " from modelc.core.children.fork_main import serve_forks;"
    " from modelc.core.children.child_main import leave_process, main;"
    " grace, parent = serve_forks(int(sys.argv[1])); leave_process(main(grace, parent=parent))"
)
_START_TIMEOUT = 120.0  # seconds; the libraries may lie on a slow network disk
_FORK_TIMEOUT = 30.0  # seconds
_MAX_FAILURES = 3  # in a row, after which new processes are started
_FORKS_BETWEEN = 8  # children after which an earlier failure does not count any more
_LOST_CODE = -int(signal.SIGKILL)  # of a child whose exit code died with the server
_POLL_INTERVAL = 0.05  # seconds
_LOG_TAIL = 1 << 12


class ForkServer:
    """Starts the server with the first call. Used by several threads at once.

    Where it cannot be used, `fork` returns None, and the caller starts a process as usual. One that
    was killed is replaced; if it does not start or keeps failing, `failure` says why.
    """

    def __init__(
        self,
        modules: Iterable[str],
        *,
        threads: int | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self._modules = tuple(modules)
        self.threads, self._stop = threads, stop
        self.failure = "" if IS_SUPPORTED else "the system is not Linux"
        self._running: _RunningServer | None = None
        self._failures = self._forks = 0  # since the count of failures began
        self._lock = Lock()

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the server; children that still run are not ended."""
        with self._lock:
            if self._running is not None:
                self._running.close()
            self._running = None
            self.failure = self.failure or "the server was closed"

    @property
    def process(self) -> int | None:
        """The process id of the server, if it runs."""
        return None if self._running is None else self._running.tree.process.pid

    def start(self, environment: Mapping[str, str] | None = None) -> None:
        """Start the server, so that the time for it is not that of a call; `fork` does so, too."""
        with self._lock, self._note_failure():
            if not self.failure:
                self._find_running(os.environ if environment is None else environment)

    def fork(self, environment: Mapping[str, str], grace: float) -> ForkedProcess | None:
        """Fork a child that carries out a `child_call`; None if a new process must do so."""
        with self._lock, self._note_failure():
            if self.failure:
                return None
            running, now = self._find_running(environment)
            if running.surroundings == now:
                forked = running.fork(environment[CHILD_MARK], grace)
                self._forks += 1
                return forked
        return None

    def _find_running(
        self, environment: Mapping[str, str]
    ) -> tuple[_RunningServer, ProcessSurroundings]:
        """Return the server, started if it does not run, and the surroundings of a child."""
        now = ProcessSurroundings.of_this_process(environment)
        if self._running is None:
            request = _LoadRequest(modules=self._modules, threads=self.threads, stop=self._stop)
            self._running = _RunningServer.start(request, now)
        return self._running, now

    @contextmanager
    def _note_failure(self) -> Iterator[None]:
        """Count an error within the block, which is not raised, and close a server that is lost."""
        try:
            yield
        except (OSError, RuntimeError, ValueError) as error:
            self._failures = 1 if self._forks >= _FORKS_BETWEEN else self._failures + 1
            self._forks = 0
            if self._running is None or self._failures >= _MAX_FAILURES:
                self.failure = str(error) or type(error).__name__
            is_lost = isinstance(error, RuntimeError | ConnectionError | TimeoutError)
            if self._running is not None and (is_lost or self.failure):
                self._running.close()
                self._running = None


@dataclass(frozen=True, kw_only=True)
class _LoadRequest:
    """What the server loads, with how many threads, and when to give up."""

    modules: tuple[str, ...]
    threads: int | None
    stop: Callable[[], bool]

    def encode(self, surroundings: ProcessSurroundings) -> bytes:
        """Return it as the server reads it."""
        content = {
            "modules": self.modules,
            "path": surroundings.path,
            "absent": sorted(surroundings.absent),
            "threads": None if self.threads is None else dict(thread_environment(self.threads)),
        }
        return json.dumps(content).encode()


@dataclass(frozen=True, kw_only=True)
class _RunningServer:
    """The server's process, the socket for requests, and what it inherited."""

    tree: ProcessTree
    control: socket.socket
    surroundings: ProcessSurroundings
    log: IO[bytes]

    @classmethod
    def start(cls, request: _LoadRequest, surroundings: ProcessSurroundings) -> _RunningServer:
        """Start it and wait until the modules are loaded.

        Raises:
            RuntimeError: it ended, or it cannot fork safely.
            OSError: it cannot be started.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        mark = secrets.token_hex(16)
        log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the server
        with theirs:
            process = subprocess.Popen(
                (sys.executable, "-P", "-c", _START_CODE, str(IMPORT_ROOT), str(theirs.fileno())),
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**surroundings.environment, CHILD_MARK: mark},
                start_new_session=True,
                pass_fds=(theirs.fileno(),),
            )
        tree = ProcessTree(process=process, leads_session=True, mark=mark)
        server = cls(tree=tree, control=ours, surroundings=surroundings, log=log)
        try:
            server.load(request)
        except BaseException:
            server.close()
            raise
        return server

    def load(self, request: _LoadRequest) -> None:
        """Have it load the modules.

        Raises:
            RuntimeError: it ended, it cannot fork safely, or the run is stopped.
        """
        content = request.encode(self.surroundings)
        self.control.settimeout(_START_TIMEOUT)
        try:
            self.control.sendall(len(content).to_bytes(8, "little"))
            for start in range(0, len(content), MESSAGE_SIZE):
                self.control.sendall(content[start : start + MESSAGE_SIZE])
            until = time.monotonic() + _START_TIMEOUT
            while not select.select([self.control], [], [], _POLL_INTERVAL)[0]:
                if request.stop() or time.monotonic() > until:
                    raise RuntimeError("its libraries were not loaded in time")
            answer = self.control.recv(MESSAGE_SIZE)
        except OSError as error:
            raise RuntimeError(self.last_line()) from error
        if answer != READY:
            raise RuntimeError(answer.decode("utf-8", "replace") or self.last_line())

    def last_line(self) -> str:
        """Return the end of what it printed, or how it ended."""
        with suppress(subprocess.TimeoutExpired):
            self.tree.process.wait(1.0)
        self.log.seek(max(self.log.seek(0, os.SEEK_END) - _LOG_TAIL, 0))
        lines = self.log.read().decode("utf-8", "replace").strip().splitlines()
        return (
            f"it ended with {self.tree.process.poll()}{': ' if lines else ''}{''.join(lines[-1:])}"
        )

    def fork(self, mark: str, grace: float) -> ForkedProcess:
        """Have it fork a child with pipes of its own.

        Raises:
            OSError, RuntimeError: the server has ended, or cannot fork.
        """
        child_ends, streams = [], []
        with ExitStack() as ours, ExitStack() as theirs:
            for mode in ("wb", "rb", "rb"):
                ends = os.pipe()
                child_end, own = ends if mode == "wb" else reversed(ends)
                theirs.callback(os.close, child_end)
                child_ends.append(child_end)
                stream = open(own, mode, buffering=0)  # noqa: PTH123, SIM115 - ForkedProcess owns it
                streams.append(ours.enter_context(stream))
            pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            status = ours.enter_context(pair[0])
            theirs.enter_context(pair[1])
            self._send_request(mark, grace, [*child_ends, pair[1].fileno()])
            theirs.close()
            number = self._read_start(status)
            ours.pop_all()
        return ForkedProcess(number, status, *streams)

    def _send_request(self, mark: str, grace: float, descriptors: list[int]) -> None:
        """Send it with the descriptors: standard streams, status, and the working folder."""
        text = json.dumps({"mark": mark, "grace": grace, "parent": os.getpid()}).encode()
        here = os.open(".", os.O_PATH | os.O_DIRECTORY)
        try:
            found = array.array("i", [*descriptors, here])
            self.control.sendmsg([text], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, found)])
        finally:
            os.close(here)

    def _read_start(self, status: socket.socket) -> int:
        """Return the process id of the child once it leads its session."""
        status.settimeout(_FORK_TIMEOUT)
        kind, _, content = status.recv(MESSAGE_SIZE).partition(b" ")
        if kind == STARTED:
            return int(content)
        if kind in (REFUSED, ENDED):
            raise OSError(f"it forked no child: {content.decode('utf-8', 'replace')}")
        raise RuntimeError(f"it forked no child; {self.last_line()}")

    def close(self) -> None:
        """End it, if it does not end by itself."""
        self.control.close()
        stdin = self.tree.process.stdin
        if stdin is not None:
            stdin.close()
        try:
            with suppress(subprocess.TimeoutExpired):
                self.tree.process.wait(1.0)
        finally:
            self.tree.process.kill()
            self.tree.process.wait()
            self.log.close()


class ForkedProcess:
    """A child of the server, as `subprocess.Popen` describes one.

    Its process id is not used again before `close`, as the server waits for it only then.
    """

    def __init__(
        self,
        pid: int,
        status: socket.socket,
        stdin: IO[bytes],
        stdout: IO[bytes],
        stderr: IO[bytes],
    ) -> None:
        self.pid = pid
        self.stdin: IO[bytes] | None = stdin
        self.stdout: IO[bytes] | None = stdout
        self.stderr: IO[bytes] | None = stderr
        self.returncode: int | None = None
        self._status = status
        self._is_lost = False  # the server has ended before the child

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None if it runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        until = None if timeout is None else time.monotonic() + timeout
        left = timeout
        while True:
            self._update(left)
            if self.returncode is not None:
                return self.returncode
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                raise subprocess.TimeoutExpired("a forked child", timeout or 0.0)

    def _update(self, timeout: float | None) -> None:
        """Note the exit code if there is one within `timeout` seconds."""
        if self.returncode is not None:
            return
        if self._is_lost:
            self._look_for_it(timeout)
        elif select.select([self._status], [], [], timeout)[0]:
            self._read_status()

    def _read_status(self) -> None:
        try:
            kind, _, number = self._status.recv(MESSAGE_SIZE).partition(b" ")
        except OSError:
            kind, number = b"", b""
        if kind == ENDED:
            self.returncode = os.waitstatus_to_exitcode(int(number))
        else:
            self._is_lost = True

    def _look_for_it(self, timeout: float | None) -> None:
        import psutil

        try:
            ended = psutil.Process(self.pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            ended = True
        if ended:
            self.returncode = _LOST_CODE
        else:
            time.sleep(_POLL_INTERVAL if timeout is None else min(timeout, _POLL_INTERVAL))

    def send_signal(self, sig: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, sig)

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Let the server forget it."""
        self._status.close()
