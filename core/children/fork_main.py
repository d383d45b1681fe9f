"""The fork server's side: load the modules, then fork a child per request and report its end.

Nothing of the user runs here. The requests come from modelc; a child reads its call from its own
standard input, as a new process does.
"""

from __future__ import annotations

import array
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import process
from .child_main import leave_process, start_guardian
from .fork_server import ENDED, MESSAGE_SIZE, READY, REFUSED, STARTED
from .preloaded import remember_preloaded
from .process_tree import CHILD_MARK

_DESCRIPTORS = 5  # three streams, the socket for the child's status, the working folder
_FIRST = 3  # descriptor beside the standard streams
_TASKS, _DESCRIPTORS_FOLDER = Path("/proc/self/task"), Path("/proc/self/fd")
_DRIVERS = ("libcuda.so", "/dev/nvidia", "/dev/dri")  # a context of a GPU does not survive a fork


class UnsafeForkError(RuntimeError):
    """A module left something that a fork would break."""


def serve_forks(control: int) -> tuple[float, int]:
    """Serve until the other end of the socket is closed, then end the process.

    Returns:
        in a forked child alone: the grace and the parent for `child_main.main`. The caller calls
        it, so that the stack is that of a new process: TorchScript hashes it into its files.
    """
    start_guardian(0, 0.0)
    environment = dict(os.environ)
    mark = _EnvironmentMark()
    requests = socket.socket(fileno=control)
    try:
        _load(_read_request(requests))
        _check_safe()
    except UnsafeForkError as error:
        requests.sendall(str(error).encode())
        leave_process(0)
    requests.sendall(READY)
    request = _Server(requests, environment, mark).serve()
    if request is None:
        leave_process(0)
    return request["grace"], request["parent"]


def _read_request(requests: socket.socket) -> Mapping[str, Any]:
    size = int.from_bytes(requests.recv(MESSAGE_SIZE), "little")
    content = b""
    while len(content) < size:
        content += requests.recv(MESSAGE_SIZE)
    found: Mapping[str, Any] = json.loads(content)
    return found


def _load(request: Mapping[str, Any]) -> None:
    """Import the modules as a child would; one that this version lacks is left out."""
    sys.path[:] = request["path"]
    absent: Mapping[str, None] = dict.fromkeys(request["absent"])
    sys.modules.update(absent)  # type: ignore[arg-type]  # None makes their import fail
    process.sleep_while_waiting()
    os.environ.update(request["threads"] or {})
    before = dict(os.environ)
    for name in request["modules"]:
        with suppress(ImportError):
            importlib.import_module(name)
    remember_preloaded(name for name in os.environ if os.environ[name] != before.get(name))
    gc.collect()
    gc.freeze()  # a collection in a child would copy every page that the children share


def _check_safe() -> None:
    """Check that the modules left one thread, no child and no GPU.

    Raises:
        UnsafeForkError: they left more.
    """
    child = os.fork()  # OpenBLAS ends its threads before a fork, and starts them when it needs them
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    threads = len(list(_TASKS.iterdir()))
    if threads != 1:
        raise UnsafeForkError(f"the libraries started {threads - 1} threads")
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    found = [name for name in _DRIVERS if name in maps]
    found += [link for link in _open_files().values() if "/dev/nvidia" in link]
    if found:
        raise UnsafeForkError(f"the libraries opened a GPU ({found[0]})")


def _open_files() -> dict[int, str]:
    """Return the open descriptors and what they are, without that of this look."""
    found = {}
    for entry in list(_DESCRIPTORS_FOLDER.iterdir()):
        with suppress(OSError):
            found[int(entry.name)] = str(entry.readlink())
    return found


class _EnvironmentMark:
    """The mark in the block that the kernel shows as the environment of this process.

    Processes are found by it. A fork keeps the block of its parent, so the mark is written there;
    it has the same length in all processes.
    """

    def __init__(self) -> None:
        getenv = ctypes.CDLL(None).getenv
        getenv.restype, getenv.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
        self._address = getenv(CHILD_MARK.encode())
        self._size = len(os.environ[CHILD_MARK])

    def write(self, mark: str) -> None:
        if len(mark) != self._size:
            raise UnsafeForkError(f"the mark has {len(mark)} characters, not {self._size}")
        ctypes.memmove(self._address, mark.encode(), self._size)


