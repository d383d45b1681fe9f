"""Limits on one run of eager, counted in steps, operators and elements, never in seconds.

Steps are counted, never seconds: lines of Python, calls, and the operators of TorchScript. The same
run is ended, or not, on every machine.
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
from typing import TYPE_CHECKING, Any

from ..core.errors import CheckpointError
from ..core.process import StopCallError
from ..core.torch_tools import intercept_operators

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from torch.utils._python_dispatch import TorchDispatchMode

_CHECK_INTERVAL = 8  # turns of a loop: what waits for a thread is raised at the end of one
_REPEAT_SECONDS = 1.0  # seconds until the call is told once more: a bare except may have taken it
_IMPORT = "_find_and_load"  # of importlib: what runs in it is an import
_OURS = tuple(str(Path(__file__).parents[1] / name) for name in ("capture", "checkpoints"))
_OWN, _TORCH, _USERS = "own", "torch", "user"


class DeadlineExceededError(StopCallError):
    """It takes too many steps."""


@contextmanager
def limit_steps(watch: StepCounter) -> Iterator[None]:
    """End the code in the block when the watch has counted so many steps as it allows.

    What runs is Python: it is ended at its next instruction. One operator that takes for ever is
    not ended, and a loop within TorchScript only in `make_step_mode`.

    Raises:
        DeadlineExceededError: it took more.
    """
    try:
        with _trace_calls(watch):
            yield
    finally:
        while not watch.ended:  # what was told and not heard before comes now
            with suppress(DeadlineExceededError):
                watch.end()
    if watch.over:
        raise DeadlineExceededError


@contextmanager
def count_steps() -> Iterator[StepCounter]:
    """Count the steps of the code in the block, however many there are."""
    watch = StepCounter(math.inf)
    with _trace_calls(watch):
        yield watch


@contextmanager
def _trace_calls(watch: StepCounter) -> Iterator[None]:
    before = sys.gettrace()
    sys.settrace(watch.enter)
    try:
        yield
    finally:
        sys.settrace(before)


@cache
def _code_owner(file: str) -> str:
    """Whose code it is: of torch's, calls count, and nothing is counted while we clean up."""
    import torch

    if file == contextlib.__file__ or file.startswith(_OURS):
        return _OWN
    return _TORCH if file.startswith(str(Path(torch.__file__).parent)) else _USERS


def make_step_mode(watch: StepCounter) -> TorchDispatchMode:
    """A mode in which every operator passes through Python and counts, those of TorchScript too."""

    def count(func: Any, args: Any, kwargs: Any) -> Any:
        watch.step()
        watch.stop()
        return func(*args, **kwargs)

    return intercept_operators(count)


class StepCounter:
    """Counts the steps of this thread, and tells it to end `again` until it has ended."""

    def __init__(self, most: float, *, again: float = _REPEAT_SECONDS) -> None:
        self._thread, self._most, self._again = threading.get_ident(), most, again
        self.steps = 0
        self.over = False  # whether it took more
        self._lock, self._ended = threading.Lock(), threading.Event()
        self.ended = False
        self._imports = 0  # that run now: they are done once, and must not be broken off

    def step(self) -> None:
        """Count one; from the last that is allowed on, the thread is told again and again."""
        if self._imports:
            return
        self.steps += 1
        if self.steps > self._most and not self.over:
            self.over = True
            threading.Thread(target=self._interrupt, daemon=True, name="modelc-patience").start()

    def stop(self) -> None:
        """Raise where it was too much; the interpreter traces no more then.

        Raises:
            DeadlineExceededError: it was.
        """
        if self.over and not self._imports:
            raise DeadlineExceededError

    def enter(self, frame: FrameType, *_: object) -> Callable[..., Any] | None:
        """Count a call, and the lines of its code where it is the user's."""
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
            self.stop()  # in the user's code: ours and torch's put away what they hold
        return self._follow

    def _interrupt(self) -> None:
        while not self._ended.wait(self._again):
            with self._lock:  # not while it ends: then nobody would be there to take it
                if not self._ended.is_set():
                    _raise_in_thread(self._thread, DeadlineExceededError)

    def end(self) -> None:
        """No word any more; one that was given and not heard yet is raised in here."""
        with self._lock:
            self._ended.set()
        for _ in range(_CHECK_INTERVAL):
            pass
        self.ended = True


def _raise_in_thread(thread: int, kind: type[BaseException]) -> None:
    """Have the thread raise this at its next instruction.

    It is never taken back by a None: CPython 3.11 would go on looking for what it was told of, and
    hang in the next function that is traced.
    """
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(kind))


# How much work eager does on a feed: counts of operators and of elements, never of seconds.


@dataclass(frozen=True, kw_only=True)
class Work:
    """The operators that ran, and the elements of the largest tensor that one of them gave."""

    operators: int
    elements: int


class MoreWorkError(CheckpointError):
    """Eager takes a feed, but for the work that it is."""


class WorkExceededError(StopCallError):
    """More work than allowed."""


class Meter:
    """Counts work and stops a run that does more than `most`; None allows any."""

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
        """Count one operator and what it gave.

        Raises:
            WorkExceededError: it is more than allowed.
        """
        import torch

        self._operators += 1
        for one in value if isinstance(value, tuple | list) else (value,):
            if isinstance(one, torch.Tensor):
                self._elements = max(self._elements, one.numel())
        most = self._most
        if most is None:
            return
        if self._operators > most.operators or self._elements > most.elements:
            self.exceeded = True
            raise WorkExceededError


# Operators that ask whether a number is NaN or Inf, or that leave these out.
_NONFINITE_QUERIES = ("isnan", "isinf", "isposinf", "isneginf", "nan_to_num", "nansum", "nanmedian")


def watch_nonfinite_queries(found: list[str]) -> TorchDispatchMode:
    """A mode that lists the operators that ask about NaN or Inf; `x != x` is one of them."""

    def note_query(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        name = func.overloadpacket.__name__.removesuffix("_")
        itself = name in ("eq", "ne") and len(args) > 1 and args[0] is args[1]
        if name in _NONFINITE_QUERIES or itself:
            found.append(name)
        return func(*args, **kwargs)

    return intercept_operators(note_query)


def make_meter_mode(meter: Meter) -> TorchDispatchMode:
    """A mode in which `meter` counts every operator, those of TorchScript too."""

    def count(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        value = func(*args, **kwargs)
        meter.add(value)
        return value

    return intercept_operators(count)


def flops_exceed(run: Callable[[], object], most: int) -> bool:
    """Whether a run does more floating point operations, in products, convolutions, attentions.

    It is stopped where it does.
    """
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)

    def count(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if counter.get_total_flops() > most:
            raise WorkExceededError
        return func(*args, **kwargs)

    with counter, intercept_operators(count):
        try:
            run()
        except WorkExceededError:
            return True
    return int(counter.get_total_flops()) > most
