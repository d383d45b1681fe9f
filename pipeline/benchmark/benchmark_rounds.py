"""Measure the rows of a benchmark in turns: one child per row, one of which runs at a time."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, Queue
from random import Random
from threading import Thread
from typing import TypeAlias, TypeVar

import psutil

from ...core.children.child_call import ChildCall, ParentConnection, run_in_child
from ...core.children.limits import LimitExceeded
from ...core.children.messages import Returned, StoppedByError
from ...core.children.processes import OutputLog, ProcessEnd
from ...core.errors import ErrorCode
from ...core.events import Started
from ..run_progress import Progress
from .benchmark_machine import LoadWatch
from .benchmark_plan import BenchmarkPoint
from .benchmark_records import EAGER_ROW
from .row_models import RowRequest
from .row_server import (
    MESSAGES,
    PointWarm,
    RowClosed,
    RowOpened,
    TurnTimes,
    serve_row,
)
from .timed_turns import plan_rounds

LOG = "benchmark"
ALL_POINTS = "all points"  # the title of the measurement as a whole
_POLL = 0.2  # seconds
_GRACE = 2.0  # seconds that a child has to end
_SEED = 0
_ROOM, _SPARE = 1.5, 0.05  # of the largest row's memory, and of all, that must be left for another
_Message = TypeVar("_Message")
Serve: TypeAlias = Callable[[RowRequest, ParentConnection], RowClosed]


class RowFailureError(Exception):
    """A row's child reported an error, or died; the message says which.

    `absent`: the row does not exist on this host.
    """

    def __init__(self, message: str, *, absent: bool = False) -> None:
        super().__init__(message)
        self.absent = absent


@dataclass(kw_only=True)
class MeasuredRow:
    """What was measured of one row; `turns` are the milliseconds of each point's rounds.

    `opening` is the seconds to start its process, open the model and warm it up at all points.
    `absent` is why there is no such row on this host, `failure` why it could not be measured.
    """

    opened: RowOpened | None = None
    warm: dict[int, PointWarm] = field(default_factory=dict)
    turns: dict[int, list[tuple[float, ...]]] = field(default_factory=dict)
    opening: float = 0.0
    memory: int = 0
    failure: str = ""
    absent: str = ""


class RowChild:
    """The child process of one row, and the pipe of its orders."""

    def __init__(
        self, request: RowRequest, threads: int, serve: Serve, timeout: float | None
    ) -> None:
        self._name, self._pipe = request.row.name, request.orders
        os.mkfifo(request.orders)
        self._orders = os.open(request.orders, os.O_RDWR)  # opened for reading, it would block
        self._answers: Queue[object] = Queue()
        self._log = OutputLog()
        self._stopped = False
        self._timeout = timeout
        self._since: float | None = None  # when an answer was first awaited
        call = ChildCall(
            function=serve, argument=request, messages=MESSAGES, threads=threads,
            grace=_GRACE, quiet=True,
        )  # fmt: skip
        self._thread = Thread(target=self._run, args=(call,), name=f"benchmark-{self._name}")
        self._thread.start()

    def _run(self, call: ChildCall) -> None:
        try:
            end: object = run_in_child(call, self._answers.put, log=self._log, watch=self._watch)
        except BaseException as error:  # noqa: BLE001 - it is raised where the answer is awaited
            end = error
        self._answers.put(end)

    def _watch(self, _: int) -> LimitExceeded | None:
        if self._stopped:
            return LimitExceeded(text="the benchmark ended", hint="")
        if self._timeout is None or self._since is None:
            return None
        if time.monotonic() - self._since <= self._timeout:
            return None
        return LimitExceeded(text=f"no answer within {self._timeout:g} s", hint="")

    def order(self, point: int, seconds: float) -> None:
        """Have the child run a point for so many seconds; 0 warms it up."""
        os.write(self._orders, json.dumps({"point": point, "seconds": seconds}).encode() + b"\n")

    def answer(self, kind: type[_Message]) -> _Message:
        """Wait for the next answer.

        Raises:
            RowFailureError: the child reported an error, died, or took longer than the timeout.
        """
        self._since = time.monotonic()
        while True:
            with suppress(Empty):
                found = self._answers.get(timeout=_POLL)  # a signal is handled in between
                break
        self._since = None
        if isinstance(found, kind):
            return found
        if isinstance(found, Returned) and isinstance(found.value, kind):
            return found.value
        absent = isinstance(found, StoppedByError) and found.code is ErrorCode.NO_EFFECT
        raise RowFailureError(_describe_end(found, self._log), absent=absent)

    def close(self) -> int:
        """End the orders; return the peak memory of the child, 0 if it had died before."""
        self._close_orders()
        try:
            return self.answer(RowClosed).memory
        except RowFailureError:
            return 0
        finally:
            self._thread.join()

    def kill(self) -> None:
        """End the child at once."""
        self._stopped = True
        self._close_orders()
        self._thread.join()

    def _close_orders(self) -> None:
        if self._orders >= 0:
            os.close(self._orders)
            self._pipe.unlink(missing_ok=True)
            self._orders = -1


def _describe_end(end: object, log: OutputLog) -> str:
    match end:
        case StoppedByError():
            return end.message
        case ProcessEnd() if end.overrun is not None:
            return end.overrun.text
        case ProcessEnd():
            words = " | ".join(log.last_lines()[-2:])
            return f"its process died ({end.name})" + (f": {words}" if words else "")
        case BaseException():
            raise end
    return f"its process ended early ({type(end).__name__})"


def measure_rows(  # noqa: PLR0913 - how rows are measured
    requests: Sequence[RowRequest],
    points: Sequence[BenchmarkPoint],
    *,
    seconds: float,
    threads: int,
    watch: LoadWatch,
    progress: Progress,
    serve: Serve = serve_row,
    timeout: float | None = None,
) -> tuple[dict[str, MeasuredRow], ...]:
    """Open every row, warm it up at every point, then measure all in rounds of changing order.

    Where memory is short, rows are measured in several groups, each with the eager row.

    Args:
        requests: the rows.
        points: the points, in the order of the requests' feeds.
        seconds: of each row at each point.
        threads: the limit of each runtime.
        watch: measures what else runs on the machine.
        progress: receives progress.
        serve: what each child does.
        timeout: seconds after which a child without an answer is ended.

    Returns:
        what was measured, by row, of each group.

    Raises:
        KeyboardInterrupt: this process was interrupted; no child is left.
    """
    waiting = [one for one in requests if one.row.name != EAGER_ROW]
    shared = [one for one in requests if one.row.name == EAGER_ROW]
    groups: list[dict[str, MeasuredRow]] = []
    while waiting or not groups:
        run = _BenchmarkRun(watch=watch, progress=progress, serve=serve, timeout=timeout)
        try:
            used = [run.open(request, threads, len(points)) for request in shared]
            while waiting and (len(used) == len(shared) or _has_room(used)):
                used.append(run.open(waiting.pop(0), threads, len(points)))
            if len(points) > 1:
                progress.tell(Started(step=ALL_POINTS))
            for index, point in enumerate(points):
                run.measure(index, point, seconds)
                progress.advance(ALL_POINTS, index + 1, len(points))
            for name, child in run.children.items():
                run.rows[name].memory = child.close()
        finally:
            for child in run.children.values():
                child.kill()
        groups.append(run.rows)
    return tuple(groups)


def _has_room(used: Sequence[int]) -> bool:
    """Return whether a row as large as the largest one fits in memory beside the others."""
    memory = psutil.virtual_memory()
    return bool(memory.available > _ROOM * max(used) + _SPARE * memory.total)


@dataclass(frozen=True, kw_only=True)
class _BenchmarkRun:
    """The children that are alive, and what was measured of all rows."""

    watch: LoadWatch
    progress: Progress
    serve: Serve
    timeout: float | None
    children: dict[str, RowChild] = field(default_factory=dict)
    rows: dict[str, MeasuredRow] = field(default_factory=dict)

    def open(self, request: RowRequest, threads: int, points: int) -> int:
        """Start the child of a row and warm it up, while the others are idle.

        Return by how many bytes the memory that is left became less.
        """
        before = psutil.virtual_memory().available
        name = request.row.name
        row = self.rows[name] = MeasuredRow()
        began = time.perf_counter()
        with self.progress.step(f"open {name}", log=LOG) as clock:
            child = self.children[name] = RowChild(request, threads, self.serve, self.timeout)
            try:
                row.opened = child.answer(RowOpened)
                for point in range(points):
                    child.order(point, 0.0)
                    row.warm[point] = child.answer(PointWarm)
                clock.detail = _describe_warm(row)
            except RowFailureError as error:
                self._fail(name, error)
                clock.detail, clock.passed = str(error), error.absent
        row.opening = time.perf_counter() - began
        return max(int(before - psutil.virtual_memory().available), 0)

    def measure(self, index: int, point: BenchmarkPoint, seconds: float) -> None:
        """Measure all rows at one point."""
        if not self.children:
            return
        warm = [self.rows[name].warm[index].milliseconds / 1e3 for name in self.children]
        rounds = plan_rounds(seconds, warm)
        turns = dict(zip(self.children, rounds.turns, strict=True))
        title = f"measure {point}" if str(point) else "measure"
        generator = Random(_SEED + index)
        with self.progress.step(title, log=LOG) as clock:
            for number in range(rounds.count):
                names = list(self.children)
                generator.shuffle(names)
                for name in names:
                    self._take_turn(name, index, turns[name])
                self.progress.advance(title, number + 1, rounds.count)
            clock.detail = f"{rounds.count} rounds of {len(self.children)} rows"

    def _take_turn(self, name: str, index: int, seconds: float) -> None:
        child, row = self.children[name], self.rows[name]
        try:
            with self.watch.turn() as turn:
                child.order(index, seconds)
                found = child.answer(TurnTimes)
                turn.cpu = found.cpu
            row.turns.setdefault(index, []).append(found.runs)
        except RowFailureError as error:
            self._fail(name, error)
            self.progress.note(f"{name} failed: {error}", warning=True)

    def _fail(self, name: str, error: RowFailureError) -> None:
        row = self.rows[name]
        row.absent, row.failure = ("", str(error)) if not error.absent else (str(error), "")
        self.children.pop(name).kill()


def _describe_warm(row: MeasuredRow) -> str:
    times = " ".join(f"{one.milliseconds:.3g} ms" for one in row.warm.values())
    unstable = any(not one.stable for one in row.warm.values())
    return times + (", still changing after the warm-up" if unstable else "")