@dataclass(frozen=True, kw_only=True)
class _Child:
    pid: int
    handle: int  # of the process, readable once it has ended
    status: socket.socket


@dataclass(frozen=True)
class _Server:
    """Forks children, and reports and forgets them."""

    requests: socket.socket
    environment: Mapping[str, str]
    mark: _EnvironmentMark
    children: list[_Child] = field(default_factory=list)

    def serve(self) -> Mapping[str, Any] | None:
        """Serve until the other end of the socket is closed; in a child, return its request."""
        known = set(_open_files())
        reported: set[int] = set()
        while True:
            waiting = [one.handle for one in self.children if one.pid not in reported]
            sockets = [one.status for one in self.children]
            watched: list[int | socket.socket] = [self.requests, *waiting, *sockets]
            readable, _, _ = select.select(watched, [], [])
            for child in list(self.children):
                if child.handle in readable and child.pid not in reported:
                    reported.add(child.pid)
                    _report_end(child)
                if child.status in readable:  # the other end is closed: nobody asks any more
                    _forget(child, is_over=child.pid in reported)
                    reported.discard(child.pid)
                    self.children.remove(child)
            if self.requests not in readable:
                continue
            request, goes_on = self._accept(known)
            if not goes_on:
                return request

    def _accept(self, known: set[int]) -> tuple[Mapping[str, Any] | None, bool]:
        """Fork the child of one request; return the request, and whether to go on serving.

        The child does not, nor does the server if there are no more requests: then it is None.
        """
        size = socket.CMSG_SPACE(_DESCRIPTORS * array.array("i").itemsize)
        text, rights, _, _ = self.requests.recvmsg(MESSAGE_SIZE, size)
        if not text:
            return None, False
        found = array.array("i")
        for _, _, content in rights:
            found.frombytes(content)
        *streams, status, folder = found
        request = json.loads(text)
        connection = socket.socket(fileno=status)
        if not self._fork(connection):
            self._become_child(request, streams, folder, connection.detach(), known)
            return request, False
        for descriptor in (*streams, folder):
            os.close(descriptor)
        return request, True

    def _fork(self, connection: socket.socket) -> bool:
        """Fork, and watch the child, unless the system refuses; False in the child."""
        pid = 0
        try:
            pid = os.fork()
            if not pid:
                return False
            handle = os.pidfd_open(pid)
            self.children.append(_Child(pid=pid, handle=handle, status=connection))
        except OSError as error:  # too many processes or descriptors, or no memory
            with suppress(OSError), connection:
                connection.sendall(REFUSED + b" " + str(error.strerror).encode())
            if pid:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        return True

    def _become_child(
        self,
        request: Mapping[str, Any],
        streams: list[int],
        folder: int,
        status: int,
        known: set[int],
    ) -> None:
        """Become what a new process is at its start."""
        os.setsid()
        self.mark.write(request["mark"])
        _restore_environment({**self.environment, CHILD_MARK: request["mark"]})
        os.fchdir(folder)
        for number, descriptor in enumerate(streams):
            os.dup2(descriptor, number)
        os.write(status, STARTED + b" %d" % os.getpid())
        for child in self.children:
            child.status.detach()
        _close_others(known - {self.requests.detach()})
        sys.argv[:] = ["-c", str(request["grace"])]
        _draw_new_seeds()


def _restore_environment(environment: Mapping[str, str]) -> None:
    for name in set(os.environ) - set(environment):
        del os.environ[name]
    for name, value in environment.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


def _close_others(kept: set[int]) -> None:
    """Close what belongs to the server and to other children; libraries keep what they opened."""
    for number in _open_files():
        if number >= _FIRST and number not in kept:
            os.close(number)


def _draw_new_seeds() -> None:
    """Seed the global generators of NumPy and torch anew, as their imports do.

    Python's own is seeded by the fork.
    """
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.seed()


def _report_end(child: _Child) -> None:
    """Report the exit status without waiting for the process, so that its id stays in use."""
    result = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    if result is None:
        return
    # as `os.waitpid` encodes it
    exited = result.si_code == os.CLD_EXITED
    status = result.si_status << 8 if exited else result.si_status
    with suppress(OSError):
        child.status.sendall(ENDED + b" %d" % status)


def _forget(child: _Child, *, is_over: bool) -> None:
    child.status.close()
    os.close(child.handle)
    with suppress(ChildProcessError):
        os.waitpid(child.pid, 0 if is_over else os.WNOHANG)
