"""Run the models of a project in child processes, after reusing steps that are up to date."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event as Flag
from threading import Lock
from typing import TYPE_CHECKING, Protocol, TypeAlias

from ..core.children.limits import ProcessLimits
from ..core.children.messages import ChildBugError
from ..core.errors import ModelcError, RunnerError
from ..core.events import Advanced, Entered, Event, Noted, Started, Tell, ignore_events
from ..pipeline.cache.reuse import ReuseResult, ReuseSources, reuse_results
from ..pipeline.cache.step_keys import step_keys
from ..pipeline.hub_source import locate_source
from ..pipeline.manifest_file import read_manifest
from ..pipeline.order import ResumeState
from ..pipeline.output_folder import LOGS_FOLDER
from ..pipeline.recorded_run import check_source
from .project_faults import place_error
from .project_records import ModelOrder, ModelOutcome, find_breaches, find_doubts

if TYPE_CHECKING:
    from ..core.children.fork_server import ForkServer
    from ..core.manifest import Manifest
from ..core.process import count_cores, relax_gc

TellOf: TypeAlias = Callable[[str], Tell]
_CLAIM_PAUSE = 1.0  # seconds until a model that another run builds is tried again
_BASE_MEMORY = 1 << 30  # bytes: torch, a converter and a runtime
_MEMORY_FACTOR = 5  # the weights: model, capture, artifact and its parent


@dataclass(frozen=True, kw_only=True)
class ProjectLimits:
    """The limits of a run; `memory` is in bytes for all models together, None is no limit.

    `timeout` is in seconds per step. `jobs` models run in parallel. `preloads`: the processes of
    several models come from a server that has the libraries loaded, where the system has fork.
    """

    jobs: int = 1
    memory: int | None = None
    timeout: float | None = None
    keep_going: bool = False
    threads: int | None = None  # of each model; None is a share of the cores
    preloads: bool = True


@dataclass(frozen=True, kw_only=True)
class ReadyModel:
    """A model whose done steps were reused, in `seconds`; the other steps are to be run."""

    model: ModelOrder
    taken: ReuseResult
    seconds: float

    @property
    def steps_left(self) -> tuple[str, ...]:
        """The names of the steps that are not done."""
        done = self.taken.resume.done
        return tuple(step.name for step in self.model.plan if step.name not in done)

    def make_outcome(self, manifest: Manifest, since: float) -> ModelOutcome:
        """Make the outcome with the final manifest; `since` is when the model itself started."""
        keyed = {one.step for one in manifest.artifacts if one.key}
        keyed |= {one.step for one in manifest.failures if one.key}
        kept = self.taken.resume.done & keyed  # without steps whose inputs changed
        restored = tuple(name for name in self.taken.restored if name in kept)
        return ModelOutcome(
            name=self.model.name,
            folder=str(self.model.order.out),
            manifest=manifest,
            breaches=find_breaches(self.model.gates, self.model.artifact_names, manifest),
            doubts=find_doubts(self.model.gates, self.model.artifact_names, manifest),
            kept=tuple(sorted(kept.difference(restored))),
            restored=restored,
            seconds=_seconds_since(since),
        )


def run_models(
    models: Sequence[ModelOrder],
    tell_of: TellOf,
    *,
    caching: ReuseSources | None,
    limits: ProjectLimits,
    on_event: Tell = ignore_events,
) -> tuple[ModelOutcome, ...]:
    """Run models, each in a child process, and return their outcomes in order.

    Args:
        models: the models with the steps to run.
        tell_of: returns the listener for a model by name; called from several threads.
        caching: where to find and store results; None rebuilds everything.
        limits: the number of parallel models, and their resources.
        on_event: listens for the run: how many of the steps that it executes are done.

    Raises:
        KeyboardInterrupt: this process was interrupted; the children and their files are removed.
    """
    return run_models_on(_ModelPool(tell_of, caching, limits), models, on_event)


class Executor(Protocol):
    """Where the remaining steps of models run: child processes of this host, or a cluster.

    `caching` is where to find and store results; None rebuilds everything. Listeners of models are
    asked for by name, from several threads.
    """

    tell_of: TellOf
    caching: ReuseSources | None
    limits: ProjectLimits

    def execute(self, ready: Sequence[ReadyModel], count: StepCount) -> dict[str, ModelOutcome]:
        """Return the outcomes by name; models that were not started are missing."""


def run_models_on(
    executor: Executor, models: Sequence[ModelOrder], on_event: Tell = ignore_events
) -> tuple[ModelOutcome, ...]:
    """Run models as `run_models` does, where the executor says."""
    found: dict[str, ModelOutcome] = {}
    ready: list[ReadyModel] = []
    with relax_gc():
        for model in models:
            one = _reuse_steps(model, executor.tell_of(model.name), executor.caching)
            if isinstance(one, ReadyModel) and one.steps_left:
                ready.append(one)
            else:
                found[model.name] = one if isinstance(one, ModelOutcome) else _end_unchanged(one)
    if may_continue(found.values(), executor.limits):
        found |= executor.execute(ready, StepCount(ready, on_event))
    return tuple(found.get(model.name) or _end_unstarted(model) for model in models)


def may_continue(ended: Iterable[ModelOutcome], limits: ProjectLimits) -> bool:
    """Whether to start another model after these."""
    return limits.keep_going or not any(one.exit_code for one in ended)


def _reuse_steps(
    model: ModelOrder, tell: Tell, caching: ReuseSources | None
) -> ReadyModel | ModelOutcome:
    """Reuse the done steps of a model; return its outcome if they cannot be read."""
    since = time.perf_counter()
    try:
        model = _locate(model, tell)
    except ModelcError as error:
        return end_with_error(model, place_error(error, model.places), since)
    if caching is None:
        nothing = ReuseResult(manifest=None, resume=ResumeState())
        return ReadyModel(model=model, taken=nothing, seconds=_seconds_since(since))
    try:
        with caching.digests.note_reads() as inputs:
            keys = step_keys(model.order, model.plan, root=caching.root, digests=caching.digests)
        taken = reuse_results(model.order, model.plan, keys, caching)
        resume = replace(taken.resume, inputs=inputs)
    except ModelcError as error:
        return end_with_error(model, place_error(error, model.places), since)
    if taken.restored:
        tell(Noted(text=f"{', '.join(taken.restored)}: reused from the cache"))
    if taken.again:
        tell(Noted(text=taken.again))
    return ReadyModel(
        model=model, taken=replace(taken, resume=resume), seconds=_seconds_since(since)
    )


def _locate(model: ModelOrder, tell: Tell) -> ModelOrder:
    """Return the model with its checkpoint on this disk, which may be opened.

    Raises:
        ModelcError: the hub does not have it or cannot be reached, or it may not be opened.
    """
    source = locate_source(model.order.source, tell)
    if source == model.order.source:
        return model
    check_source(source)
    return replace(model, order=replace(model.order, source=source))


def _seconds_since(moment: float) -> float:
    return round(time.perf_counter() - moment, 3)


def _end_unchanged(ready: ReadyModel) -> ModelOutcome:
    manifest = ready.taken.manifest
    if manifest is None and ready.taken.resume.failures:
        one = ready.taken.resume.failures[0]
        error = RunnerError(f"{one.step}: {one.message}", hint=one.hint)
        return end_with_error(ready.model, error, time.perf_counter() - ready.seconds)
    if manifest is None:
        raise RuntimeError(f"{ready.model.name}: no step is left, but there is no manifest")
    return ready.make_outcome(manifest, time.perf_counter() - ready.seconds)


def end_with_error(model: ModelOrder, error: ModelcError, since: float) -> ModelOutcome:
    """Make the outcome of a model that an error stopped; `since` is when it started."""
    return ModelOutcome(
        name=model.name,
        folder=str(model.order.out),
        error=error,
        seconds=_seconds_since(since),
    )


def _end_unstarted(model: ModelOrder) -> ModelOutcome:
    return ModelOutcome(name=model.name, folder=str(model.order.out), started=False)


ALL_STEPS = "all artifacts"  # the title of the run as a whole


class StepCount:
    """Counts the executed steps of all models, and reports them as the progress of the run."""

    def __init__(self, ready: Sequence[ReadyModel], tell: Tell) -> None:
        self._left = {one.model.name: frozenset(one.steps_left) for one in ready}
        self._total = sum(map(len, self._left.values()))
        self._entered: dict[str, str] = {}  # the running step by model
        self._done: set[tuple[str, str]] = set()
        self._tell = tell
        self._lock = Lock()
        if self._total > 1:
            tell(Started(step=ALL_STEPS))

    def of(self, model: str, tell: Tell) -> Tell:
        """Return a listener for a model that counts its steps; a step ends where another starts."""

        def count(event: Event) -> None:
            if isinstance(event, Entered):
                self._enter(model, event.artifact)
            tell(event)

        return count

    def end(self, model: str) -> None:
        """Count all steps of a model that has ended, also those that it did not come to."""
        with self._lock:
            self._done |= {(model, step) for step in self._left[model]}
            self._report()

    def _enter(self, model: str, step: str) -> None:
        with self._lock:
            before = self._entered.get(model)
            self._entered[model] = step
            if before in self._left[model] and before != step:
                self._done.add((model, str(before)))
                self._report()

    def _report(self) -> None:
        self._tell(Advanced(step=ALL_STEPS, done=len(self._done), total=self._total))


class _ModelPool:
    """Runs the remaining steps of several models in parallel, within the limits of the run."""

    def __init__(
        self,
        tell_of: TellOf,
        caching: ReuseSources | None,
        limits: ProjectLimits,
    ) -> None:
        self.tell_of = tell_of
        self.caching = caching
        self.limits = limits
        self._count = StepCount((), ignore_events)
        self._stop = Flag()
        self._waits: set[tuple[str, str]] = set()

    def execute(self, ready: Sequence[ReadyModel], count: StepCount) -> dict[str, ModelOutcome]:
        """Return the outcomes by name; models that were not started are missing."""
        self._count = count
        jobs = max(1, min(self.limits.jobs, len(ready)))
        small = [one for one in ready if self._fits(one, jobs)]
        large = [one for one in ready if not self._fits(one, jobs)]
        found = self._together(small, jobs)
        for one in large:  # one at a time, with all of the memory
            if not may_continue(found.values(), self.limits):
                break
            found |= self._together([one], 1)
        return found

    def _fits(self, one: ReadyModel, jobs: int) -> bool:
        """Whether the model likely fits in its share of the memory."""
        if self.limits.memory is None or jobs == 1:
            return True
        return _estimate_memory(one.model) <= self.limits.memory // jobs

    def _together(self, ready: Sequence[ReadyModel], jobs: int) -> dict[str, ModelOutcome]:
        """Run models in parallel; an interrupt reaches this thread, which ends all children."""
        found: dict[str, ModelOutcome] = {}
        waiting = list(ready)
        running: set[Future[ModelOutcome | ReadyModel]] = set()
        bounds = self._bounds(jobs)
        server = self._make_server(bounds) if len(ready) > jobs else None
        with server or nullcontext(), ThreadPoolExecutor(max_workers=jobs) as pool:
            try:
                while waiting or running:
                    while waiting and len(running) < jobs:
                        running.add(pool.submit(self._one, waiting.pop(0), bounds, server))
                    done, running = wait(running, timeout=0.2, return_when=FIRST_COMPLETED)
                    ended = [one.result() for one in done]
                    found |= {end.name: end for end in ended if isinstance(end, ModelOutcome)}
                    waiting += [one for one in ended if isinstance(one, ReadyModel)]
                    if not may_continue(found.values(), self.limits):
                        waiting.clear()
            except BaseException:
                self._stop.set()
                raise
        return found

    def _make_server(self, bounds: ProcessLimits) -> ForkServer | None:
        """Make what loads the libraries once for all models, if that is wanted and possible."""
        from ..core.children.fork_server import IS_SUPPORTED, ForkServer
        from ..pipeline.isolation.worker import PRELOADED

        if not (self.limits.preloads and IS_SUPPORTED):
            return None
        return ForkServer(PRELOADED, threads=bounds.threads, stop=self._stop.is_set)

    def _bounds(self, jobs: int) -> ProcessLimits:
        memory = self.limits.memory
        return ProcessLimits(
            timeout=self.limits.timeout,
            memory=None if memory is None else memory // jobs,
            threads=self.limits.threads or (None if jobs == 1 else max(1, count_cores() // jobs)),
            stop=self._stop.is_set,
        )

    def _one(
        self, ready: ReadyModel, bounds: ProcessLimits, server: ForkServer | None
    ) -> ModelOutcome | ReadyModel:
        """Run the remaining steps of one model, unless another run is building one of them.

        Such a model is returned after a pause; what was built meanwhile is then reused.
        """
        claims = None if self.caching is None else self.caching.claims
        if claims is None:
            return self._build(ready, bounds, server)
        keys = ready.taken.resume.keys
        with claims.hold([keys[one] for one in ready.steps_left if one in keys]) as conflict:
            if conflict is not None:
                self._report_waiting(ready.model.name, conflict.holder)
                self._stop.wait(_CLAIM_PAUSE)
                return ready
            again = _reuse_steps(ready.model, self.tell_of(ready.model.name), self.caching)
            if isinstance(again, ModelOutcome):
                return again
            restored = (*ready.taken.restored, *again.taken.restored)
            taken = replace(again.taken, restored=restored)
            ready = replace(again, taken=taken, seconds=ready.seconds + again.seconds)
            if ready.steps_left:
                return self._build(ready, bounds, server)
            self._count.end(ready.model.name)
            return _end_unchanged(ready)

    def _report_waiting(self, model: str, holder: str) -> None:
        """Report once per model and holder why it waits."""
        if (model, holder) not in self._waits:
            self._waits.add((model, holder))
            self.tell_of(model)(Noted(text=f"waiting for {holder}, which builds the same steps"))

    def _build(
        self, ready: ReadyModel, bounds: ProcessLimits, server: ForkServer | None
    ) -> ModelOutcome:
        """Run the remaining steps of one model, and store the results for later runs."""
        from ..pipeline.isolation.supervisor import run_isolated

        model = ready.model
        order = replace(model.order, resume=ready.taken.resume)
        since = time.perf_counter() - ready.seconds
        tell = self._count.of(model.name, self._store_ended(model, self.tell_of(model.name)))
        try:
            manifest = run_isolated(order, tell, bounds=bounds, server=server)
        except ModelcError as error:
            return end_with_error(model, place_error(error, model.places), since)
        except ChildBugError as error:
            return end_with_error(model, report_bug(error, order.out / LOGS_FOLDER), since)
        finally:
            self._count.end(model.name)
        if self.caching is not None and self.caching.steps is not None:
            self.caching.steps.keep(manifest, order.out, model.name)
        return ready.make_outcome(manifest, since)

    def _store_ended(self, model: ModelOrder, tell: Tell) -> Tell:
        """Return a listener that shares each step when the next begins: a kill then loses one."""
        steps = None if self.caching is None else self.caching.steps
        if steps is None or steps.claims is None:
            return tell
        entered: list[str] = []

        def store(event: Event) -> None:
            if isinstance(event, Entered):
                manifest = read_manifest(model.order.out) if entered else None
                entered.append(event.artifact)
                if manifest is not None:
                    steps.keep(manifest, model.order.out, model.name)
            tell(event)

        return store


def report_bug(error: ChildBugError, logs: Path) -> ModelcError:
    """Convert a bug of modelc to an error of one model, and write its traceback to a log."""
    logs.mkdir(parents=True, exist_ok=True)
    path = logs / "bug.log"
    path.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    return ModelcError(f"bug in modelc: {error}", hint=f"report it with {path}")


def _estimate_memory(model: ModelOrder) -> int:
    """Estimate the memory of a model in bytes from the size of its checkpoint."""
    return _BASE_MEMORY + _MEMORY_FACTOR * _path_size(model.order.source.checkpoint)


def _path_size(path: Path) -> int:
    if path.is_dir():
        return sum(one.stat().st_size for one in path.rglob("*") if one.is_file())
    return path.stat().st_size if path.exists() else 0
