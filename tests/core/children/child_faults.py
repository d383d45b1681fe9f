"""Functions that tests call in a child process: most of them end it, or try to outlive it."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from modelc.core.children.child_call import ParentConnection
from modelc.core.errors import ErrorCode, MissingError
from modelc.core.events import Noted

LONG = 600.0  # seconds; no test takes as long


def double(number: int, parent: ParentConnection) -> int:
    parent.send(Noted(text=f"doubling {number}"))
    return 2 * number


def tell_much(count: int, parent: ParentConnection) -> str:
    for number in range(count):
        parent.send(Noted(text=str(number)))
    return "x" * (1 << 20)  # much more than a pipe holds


def lack(_: None, __: ParentConnection) -> None:
    raise MissingError("no device", hint="buy one", code=ErrorCode.NO_EFFECT, option="device")


def fail(_: None, __: ParentConnection) -> None:
    raise KeyError("gone")


def segfault(_: None, __: ParentConnection) -> None:
    ctypes.string_at(0)


def leave(code: int, _: ParentConnection) -> None:
    os._exit(code)


def kill_itself(number: int, _: ParentConnection) -> None:
    os.kill(os.getpid(), number)
    time.sleep(LONG)


def close_pipes(then: str, _: ParentConnection) -> None:
    os.closerange(0, 64)
    if then == "hang":
        time.sleep(LONG)
    os._exit(0)


def write_garbage(_: None, parent: ParentConnection) -> int:
    channel = parent._channel
    lines = (b"chatter", b'["Noted"', b'["Noted", {"text": 3}]', b"\xff\xfe", b"[" * 100_000)
    os.write(channel, b"\n".join(lines) + b"\n")
    return 5


def cut_a_message(_: None, parent: ParentConnection) -> None:
    os.write(parent._channel, b'["return int", 1')
    os._exit(0)


def leave_a_grandchild(code: int, parent: ParentConnection) -> None:
    """Start a process that holds every pipe open, in a session of its own, and leave."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        time.sleep(LONG)
        os._exit(0)
    parent.send(Noted(text=str(pid)))
    os._exit(code)


def start_and_return(_: None, __: ParentConnection) -> int:
    sleeper = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({LONG})"])
    return sleeper.pid


def ignore_stop(_: None, parent: ParentConnection) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    parent.send(Noted(text=str(os.getpid())))
    time.sleep(LONG)


def stop_when_asked(path: str, parent: ParentConnection) -> None:
    try:
        parent.send(Noted(text="up"))
        time.sleep(LONG)
    except KeyboardInterrupt:
        Path(path).write_text("cleaned up")
        raise


def hang_in_native_code(_: None, parent: ParentConnection) -> None:
    parent.send(Noted(text=str(os.getpid())))
    for _turn in range(2):  # the first signal may interrupt a call
        ctypes.PyDLL(None).sleep(ctypes.c_uint(int(LONG)))  # holds the interpreter


def shout(size: int, _: ParentConnection) -> int:
    os.write(1, b"first\n")
    for _turn in range(size >> 10):
        os.write(2, b"." * 1023 + b"\n")
    os.write(1, b"last\n")
    return size


def describe_surroundings(_: None, __: ParentConnection) -> dict[str, Any]:
    modules: Mapping[str, object] = dict(sys.modules)
    return {
        "path": sys.path,
        "absent": [name for name, module in modules.items() if module is None],
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "wait": os.environ.get("OMP_WAIT_POLICY"),
        "stdin": os.read(0, 1).decode(),
    }
