"""Call a Python function in a child process."""

from __future__ import annotations

import os
import pickle
import struct
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from .fork_server import IMPORT_ROOT, ForkServer
from .messages import (
    Interrupted,
    NewProcessNeeded,
    Returned,
    StoppedByError,
    decode_message,
    encode_message,
    message_types,
)
from .processes import OutputLog, ProcessEnd, ProcessSpec, Watch, run_process

OnMessage: TypeAlias = Callable[[Any], object]
CallEnd: TypeAlias = Returned | StoppedByError | Interrupted | ProcessEnd
LENGTH_PREFIX = struct.Struct("<Q")  # the number of bytes that follow
# Nothing in the working folder may shadow the standard library on the way to modelc.
_START_CODE = (
    "import sys; sys.path.insert(0, sys.argv.pop(1));"
    " from modelc.core.children.child_main import leave_process, main;"
    " leave_process(main(float(sys.argv[1])))"
)
PYTHON: tuple[str, ...] = (sys.executable,)


@dataclass(frozen=True, kw_only=True)
class ChildCall:
    """A function to call in a child.

    `function` is called with `argument` and with the child's side of the connection. Both are
    pickled, so the function must be importable. `messages` are the types that it may send and
    return, beside events. `threads` limits each runtime. `quiet` ignores Python warnings.
    `python` is the interpreter with its options.
    """

    function: Callable[..., object]
    argument: object
    messages: tuple[type, ...] = ()
    environment: Mapping[str, str] | None = None
    threads: int | None = None
    grace: float = 5.0
    quiet: bool = False
    python: tuple[str, ...] = PYTHON


@dataclass(frozen=True, kw_only=True)
class CallRequest:
    """What the child reads first: where to import from, and the pickled call."""

    call: bytes
    path: tuple[str, ...]
    absent: tuple[str, ...]  # modules whose import fails in the parent, too
    threads: int | None


def run_in_child(
    call: ChildCall,
    on_message: OnMessage,
    *,
    log: OutputLog | None = None,
    watch: Watch = lambda _: None,
    server: ForkServer | None = None,
) -> CallEnd:
    """Call the function in a child, and return how that ended: a ProcessEnd where it died.

    Args:
        call: the function.
        on_message: gets what the function sends.
        log: collects what the child prints, and lines of its channel that are not messages.
        watch: polled with the process id; returns the limit that the process exceeds.
        server: forks the child if the call is the same there; else a new process is started.

    Raises:
        KeyboardInterrupt: this process was interrupted; nothing of the child is left.
        OSError: the child cannot be started.
    """
    log = OutputLog() if log is None else log
    accepted = message_types(call.messages)
    ends: list[Returned | StoppedByError | Interrupted | NewProcessNeeded] = []

    def on_line(line: bytes) -> bool:
        try:
            message = decode_message(line, accepted)
        except ValueError:  # something else in the child writes to the pipe
            log.add(line + b"\n")
            return False
        if isinstance(message, Returned | StoppedByError | Interrupted | NewProcessNeeded):
            ends.append(message)
            return True
        on_message(message)
        return False

    end = run_process(_spec_of(call, server), on_line, log=log, watch=watch)
    if not ends:
        return replace(end, tail=log.last_lines())
    if isinstance(ends[0], NewProcessNeeded):
        return run_in_child(call, on_message, log=log, watch=watch)
    return ends[0]


def _spec_of(call: ChildCall, server: ForkServer | None) -> ProcessSpec:
    modules: Mapping[str, object] = sys.modules
    request = CallRequest(
        call=pickle.dumps((call.function, call.argument)),
        path=tuple(sys.path),
        absent=tuple(name for name, module in modules.items() if module is None),
        threads=call.threads,
    )
    content = pickle.dumps(request)
    flags = ("-P", *(("-W", "ignore") if call.quiet else ()))
    return ProcessSpec(
        command=(*call.python, *flags, "-c", _START_CODE, str(IMPORT_ROOT), str(call.grace)),
        environment=call.environment,
        request=LENGTH_PREFIX.pack(len(content)) + content,
        leads_session=True,
        grace=call.grace,
        server=server if _can_fork(call, server) else None,
    )


def _can_fork(call: ChildCall, server: ForkServer | None) -> bool:
    """Return whether the server's interpreter was started as that of the call would be."""
    same = call.python == PYTHON and not call.quiet
    return server is not None and same and server.threads == call.threads


class ParentConnection:
    """The child's side of the connection, handed to the function that runs in the child."""

    def __init__(self, channel: int, lifeline: int) -> None:
        from threading import Lock

        self._channel, self._lifeline = channel, lifeline
        self._lock = Lock()  # runtimes report progress from threads of their own

    def send(self, message: object) -> None:
        """Send one message whole."""
        left = memoryview(encode_message(message))
        with self._lock:
            while left:
                left = left[os.write(self._channel, left) :]

    def on_stop(self, stop: Callable[[], object]) -> None:
        """Call `stop`, in a thread, once the parent asks the child to stop or is gone."""
        from threading import Thread

        def wait() -> None:
            while os.read(self._lifeline, 1 << 10):
                pass
            stop()

        Thread(target=wait, daemon=True, name="modelc-lifeline").start()
