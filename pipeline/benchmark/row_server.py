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
from pathlib import Path

from ...checkpoints.user_code import register_folders
from ...core.children.child_call import ParentConnection
from ...core.contract import Feed
from ...core.errors import ModelcError, RunnerError, first_line
from ...core.nested_values import is_loader_spec
from ...validators.feeds import FeedDrawer
from ..user_samples import read_first_sample
from .row_models import Agreement, Call, RowRequest, open_row
from .timed_turns import TimedCall, take_turn, time_call, wait_until_idle, warm_up


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
    try:
        return _serve_orders(request, parent, change)
    except ModelcError:
        raise
    except Exception as error:  # torch and runtimes raise anything
        text = f"{type(error).__name__}: {first_line(error)}"
        raise RunnerError(text, hint="name the other rows with --row") from error


def _serve_orders(
    request: RowRequest, parent: ParentConnection, change: Callable[[Call], Call]
) -> RowClosed:
    if request.cores:
        import psutil

        psutil.Process().cpu_affinity(list(request.cores))
    register_folders(request.code_folders)
    began = time.perf_counter()
    with open_row(request) as opened:
        load = time.perf_counter() - began
        feeds = _draw_feeds(request)
        calls = [time_call(change(opened.prepare(feed)), opened.rounds) for feed in feeds]
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
    cpu = time.process_time()
    runs = take_turn(call, seconds)
    return TurnTimes(point=point, runs=runs, cpu=time.process_time() - cpu)


def _warm_up(
    point: int, call: TimedCall, check: Callable[[Feed], Agreement], feed: Feed
) -> PointWarm:
    warm = warm_up(call)
    sqnr, exact = check(feed)
    wait_until_idle()
    return PointWarm(
        point=point, milliseconds=warm.milliseconds, stable=warm.stable, sqnr=sqnr, exact=exact
    )


def _draw_feeds(request: RowRequest) -> list[Feed]:
    """Draw the feed of each point, of values like the user's samples; each child draws the same."""
    signature, source = request.signature, request.source
    samples: Feed | None = None
    if source.samples is not None and not is_loader_spec(str(source.samples)):
        samples = read_first_sample(
            source, source.samples, [spec.name for spec in signature.inputs]
        )
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
