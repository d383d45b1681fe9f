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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ...checkpoints.sample_inputs import read_samples
from ...checkpoints.user_code import register_folders
from ...converters.registry import target_named
from ...core.children.child_call import ParentConnection
from ...core.contract import Deferred, Feed, Native
from ...core.errors import RunnerError
from ...core.events import ignore_events
from ...core.nested_values import is_loader_spec
from ...core.process import thread_limit
from ...core.signature import Signature
from ...core.target_extensions import Preparing, SelfTuned
from ...validators.feeds import FeedDrawer
from ..order import Source
from ..run_progress import Progress
from .benchmark_plan import BenchmarkPoint, RowSpec

if TYPE_CHECKING:
    from ...core.contract import Runner

Call: TypeAlias = Callable[[], object]
Agreement: TypeAlias = tuple[float | None, bool]  # SQNR, and whether it is exact
_IDLE_WINDOW, _MAX_IDLE_WAIT = 0.02, 0.5  # seconds
_IDLE_SHARE = 0.1  # of one core, in a window
SAME_AS_JUDGED = "the runtime's defaults compute as the judge does"
_STABLE = 0.03  # relative change of the median between two batches of warm-up runs
_MIN_WARMUP, _MAX_WARMUP = 0.3, 10.0  # seconds


@dataclass(frozen=True, kw_only=True)
class RowRequest:
    """What a child measures, and the pipe of its orders."""

    row: RowSpec
    folder: Path
    source: Source
    signature: Signature
    points: tuple[BenchmarkPoint, ...]
    seed: int
    orders: Path
    device: str
    logs: Path
    code_folders: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RowOpened:
    """The model is open: `load` are the seconds for it, `first` those of the first run."""

    load: float
    first: float
    threads: int


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


@dataclass(frozen=True, kw_only=True)
class OpenRow:
    """An open model: `call` runs it on a prepared feed, `check` returns its SQNR on one."""

    prepare: Callable[[Feed], Call]
    threads: int
    check: Callable[[Feed], Agreement]


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
    register_folders(request.code_folders)
    began = time.perf_counter()
    with _open_row(request) as opened:
        load = time.perf_counter() - began
        feeds = _draw_feeds(request)
        calls = [change(opened.prepare(feed)) for feed in feeds]
        first = _time_run(calls[0])
        parent.send(RowOpened(load=load, first=first / 1e3, threads=opened.threads))
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


def _take_turn(point: int, call: Call, seconds: float) -> TurnTimes:
    """Run for so many seconds, at least once; wait until the threads are idle."""
    cpu, began = time.process_time(), time.perf_counter()
    runs = [_time_run(call)]
    while time.perf_counter() - began < seconds:
        runs.append(_time_run(call))
    _wait_until_idle()
    return TurnTimes(point=point, runs=tuple(runs), cpu=time.process_time() - cpu)


def _warm_up(
    point: int,
    call: Call,
    check: Callable[[Feed], Agreement],
    feed: Feed,
) -> PointWarm:
    """Run until the medians of two batches of runs agree."""
    from statistics import median

    began, before = time.perf_counter(), 0.0
    while True:
        batch_began = time.perf_counter()
        batch = [_time_run(call)]
        while time.perf_counter() - batch_began < _MIN_WARMUP / 2:
            batch.append(_time_run(call))
        now, spent = median(batch), time.perf_counter() - began
        stable = abs(now - before) <= _STABLE * now
        before = now
        if (stable and spent >= _MIN_WARMUP) or spent > _MAX_WARMUP:
            break
    sqnr, exact = check(feed)
    _wait_until_idle()
    return PointWarm(point=point, milliseconds=now, stable=stable, sqnr=sqnr, exact=exact)


def _time_run(call: Call) -> float:
    """Return the milliseconds of one run."""
    began = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - began)


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


@contextmanager
def _open_row(request: RowRequest) -> Iterator[OpenRow]:
    if not request.row.file:
        yield _open_eager(request)
    else:
        with _open_file(request) as runner:
            prepare: Callable[[Feed], Call] = partial(partial, runner.run)
            if isinstance(runner, Preparing):
                prepare = runner.prepare
            yield OpenRow(prepare=prepare, threads=thread_limit() or 0, check=_no_check)


def _open_file(request: RowRequest) -> Runner:
    row, path = request.row, request.folder / request.row.file
    target = target_named(row.target)
    if row.target == "onnx":  # the file itself: the judge runs a copy of a half one on the CPU
        from ...converters.onnx_sessions import open_onnx_file

        return open_onnx_file(path, request.device)
    if not row.tuned:
        if isinstance(target, Deferred | Native):
            trust = {"trust_engine": "true"} if request.source.trust else {}
            return target.open_runner(path, request.device, request.signature, trust)
        return target.open_runner(path, request.device, request.signature)
    if not isinstance(target, SelfTuned):
        raise TypeError(f"{row.target} has no defaults of its own")
    default = target.open_by_default(path, request.device, request.signature)
    if default is None:
        raise RunnerError(SAME_AS_JUDGED, hint="its row without the defaults holds for both")
    return default.runner


def _open_eager(request: RowRequest) -> OpenRow:
    """Load the user's module, and compile it if the row asks for that."""
    import torch

    from ...checkpoints.checkpoint_loader import load_checkpoint
    from ...checkpoints.eager_model import open_eager
    from ...converters.runner_base import make_torch_call
    from ..eager_reference import read_checkpoint

    source, mode = request.source, request.row.mode
    progress = Progress(tell=ignore_events, logs=request.logs)
    eager = open_eager(load_checkpoint(read_checkpoint(source, progress)), request.signature)
    module = eager.module.to(request.device)
    function: Any = module
    if mode:
        function = torch.compile(module, mode=None if mode == "default" else mode)

    def bind(tensors: Sequence[torch.Tensor]) -> Call:
        arguments, named = eager.bind(tensors)
        return lambda: function(*arguments, **named)

    def prepare(feed: Feed) -> Call:
        tensors = [torch.tensor(feed[name], device=request.device) for name in eager.inputs]
        return make_torch_call(bind, tensors, request.device)

    def check(feed: Feed) -> Agreement:
        from ...validators.metrics import measure_arrays

        wanted, found = eager.run(feed), eager.with_module(function).run(feed)
        measures = [measure_arrays(wanted[name], found[name]) for name in wanted]
        inexact = [one.sqnr for one in measures if not one.exact and one.sqnr is not None]
        return min(inexact, default=None), all(one.exact for one in measures)

    threads = torch.get_num_threads()
    return OpenRow(prepare=prepare, threads=threads, check=check if mode else _no_check)


def _no_check(_: Feed) -> Agreement:
    """Eager is what others are compared with, and the files have verdicts."""
    return None, False
