"""One row of a benchmark in a child process: it opens its model, and runs it on each order.

Children of all rows live at the same time, and one of them runs. A child answers when its threads
are idle again, so that no two thread pools run at once.
"""

from __future__ import annotations

import gc
import json
import os
import re
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

from ...checkpoints.sample_inputs import read_samples
from ...checkpoints.user_code import register_folders
from ...core.children.child_call import ParentConnection
from ...core.contract import Feed
from ...core.nested_values import is_loader_spec
from ...validators.feeds import FeedDrawer
from .row_models import Agreement, Call, RowRequest, open_row

TimedCall: TypeAlias = Callable[[], float]  # returns milliseconds
_IDLE_WINDOW, _MAX_IDLE_WAIT = 0.02, 0.5  # seconds
_IDLE_SHARE = 0.1  # of one core, in a window
_STABLE = 0.03  # relative change of the median between two batches of warm-up runs
_MIN_WARMUP, _MAX_WARMUP = 0.3, 10.0  # seconds


@dataclass(frozen=True, kw_only=True)
class RowOpened:
    """The model is open: `load` are the seconds for it, `first` those of the first run.

    `in_flight` requests run at a time.
    """

    load: float
    first: float
    threads: int
    in_flight: int = 1


@dataclass(frozen=True, kw_only=True)
class PointWarm:
    """The runs at a point are stable at so many milliseconds, or did not become so.

    `sqnr` is the smallest of outputs that differ from eager's, `exact` whether none does.
    """

    point: int
    milliseconds: float
    stable: bool
    sqnr: float | None = None
    exact: bool = False


@dataclass(frozen=True, kw_only=True)
class TurnTimes:
    """Milliseconds of the runs of a turn, and seconds of CPU time until its threads were idle."""

    point: int
    runs: tuple[float, ...]
    cpu: float


@dataclass(frozen=True, kw_only=True)
class RowClosed:
    """The orders have ended: `memory` is the peak of the process in bytes."""

    memory: int


MESSAGES = (RowOpened, PointWarm, TurnTimes, RowClosed)


def serve_row(
    request: RowRequest,
    parent: ParentConnection,
    change: Callable[[Call], Call] = lambda call: call,
) -> RowClosed:
    """Open the row's model and run it by the orders in the pipe, until that is closed.

    An order is a line of JSON: `{"point": 0, "seconds": 0}` warms up, other seconds are a turn.
    `change` replaces the calls that are timed.

    Raises:
        ModelcError: the model cannot be opened or run.
    """
    if request.cores:
        import psutil

        psutil.Process().cpu_affinity(list(request.cores))
    register_folders(request.code_folders)
    began = time.perf_counter()
    with open_row(request) as opened:
        load = time.perf_counter() - began
        feeds = _draw_feeds(request)
        calls = [partial(_time_run, change(opened.prepare(feed)), opened.rounds) for feed in feeds]
        first = calls[0]() * opened.rounds / 1e3
        parent.send(
            RowOpened(load=load, first=first, threads=opened.threads, in_flight=opened.in_flight)
        )
        gc.collect()
        gc.freeze()
        with request.orders.open() as orders:
            for line in orders:
                order = json.loads(line)
                point, seconds = int(order["point"]), float(order["seconds"])
                if seconds:
                    parent.send(_take_turn(point, calls[point], seconds))
                else:
                    parent.send(_warm_up(point, calls[point], opened.check, feeds[point]))
    return RowClosed(memory=_peak_memory())


def _take_turn(point: int, call: TimedCall, seconds: float) -> TurnTimes:
    """Run for so many seconds, at least once; wait until the threads are idle."""
    cpu, began = time.process_time(), time.perf_counter()
    runs = [call()]
    while time.perf_counter() - began < seconds:
        runs.append(call())
    _wait_until_idle()
    return TurnTimes(point=point, runs=tuple(runs), cpu=time.process_time() - cpu)


def _warm_up(
    point: int,
    call: TimedCall,
    check: Callable[[Feed], Agreement],
    feed: Feed,
) -> PointWarm:
    """Run until the medians of two batches of runs agree."""
    from statistics import median

    began, before = time.perf_counter(), 0.0
    while True:
        batch_began = time.perf_counter()
        batch = [call()]
        while time.perf_counter() - batch_began < _MIN_WARMUP / 2:
            batch.append(call())
        now, spent = median(batch), time.perf_counter() - began
        stable = abs(now - before) <= _STABLE * now
        before = now
        if (stable and spent >= _MIN_WARMUP) or spent > _MAX_WARMUP:
            break
    sqnr, exact = check(feed)
    _wait_until_idle()
    return PointWarm(point=point, milliseconds=now, stable=stable, sqnr=sqnr, exact=exact)


def _time_run(call: Call, rounds: int) -> float:
    """Return the milliseconds of one of the `rounds` of a call."""
    began = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - began) / rounds


def _wait_until_idle() -> None:
    """Wait until no thread of this process spins for further work."""
    began = time.perf_counter()
    while time.perf_counter() - began < _MAX_IDLE_WAIT:
        cpu = time.process_time()
        time.sleep(_IDLE_WINDOW)
        if time.process_time() - cpu < _IDLE_SHARE * _IDLE_WINDOW:
            return


def _draw_feeds(request: RowRequest) -> list[Feed]:
    """Draw the feed of each point, of values like the user's samples; each child draws the same."""
    signature, source = request.signature, request.source
    samples: Feed | None = None
    if source.samples is not None and not is_loader_spec(str(source.samples)):
        samples = read_samples(source.samples, [spec.name for spec in signature.inputs])
    drawer = FeedDrawer.of(signature, request.seed, samples)
    return [drawer.feed("benchmark", dict(point.sizes)).arrays for point in request.points]


def _peak_memory() -> int:
    """Return the peak of resident memory in bytes; 0 where the system does not say.

    Linux hands `ru_maxrss` on to a child, which so starts with the peak of modelc itself; the
    kernel's high-water mark is the process's own.
    """
    if os.name != "posix":
        return 0
    with suppress(OSError):
        if found := re.search(r"^VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text(), re.M):
            return int(found[1]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
