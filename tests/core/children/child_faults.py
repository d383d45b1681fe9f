"""Functions that tests call in a child process: most of them end it, or try to outlive it."""

from __future__ import annotations

import builtins
import ctypes
import gc
import os
import resource
import signal
import subprocess
import sys
import time
import warnings
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


def describe_process(_: None, __: ParentConnection) -> dict[str, Any]:
    """What a process has inherited, but for what differs between any two."""
    import numpy  # noqa: F401 - it changes the filters of warnings

    status = dict(
        line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines()
    )
    kept = ("Umask", "SigBlk", "SigIgn", "SigCgt", "Cpus_allowed", "NoNewPrivs")
    kinds = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
    return {
        **{name: status[name] for name in kept},
        "environment": {k: v for k, v in os.environ.items() if k != "MODELC_WORKER"},
        "folder": str(Path.cwd()),
        "limits": [resource.getrlimit(kind) for kind in kinds],
        "descriptors": sorted(int(one.name) for one in Path("/proc/self/fd").iterdir()),
        "leads": os.getsid(0) == os.getpgid(0) == os.getpid(),
        "argv": sys.argv,
        "flags": list(sys.flags),
        "warnings": [str(one[:3]) for one in warnings.filters],
        "path": sys.path,
        "streams": [(one.encoding, one.errors, one.line_buffering) for one in _streams()],
        "priority": os.getpriority(os.PRIO_PROCESS, 0),
        "gc": [gc.isenabled(), *gc.get_threshold()],
        "recursion": sys.getrecursionlimit(),
        "hooks": [str(type(one)) for one in sys.meta_path],
    }


def _streams() -> list[Any]:
    return [sys.stdin, sys.stdout, sys.stderr]


def describe_torch(_: None, __: ParentConnection) -> dict[str, Any]:
    """The state of torch and NumPy that a result depends on."""
    import numpy as np
    import torch

    return {
        "dtype": str(torch.get_default_dtype()),
        "device": str(torch.get_default_device()),
        "threads": torch.get_num_threads(),
        "between": torch.get_num_interop_threads(),
        "precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "grad": torch.is_grad_enabled(),
        "error": np.geterr(),
        "print": str(np.get_printoptions()),
    }


def draw_numbers(_: None, __: ParentConnection) -> dict[str, Any]:
    import random

    import numpy as np
    import torch

    return {
        "python": random.random(),
        "numpy": float(np.random.rand()),
        "torch": float(torch.rand(())),
    }


def read_mark(_: None, __: ParentConnection) -> dict[str, Any]:
    """The mark of this process as itself and as others see it, and its parent."""
    block = Path("/proc/self/environ").read_bytes().split(b"\0")
    seen = [one.decode() for one in block if one.startswith(b"MODELC_WORKER=")]
    return {"own": os.environ["MODELC_WORKER"], "seen": seen, "parent": os.getppid()}


def escape(_: None, parent: ParentConnection) -> None:
    """Leave a process in a session of its own whose parent is gone, without a new program."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            parent.send(Noted(text=str(os.getpid())))
            time.sleep(LONG)
        time.sleep(0.5)
        os._exit(0)
    os.wait()


def leak_everything(place: str, _: ParentConnection) -> None:
    """Change all that a process has, as the code of a model may."""
    import threading

    import numpy as np
    import torch

    os.chdir(place)
    os.umask(0o777)
    os.environ["MODELC_TEST_LEAK"] = "1"
    os.environ.pop("OMP_WAIT_POLICY", None)
    sys.path.insert(0, place)
    sys.modules["leaked"] = sys.modules[__name__]
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    threading.Thread(target=time.sleep, args=(LONG,), daemon=True).start()
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    torch.set_num_threads(1)
    torch.manual_seed(5)
    np.random.seed(5)
    np.seterr(all="raise")
    torch.nn.functional.relu = torch.sigmoid  # type: ignore[assignment]
    torch.use_deterministic_algorithms(True)
    os.open(place, os.O_RDONLY)


CHANGES = ("variable", "function", "method", "dtype", "device", "module", "hook", "finder")


def change_before_libraries_load(  # noqa: C901 - a case for each change
    what: str, parent: ParentConnection
) -> dict[str, Any]:
    """Change what libraries see when they are imported, as the user's code may."""
    from modelc.checkpoints.user_code import make_user_code_importable

    with make_user_code_importable():
        import torch

        match what:
            case "variable":
                os.environ["TORCH_LOGS"] = "+dynamo"
            case "function":
                torch.nn.functional.relu = torch.sigmoid  # type: ignore[assignment]
            case "method":
                torch.Tensor.relu = torch.Tensor.sigmoid  # type: ignore[method-assign]
            case "dtype":
                torch.set_default_dtype(torch.float64)
            case "device":
                torch.set_default_device("meta")
            case "module":
                sys.modules["torch.nn.functional"] = sys.modules["torch.nn"]
            case "hook":
                builtins.__import__ = _imported(builtins.__import__)
            case "finder":
                sys.meta_path.insert(0, _Finder())
    parent.send(Noted(text="went on"))
    return read_mark(None, parent)


def _imported(real: Any) -> Any:
    def find(*args: Any, **more: Any) -> Any:
        return real(*args, **more)

    return find


class _Finder:
    def find_spec(self, *_: object) -> None:
        return None


def kill_the_server(_: None, parent: ParentConnection) -> dict[str, Any]:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(0.3)
    parent.send(Noted(text="alive"))
    return {"value": 5}


def kill_the_server_and_fail(_: None, __: ParentConnection) -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(0.3)
    os._exit(3)


def fill_memory(_: None, __: ParentConnection) -> None:
    held = [bytearray(b"x" * (400 << 20))]
    time.sleep(LONG)
    del held
