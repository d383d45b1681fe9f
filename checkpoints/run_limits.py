"""Limits on one run of eager, in steps, operators and elements instead of seconds.

Steps are lines of Python, calls, and operators of TorchScript: the outcome does not depend on the
machine.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeAlias

from ..core.errors import CheckpointError
from ..core.process import StopCallError
from ..core.torch_tools import flatten_tensors, intercept_operators

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.utils._python_dispatch import TorchDispatchMode

TraceFunction: TypeAlias = Callable[[FrameType, str, Any], Any]  # the type for sys.settrace
_CHECK_INTERVAL = 8  # loop iterations: a pending exception is raised at the end of one
_REPEAT_SECONDS = 1.0  # until the exception is raised again: a bare except may have caught it
_IMPORT = "_find_and_load"  # of importlib: the frame of an import
_OURS = tuple(str(Path(__file__).parents[1] / name) for name in ("capture", "checkpoints"))
_OWN, _TORCH, _USERS = "own", "torch", "user"


class DeadlineExceededError(StopCallError):
    """The run exceeds its limit of steps."""


@contextmanager
def limit_steps(counter: StepCounter) -> Iterator[None]:
    """Stop the code in the block when it exceeds the limit of steps.

    Python stops at its next instruction. A single endless operator is not stopped; a loop within
    TorchScript only with `make_step_mode`.

    Raises:
        DeadlineExceededError: the limit was exceeded.
    """
    try:
        with trace_thread(counter.enter):
            yield
    finally:
        while not counter.ended:  # a pending exception is raised here
            with suppress(DeadlineExceededError):
                counter.end()
    if counter.over:
        raise DeadlineExceededError


@contextmanager
def count_steps() -> Iterator[StepCounter]:
    """Count the steps of the code in the block, without a limit."""
    counter = StepCounter(math.inf)
    with trace_thread(counter.enter):
        yield counter


@contextmanager
def trace_thread(enter: TraceFunction) -> Iterator[None]:
    """Trace this thread within the context; `enter` is called for each new frame."""
    before = sys.gettrace()
    sys.settrace(enter)
    try:
        yield
    finally:
        sys.settrace(before)


@cache
def _code_owner(file: str) -> str:
    """Return the owner of a file: only calls count in torch's code, nothing in modelc's."""
    import torch

    if file == contextlib.__file__ or file.startswith(_OURS):
        return _OWN
    return _TORCH if file.startswith(str(Path(torch.__file__).parent)) else _USERS


def make_step_mode(counter: StepCounter) -> TorchDispatchMode:
    """Return a mode that counts every operator as a step, including those of TorchScript."""

    def count(func: Any, args: Any, kwargs: Any) -> Any:
        counter.step()
        counter.stop()
        return func(*args, **kwargs)

    return intercept_operators(count)


class StepCounter:
    """Counts the steps of this thread, and raises an exception in it when there are too many."""

    def __init__(self, most: float, *, repeat_seconds: float = _REPEAT_SECONDS) -> None:
        self._thread, self._most, self._repeat_seconds = threading.get_ident(), most, repeat_seconds
        self.steps = 0
        self.over = False  # whether the limit was exceeded
        self._lock, self._ended = threading.Lock(), threading.Event()
        self.ended = False
        self._imports = 0  # in progress: imports must not be interrupted

    def step(self) -> None:
        """Count one step; beyond the limit, start to raise exceptions in the thread."""
        if self._imports:
            return
        self.steps += 1
        if self.steps > self._most and not self.over:
            self.over = True
            threading.Thread(target=self._interrupt, daemon=True, name="modelc-step-limit").start()

    def stop(self) -> None:
        """Raise if the limit was exceeded.

        Raises:
            DeadlineExceededError: it was.
        """
        if self.over and not self._imports:
            raise DeadlineExceededError

    def enter(self, frame: FrameType, *_: object) -> Callable[..., Any] | None:
        """Count a call, and the lines of its code if it is the user's."""
        if frame.f_code.co_name == _IMPORT and frame.f_code.co_filename.startswith("<frozen"):
            self._imports += 1
            return self._import
        kind = _code_owner(frame.f_code.co_filename)
        if kind == _OWN:
            return None
        self.step()
        return self._follow if kind == _USERS else None

    def _import(self, _: FrameType, event: str, __: object) -> Callable[..., Any]:
        self._imports -= event == "return"
        return self._import

    def _follow(self, _: FrameType, event: str, __: object) -> Callable[..., Any]:
        if event == "line":
            self.step()
            self.stop()  # only in the user's code: modelc's and torch's code cleans up first
        return self._follow

    def _interrupt(self) -> None:
        while not self._ended.wait(self._repeat_seconds):
            with self._lock:  # not while the block ends: nobody would catch it
                if not self._ended.is_set():
                    _raise_in_thread(self._thread, DeadlineExceededError)

    def end(self) -> None:
        """Stop the timer; a pending deadline exception is raised here."""
        with self._lock:
            self._ended.set()
        for _ in range(_CHECK_INTERVAL):
            pass
        self.ended = True


