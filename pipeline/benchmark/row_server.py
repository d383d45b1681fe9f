"""One row of a benchmark in a child process: it opens its model, and runs it on each order.

Children of all rows live at the same time, and one of them runs. A child answers when its threads
are idle again, so that no two thread pools run at once.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ...checkpoints.sample_inputs import read_samples
from ...checkpoints.user_code import register_folders
from ...converters.registry import target_named
from ...core.children.child_call import ParentConnection
from ...core.contract import Feed
from ...core.errors import RunnerError
from ...core.events import ignore_events
from ...core.nested_values import is_loader_spec
from ...core.process import thread_limit
from ...core.signature import Signature
from ...core.target_extensions import SelfTuned
from ...validators.feeds import FeedDrawer
from ..order import Source
from ..run_progress import Progress
from .benchmark_plan import BenchmarkPoint, RowSpec
from .timed_turns import (
    TimedCall,
    open_for_timing,
    prepare_call,
    take_turn,
    time_call,
    wait_until_idle,
    warm_up,
)

if TYPE_CHECKING:
    from ...core.contract import Runner

Call: TypeAlias = Callable[[], object]
Agreement: TypeAlias = tuple[float | None, bool]  # SQNR, and whether it is exact
SAME_AS_JUDGED = "the runtime's defaults compute as the judge does"


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
        calls = [time_call(change(opened.prepare(feed))) for feed in feeds]
        first = calls[0]()
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
        samples = read_samples(source.samples, [spec.name for spec in signature.inputs])
    drawer = FeedDrawer.of(signature, request.seed, samples)
    return [drawer.feed("benchmark", dict(point.sizes)).arrays for point in request.points]


def _peak_memory() -> int:
    """Return the peak of resident memory in bytes; 0 where the system does not say."""
    if os.name != "posix":
        return 0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


@contextmanager
def _open_row(request: RowRequest) -> Iterator[OpenRow]:
    if not request.row.file:
        yield _open_eager(request)
    else:
        with _open_file(request) as runner:
            prepare = partial(prepare_call, runner)
            yield OpenRow(prepare=prepare, threads=thread_limit() or 0, check=_no_check)


def _open_file(request: RowRequest) -> Runner:
    row, path = request.row, request.folder / request.row.file
    target = target_named(row.target)
    if row.target == "onnx" or not row.tuned:
        return open_for_timing(
            target, path, request.device, request.signature, trust=request.source.trust
        )
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
