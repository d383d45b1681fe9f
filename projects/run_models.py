"""Run the models of a project in child processes, after reusing steps that are up to date."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event as Flag
from typing import TYPE_CHECKING, Protocol

from ..core.children.limits import ProcessLimits
from ..core.children.messages import ChildBugError
from ..core.errors import ModelcError
from ..core.events import Entered, Event, Noted, Tell, ignore_events
from ..pipeline.cache.reuse import ReuseSources
from ..pipeline.manifest_file import read_manifest
from ..pipeline.output_folder import LOGS_FOLDER
from .parts_models import build_parts
from .project_faults import place_error
from .project_records import ModelOrder, ModelOutcome
from .ready_models import (
    ReadyModel,
    StepCount,
    TellOf,
    end_unchanged,
    end_unstarted,
    end_with_error,
    report_bug,
    reuse_steps,
)

if TYPE_CHECKING:
    from ..core.children.fork_server import ForkServer
from ..core.process import count_cores, relax_gc

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
            one = reuse_steps(model, executor.tell_of(model.name), executor.caching)
            if isinstance(one, ReadyModel) and one.steps_left:
                ready.append(one)
            else:
                found[model.name] = one if isinstance(one, ModelOutcome) else end_unchanged(one)
    if may_continue(found.values(), executor.limits):
        found |= executor.execute(ready, StepCount(ready, on_event))
    return tuple(found.get(model.name) or end_unstarted(model) for model in models)


def may_continue(ended: Iterable[ModelOutcome], limits: ProjectLimits) -> bool:
    """Whether to start another model after these."""
    return limits.keep_going or not any(one.exit_code for one in ended)


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
            again = reuse_steps(ready.model, self.tell_of(ready.model.name), self.caching)
            if isinstance(again, ModelOutcome):
                return again
            restored = (*ready.taken.restored, *again.taken.restored)
            taken = replace(again.taken, restored=restored)
            ready = replace(again, taken=taken, seconds=ready.seconds + again.seconds)
            if ready.steps_left:
                return self._build(ready, bounds, server)
            self._count.end(ready.model.name)
            return end_unchanged(ready)

    def _report_waiting(self, model: str, holder: str) -> None:
        """Report once per model and holder why it waits."""
        if (model, holder) not in self._waits:
            self._waits.add((model, holder))
            self.tell_of(model)(Noted(text=f"waiting for {holder}, which builds the same steps"))

    def _build(
        self, ready: ReadyModel, bounds: ProcessLimits, server: ForkServer | None
    ) -> ModelOutcome:
        """Run the remaining steps of one model, and store the results for later runs."""
        model = ready.model
        since = time.perf_counter() - ready.seconds
        tell = self._count.of(model.name, self.tell_of(model.name))
        try:
            if model.parts is not None:
                return self._build_parts(ready, tell, bounds, server)
            return self._run(ready, tell, bounds, server)
        except ModelcError as error:
            return end_with_error(model, place_error(error, model.places), since)
        except ChildBugError as error:
            return end_with_error(model, report_bug(error, model.order.out / LOGS_FOLDER), since)
        finally:
            self._count.end(model.name)

    def _run(
        self, ready: ReadyModel, tell: Tell, bounds: ProcessLimits, server: ForkServer | None
    ) -> ModelOutcome:
        """Run the remaining steps of one model or part in a child process.

        Raises:
            ModelcError: nothing was made.
        """
        from ..pipeline.isolation.supervisor import run_isolated

        model = ready.model
        since = time.perf_counter() - ready.seconds
        order = replace(model.order, resume=ready.taken.resume)
        tell = self._store_ended(model, tell)
        manifest = run_isolated(order, tell, bounds=bounds, server=server)
        if self.caching is not None and self.caching.steps is not None:
            self.caching.steps.keep(manifest, order.out, model.name)
        return ready.make_outcome(manifest, since)

    def _build_parts(
        self, ready: ReadyModel, tell: Tell, bounds: ProcessLimits, server: ForkServer | None
    ) -> ModelOutcome:
        """Build the parts of a model, each as a model of its own, and judge the whole.

        Raises:
            ModelcError: a part cannot be made, or the whole cannot be run.
        """

        def run_part(part: ModelOrder, tell: Tell) -> ModelOutcome:
            one = reuse_steps(part, tell, self.caching)
            if isinstance(one, ModelOutcome):
                return one
            return self._run(one, tell, bounds, server) if one.steps_left else end_unchanged(one)

        since = time.perf_counter() - ready.seconds
        built = build_parts(ready.model, ready.taken.resume.keys, run_part, bounds, tell)
        if isinstance(built, ModelOutcome):
            return built
        return replace(ready, taken=built.taken).make_outcome(built.manifest, since)

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


def _estimate_memory(model: ModelOrder) -> int:
    """Estimate the memory of a model in bytes from the size of its checkpoint."""
    return _BASE_MEMORY + _MEMORY_FACTOR * _path_size(model.order.source.checkpoint)


def _path_size(path: Path) -> int:
    if path.is_dir():
        return sum(one.stat().st_size for one in path.rglob("*") if one.is_file())
    return path.stat().st_size if path.exists() else 0