def _raise_in_thread(thread: int, kind: type[BaseException]) -> None:
    """Raise an exception in the thread at its next instruction.

    It is never cancelled with None: CPython 3.11 would hang in the next traced function.
    """
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(kind))


# How much work eager does on a feed: counts of operators and of elements, never of seconds.


@dataclass(frozen=True, kw_only=True)
class Work:
    """The number of operators, and the elements of the largest output of one."""

    operators: int
    elements: int


class MoreWorkError(CheckpointError):
    """Eager accepts the feed, but the run exceeds the limit of work."""


class WorkExceededError(StopCallError):
    """The run exceeds the limit of work."""


class Meter:
    """Counts work and stops a run beyond `most`; None sets no limit."""

    def __init__(self, most: Work | None) -> None:
        self._most = most
        self._operators = 0
        self._elements = 0
        self.exceeded = False

    @property
    def work(self) -> Work:
        """The work so far."""
        return Work(operators=self._operators, elements=self._elements)

    def add(self, value: object) -> None:
        """Count one operator and its output.

        Raises:
            WorkExceededError: the limit is exceeded.
        """
        self._operators += 1
        for one in flatten_tensors((value,)):
            self._elements = max(self._elements, one.numel())
        most = self._most
        if most is None:
            return
        if self._operators > most.operators or self._elements > most.elements:
            self.exceeded = True
            raise WorkExceededError


# Operators that test for NaN or Inf, or skip them.
_NONFINITE_QUERIES = ("isnan", "isinf", "isposinf", "isneginf", "nan_to_num", "nansum", "nanmedian")


def watch_nonfinite_queries(found: list[str]) -> TorchDispatchMode:
    """Return a mode that lists operators which test for NaN or Inf, `x != x` included."""

    def note_query(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        name = func.overloadpacket.__name__.removesuffix("_")
        itself = name in ("eq", "ne") and len(args) > 1 and args[0] is args[1]
        if name in _NONFINITE_QUERIES or itself:
            found.append(name)
        return func(*args, **kwargs)

    return intercept_operators(note_query)


def make_meter_mode(meter: Meter) -> TorchDispatchMode:
    """Return a mode in which `meter` counts every operator, including those of TorchScript."""

    def count(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        value = func(*args, **kwargs)
        meter.add(value)
        return value

    return intercept_operators(count)


def flops_exceed(run: Callable[[], object], most: int) -> bool:
    """Whether a run does more than `most` FLOPs in products, convolutions and attention.

    The run stops at the limit, and at an operator that calls functions, as a loop, except
    `torch.cond`: its work is unknown.
    """
    from torch._ops import HigherOrderOperator
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)

    def count(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        unknown = isinstance(func, HigherOrderOperator) and str(func) != "cond"
        if unknown or counter.get_total_flops() > most:
            raise WorkExceededError
        return func(*args, **kwargs)

    with counter, intercept_operators(count, branches=True):
        try:
            run()
        except WorkExceededError:
            return True
    return int(counter.get_total_flops()) > most
