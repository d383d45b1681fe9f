"""A tiny net, and patches that crash or hang its conversion.

Use one with `--patch modelc.tests.nets.crash_net:hang`.

A patch is made on a copy of the model, so that eager is as it was: the fault happens while the
copy is captured, in the middle of the converter. `probed` is a net whose artifacts die when run.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType

import torch
from torch import Tensor, nn

INPUT = "x:float32[batch=1..4,4]"


class Net(nn.Module):
    """One layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 4) to (batch, 3)."""
        found: Tensor = torch.tanh(self.layer(x))
        return found


def net() -> nn.Module:
    """Build the net; the same weights each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Net()


def _captured() -> bool:
    return _traced() or torch.compiler.is_exporting()


def _traced() -> bool:
    return bool(torch.jit.is_tracing())  # type: ignore[attr-defined,no-untyped-call]  # torch's


def _while_captured(happens: Callable[[], object]) -> Callable[[nn.Module], None]:
    """A patch: the copy's forward does that while it is traced or exported."""

    def patch(model: nn.Module) -> None:
        class Faulty(Net):
            def forward(self, x: Tensor) -> Tensor:
                if _captured():
                    happens()
                return super().forward(x)

        model.__class__ = Faulty

    return patch


def _segfault() -> None:
    ctypes.string_at(0)


def _hang() -> None:
    while True:
        time.sleep(1)


def _hang_in_native_code() -> None:
    """Holds the interpreter, as a library in C that loops does."""
    ctypes.PyDLL(None).sleep(ctypes.c_uint(3600))


def _grow() -> None:
    held = []
    while True:
        held.append(os.urandom(1 << 24))
        time.sleep(0.01)


def _shout() -> None:
    line = (b"never done" * 400 + b"\n") * 16
    while True:
        os.write(1, line)


def untraceable(model: nn.Module) -> None:
    """A patch: the copy dies where it is traced, and can be exported."""

    class Faulty(Net):
        def forward(self, x: Tensor) -> Tensor:
            if _traced():
                _segfault()
            return super().forward(x)

    model.__class__ = Faulty


def untraced(model: nn.Module) -> None:
    """A patch: the copy says so and hangs where it is traced, and can be exported."""

    class Faulty(Net):
        def forward(self, x: Tensor) -> Tensor:
            if _traced():
                os.write(1, b"hangs\n")
                _hang()
            return super().forward(x)

    model.__class__ = Faulty


segfault = _while_captured(_segfault)
abort = _while_captured(os.abort)
leave = _while_captured(lambda: os._exit(3))
killed = _while_captured(lambda: os.kill(os.getpid(), signal.SIGKILL))
hang = _while_captured(_hang)
stuck = _while_captured(_hang_in_native_code)
grow = _while_captured(_grow)
shout = _while_captured(_shout)

_library = torch.library.Library("modelc_dying", "DEF")  # type: ignore[no-untyped-call]
_library.define("pass_on(Tensor x) -> Tensor")  # type: ignore[no-untyped-call]


def _pass_on(x: Tensor) -> Tensor:
    """As a bad kernel: it dies where no forward in Python called it, as in an artifact's run."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_name != "forward":
        frame = frame.f_back
    if frame is None and not _captured():
        _segfault()
    return x.clone()


_library.impl("pass_on", _pass_on, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]  # torch's


class Probed(Net):
    """The net with an operator that kills the process that runs its artifact."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 4) to (batch, 3)."""
        found: Tensor = torch.ops.modelc_dying.pass_on(super().forward(x))
        return found


def probed() -> nn.Module:
    """Build the net whose artifacts die."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Probed()


def dies_at_once() -> nn.Module:
    """A factory that takes the process with it."""
    _segfault()
    return net()


def tells_how_threads_wait() -> nn.Module:
    """A factory that fails with what OpenMP was told before torch was loaded."""
    raise RuntimeError(f"threads wait: {os.environ.get('OMP_WAIT_POLICY')}")
