"""What `torch.compile` makes of a checkpoint over its domain: `modelc inspect --breaks`."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..capture.dynamo_watch import (
    Compilation,
    DynamoWatch,
    GraphLimit,
    check_compilable,
    describe_break,
)
from ..core.compile_records import (
    CompileFailure,
    CompileReport,
    CompileTrace,
    GraphBreak,
    Recompile,
    SizeGuard,
    SourceLine,
    ValueGuard,
)
from ..core.contract import Feed
from ..core.errors import CheckpointError, first_line
from ..core.events import Tell, ignore_events
from ..core.findings import SIZED
from ..core.signature import Signature
from ..validators.feeds import OPT, FeedDrawer, NamedFeed
from .eager_reference import EagerReference, open_reference, read_checkpoint
from .order import Judging, Source
from .run_progress import Progress

if TYPE_CHECKING:
    import torch
    from torch._guards import Guard

    from ..checkpoints.eager_model import Eager

_SIZES = 12  # of a dim, which is more than torch's limit of recompiles
_MAX_FEEDS = 64
_MAX_COMPILATIONS = 10_000  # in a run
_SECONDS = 30.0  # of a setting, after which further values at known sizes are left out
_SETTINGS = (None, True)  # of `dynamic`


def inspect_breaks(
    source: Source, judging: Judging | None = None, on_event: Tell = ignore_events
) -> CompileReport:
    """Compile a model with dynamo and run it over its domain, without a compiler behind it.

    Args:
        source: the checkpoint and its inputs.
        judging: the number of feeds and their seed.
        on_event: receives progress events.

    Raises:
        ModelcError: the checkpoint cannot be read, or the eager model does not run.
    """
    judging = judging or Judging()
    with tempfile.TemporaryDirectory(prefix="modelc-breaks-") as folder:
        progress = Progress(tell=on_event, logs=Path(folder))
        checkpoint = read_checkpoint(source, progress)
        eager = open_reference(source, checkpoint, judging, progress, wanted=lambda _: True)
        check_compilable(eager.model.module)
        title = "torch.compile"
        with progress.step(title, log="compile"), _use_dynamo():
            before = eager.model.before()
            feeds = _choose_feeds(eager)
            before.restore()
            reason = _try_fullgraph(eager.model, feeds[0])
            before.restore()
            traces = []
            for number, dynamic in enumerate(_SETTINGS):
                tracer = _Tracer(eager=eager, dynamic=dynamic)
                began = time.monotonic()
                for done, feed in enumerate(feeds, start=1):
                    late = time.monotonic() - began > _SECONDS
                    if late and feed.kind not in SIZED:
                        continue
                    if not tracer.run(feed):
                        break
                    total = len(_SETTINGS) * len(feeds)
                    progress.advance(title, number * len(feeds) + done, total)
                traces.append(tracer.finish())
                before.restore()
    return CompileReport(
        checkpoint=source.name,
        torch=metadata.version("torch"),
        inputs=tuple(map(str, eager.signature.inputs)),
        fullgraph=reason is None,
        fullgraph_reason=reason,
        traces=tuple(traces),
    )


@contextmanager
def _use_dynamo() -> Iterator[None]:
    """Make dynamo record all compilations, and forget them afterwards."""
    import torch
    import torch._dynamo
    from torch._dynamo import config, utils

    utils.set_compilation_metrics_limit(_MAX_COMPILATIONS)
    try:
        with torch.no_grad(), config.patch(suppress_errors=False):
            yield
    finally:
        utils.set_compilation_metrics_limit(utils.DEFAULT_COMPILATION_METRICS_LIMIT)
        torch._dynamo.reset()


def _choose_feeds(eager: EagerReference) -> list[NamedFeed]:
    """Return feeds that eager accepts: `opt` first, then other sizes, then edge-case values."""
    feeds = [one.feed for one in eager.references]
    drawer = FeedDrawer.of(eager.signature, eager.feeds.seed, eager.sample)
    known = [feed.sizes for feed in feeds]
    for sizes in _further_sizes(eager.signature):
        if sizes in known:
            continue
        text = ", ".join(f"{name} {size}" for name, size in sizes.items())
        feed = drawer.feed(text, sizes)
        with suppress(CheckpointError):
            eager.model.run_with_deadline(feed.arrays)
            feeds.append(feed)
            known.append(sizes)
    order = {OPT: 0, "min": 1, "max": 2}
    return sorted(feeds, key=lambda one: (order.get(one.name, 3), one.kind not in SIZED))[
        :_MAX_FEEDS
    ]


def _further_sizes(signature: Signature) -> Iterator[dict[str, int]]:
    """Yield sizes of each dim, from its lowest to its highest, with all others at opt."""
    for name, dim in signature.free_dims.items():
        span = dim.high - dim.low
        count = min(_SIZES, span + 1)
        for number in range(count):
            size = dim.low + round(span * number / max(count - 1, 1))
            yield {**signature.opt_sizes, name: size}


def _make_tensors(model: Eager, feed: Feed) -> list[Any]:
    import numpy as np
    import torch

    return [torch.from_numpy(np.array(feed[name], order="C")) for name in model.inputs]


def _try_fullgraph(model: Eager, feed: NamedFeed) -> GraphBreak | None:
    """Return why the model is not one graph; None if it is."""
    import torch
    import torch._dynamo

    torch._dynamo.reset()
    arguments, named = model.bind(_make_tensors(model, feed.arrays))
    compiled = torch.compile(model.module, backend="eager", fullgraph=True)
    try:
        compiled(*arguments, **named)
    except Exception as error:  # noqa: BLE001 - of dynamo or of the user's code
        return replace(describe_break(error), feed=feed.name)
    return None


def _describe_failure(error: Exception, feed: NamedFeed) -> CompileFailure:
    found = describe_break(error)
    return CompileFailure(
        error=type(error).__name__,
        message=found.explanation or first_line(error),
        feed=feed.name,
        place=found.place,
    )


@dataclass
class _Tracer:
    """Runs a compiled module feed by feed, and collects what dynamo does."""

    eager: EagerReference
    dynamic: bool | None
    graphs: int = 0
    operators: int = 0
    feeds: int = 0
    breaks: dict[tuple[object, ...], GraphBreak] = field(default_factory=dict)
    guards: Counter[str] = field(default_factory=Counter)
    sizes: dict[SizeGuard, None] = field(default_factory=dict)
    values: dict[str, ValueGuard] = field(default_factory=dict)
    recompiles: list[Recompile] = field(default_factory=list)
    known: dict[tuple[str, int, str], list[Compilation]] = field(default_factory=dict)
    limit: int | None = None
    failure: CompileFailure | None = None

    def __post_init__(self) -> None:
        import torch
        import torch._dynamo

        torch._dynamo.reset()
        self._watch = DynamoWatch()
        module = self.eager.model.module
        self._compiled = torch._dynamo.optimize(
            self._run_graph, guard_export_fn=self._note_guards, dynamic=self.dynamic
        )(module)

    def _run_graph(self, graph: torch.fx.GraphModule, given: Sequence[object]) -> Any:
        return self._watch.backend(graph, given)

    def _note_guards(self, guards: Iterable[Guard]) -> None:
        self._watch.note_guards(guards)

    def run(self, feed: NamedFeed) -> bool:
        """Run one feed; return whether the next one can be run."""
        from torch._dynamo import config
        from torch._dynamo.exc import FailOnRecompileLimitHit
        from torch._dynamo.utils import clear_compilation_metrics

        model, had_limit = self.eager.model, self.limit is not None
        tensors = _make_tensors(model, feed.arrays)
        self._watch = watch = DynamoWatch(given=tensors)
        arguments, named = model.bind(tensors)
        clear_compilation_metrics()
        try:
            with watch.watch(), config.patch(fail_on_recompile_limit_hit=not self.limit):
                self._compiled(*arguments, **named)
        except FailOnRecompileLimitHit:
            self.limit = config.recompile_limit
        except Exception as error:  # noqa: BLE001 - of dynamo: eager accepts the feed
            self.failure = _describe_failure(error, feed)
        is_cut_off = self.limit is not None and not had_limit
        self._collect(watch, feed)
        if is_cut_off:
            return self.run(feed)
        self.feeds += 1
        return self.failure is None

    def _collect(self, watch: DynamoWatch, feed: NamedFeed) -> None:
        compilations = watch.compilations()
        if not self.feeds:  # a feed that is cut off at the limit is run again
            self.graphs += len(watch.graphs)
            self.operators += watch.operators
            self.guards.update(watch.guard_kinds())
        self._add_breaks(watch.breaks, feed)
        for value in watch.value_guards():
            self.values.setdefault(value.text, value)
        for one in compilations:
            earlier = self.known.setdefault((one.file, one.line, one.function), [])
            if one.reason:
                self.recompiles.append(self._make_recompile(one, earlier, feed))
            earlier.append(one)
            for guard in self._narrow(one.limits):
                self.sizes[guard] = None

    def _add_breaks(self, found: Sequence[GraphBreak], feed: NamedFeed) -> None:
        """Add places that are new; a break at which a function was given up is reported twice."""
        fresh: dict[tuple[object, ...], GraphBreak] = {}
        for one in found:
            key = (one.kind, one.place)
            known = fresh.get(key, replace(one, feed=feed.name, count=0))
            count = known.count + (0 if one.function and known.count else 1)
            fresh[key] = replace(known, count=count, function=known.function or one.function)
        for spot, one in fresh.items():
            before = self.breaks.setdefault(spot, one)
            if before is not one and before.feed == feed.name:
                self.breaks[spot] = replace(before, count=before.count + one.count)

    def _make_recompile(
        self, one: Compilation, earlier: Sequence[Compilation], feed: NamedFeed
    ) -> Recompile:
        """Name the limits of the latest earlier compilation that the feed violates."""
        shapes = [feed.arrays[name].shape for name in self.eager.model.inputs]
        violated = (
            [one for one in old.limits if not one.accepts(shapes[one.number][one.axis])]
            for old in reversed(earlier)
        )
        guards = tuple(dict.fromkeys(self._narrow(next(filter(None, violated), ()))))
        place: SourceLine | None = next((one.place for one in guards if one.place), None)
        return Recompile(
            feed=feed.name,
            sizes=feed.sizes,
            function=one.function,
            reason=one.reason,
            place=place or one.definition,
            guards=guards,
        )

    def _narrow(self, limits: Sequence[GraphLimit]) -> Iterator[SizeGuard]:
        """Yield the limits that exclude sizes of the domain."""
        for limit in limits:
            spec = self.eager.signature.inputs[limit.number]
            dim = spec.dims[limit.axis]
            above = limit.high is None or limit.high >= dim.high
            if not dim.dynamic or (above and limit.low <= max(dim.low, 2)):
                continue
            yield SizeGuard(
                dim=dim.name or f"{spec.name}[{limit.axis}]",
                low=limit.low,
                high=None if above and limit.low != limit.high else limit.high,
                place=limit.place,
            )

    def _list_limited(self) -> Iterator[str]:
        """Yield the functions that were compiled as often as torch allows."""
        for (_, _, name), made in self.known.items():
            if self.limit is not None and len(made) >= self.limit:
                place = made[0].definition
                yield f"{name} ({place})" if place else name

    def finish(self) -> CompileTrace:
        """Return what was collected."""
        return CompileTrace(
            dynamic=self.dynamic,
            graphs=self.graphs,
            operators=self.operators,
            feeds=self.feeds,
            breaks=tuple(self.breaks.values()),
            guards=dict(self.guards.most_common()),
            sizes=tuple(self.sizes),
            values=tuple(self.values.values()),
            recompiles=tuple(self.recompiles),
            limit=self.limit,
            limited=tuple(self._list_limited()),
            failure=self.failure,
        )
