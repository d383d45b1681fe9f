"""State of this process: signals, threads of runtimes, and garbage collection."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

_MAX_SIGNALS = 2  # the first ends the work, the second ends waiting for it; more could only do harm
_signals: list[int] = []
_signal_state = {"heeded": False, "held": 0}


class StopCallError(BaseException):
    """Raised by modelc to end a call of the user's code. No `Exception`: models catch these."""


def is_running(process: int) -> bool:
    """Return whether a process exists; True where that cannot be asked without harm."""
    if os.name != "posix":
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # it belongs to another user
    return True


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def handle_signals(numbers: tuple[signal.Signals, ...]) -> None:
    """Have these signals raise KeyboardInterrupt and be remembered; an ignored one stays so."""
    _signal_state["heeded"] = True
    for number in numbers:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _on_signal)


def signals_so_far() -> tuple[int, ...]:
    """The signals so far, the first one first."""
    return tuple(_signals)


def is_from_user_code(error: BaseException) -> bool:
    """Whether what is no `Exception` came from the user's code: not from a signal, nor from us."""
    if isinstance(error, KeyboardInterrupt):
        return bool(_signal_state["heeded"]) and not _signals
    return not isinstance(error, (Exception, StopCallError))


@contextmanager
def defer_signals() -> Iterator[None]:
    """Let no signal break the block off; one that came meanwhile is raised behind it.

    Raises:
        KeyboardInterrupt: a signal came within the block.
    """
    before = len(_signals)
    _signal_state["held"] += 1
    try:
        yield
    finally:
        _signal_state["held"] -= 1
    if len(_signals) > before and not _signal_state["held"]:
        raise KeyboardInterrupt


@contextmanager
def end_forked_copies() -> Iterator[None]:
    """End a copy of this process that the user's code made by `os.fork` within the block.

    It would do the parent's work once more, and take the parent's files away.
    """
    process = os.getpid()
    try:
        yield
    finally:
        if os.getpid() != process:
            os._exit(0)


def _on_signal(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - a signal handler
    _signals.append(number)
    if not _signal_state["held"] and len(_signals) <= _MAX_SIGNALS:
        raise KeyboardInterrupt


THREAD_VARIABLES = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS", "BLIS_NUM_THREADS", "TBB_NUM_THREADS", "RAYON_NUM_THREADS",
)  # fmt: skip
WAIT_VARIABLE = "OMP_WAIT_POLICY"
_thread_limits: list[int] = []


def sleep_while_waiting() -> None:
    """Have threads of OpenMP sleep where they wait, unless the user's environment says how.

    As a rule they spin, and two processes on the same cores then wait for each other: several times
    the seconds of both. To be called before torch is loaded.
    """
    os.environ.setdefault(WAIT_VARIABLE, "PASSIVE")


def thread_environment(threads: int) -> Mapping[str, str]:
    """What to set in the environment of a process before its libraries are loaded."""
    return dict.fromkeys(THREAD_VARIABLES, str(threads))


def limit_threads(threads: int) -> None:
    """Hold the runtimes that are opened in this process from now on to so many threads."""
    _thread_limits[:] = [threads]


def thread_limit() -> int | None:
    """How many threads a runtime may start; None leaves that to it."""
    return _thread_limits[0] if _thread_limits else None


# Young objects before a collection, and the rarity of the older generations. Python's own
# (700, 10, 10) costs an eighth of a ResNet-50 export (benchmarks/export.py); never collecting
# gains no more than this.
_GC_THRESHOLD = (100_000, 50, 50)


@contextmanager
def relax_gc() -> Iterator[None]:
    """Raise the collector's thresholds for the block."""
    before = gc.get_threshold()
    gc.set_threshold(*_GC_THRESHOLD)
    try:
        yield
    finally:
        gc.set_threshold(*before)
