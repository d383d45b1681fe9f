"""Carries out the models of a project: what is done already is taken up, the rest is made."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, TypeAlias

from ..core.errors import ModelcError
from ..core.events import Noted, Tell
from ..pipeline.cache.reuse import ReuseResult, ReuseSources, reuse_results
from ..pipeline.cache.step_keys import step_keys
from ..pipeline.isolation.ipc import ChildBugError
from ..pipeline.isolation.watchdog import ProcessLimits
from ..pipeline.order import ResumeState
from ..pipeline.output_folder import LOGS_FOLDER
from .gates import breaches_of
from .outcome import Ended
from .records import ModelOrder
from .wording import placed

if TYPE_CHECKING:
    from ..core.manifest import Manifest

TellOf: TypeAlias = Callable[[str], Tell]
_BASE = 1 << 30  # bytes: torch, a converter and a runtime
_TIMES = 5  # the weights: the model, what is captured of it, the artifact and its parent opened


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a run may take. `memory` is in bytes, of all models together; None is no limit.

    `timeout` is in seconds of one step. `jobs` models run side by side.
    """

    jobs: int = 1
    memory: int | None = None
    timeout: float | None = None
    keep_going: bool = False


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A model whose done steps have been taken up, in `seconds`; what is left is to be made."""

    model: ModelOrder
    taken: ReuseResult
    seconds: float

    @property
    def left(self) -> tuple[str, ...]:
        """The names of the steps that are not done."""
        done = self.taken.resume.done
        return tuple(step.name for step in self.model.plan if step.name not in done)

    def ended(self, manifest: Manifest, since: float) -> Ended:
        """With the record that the model ended with; `since` is when its own time began."""
        keyed = {one.step for one in manifest.artifacts if one.key}
        keyed |= {one.step for one in manifest.failures if one.key}
        kept = self.taken.resume.done & keyed  # of inputs that changed meanwhile nothing is
        restored = tuple(name for name in self.taken.restored if name in kept)
        return Ended(
            name=self.model.name,
            folder=str(self.model.order.out),
            manifest=manifest,
            breaches=breaches_of(self.model, manifest),
            kept=tuple(sorted(kept.difference(restored))),
            restored=restored,
            seconds=_since(since),
        )


def run_models(
    models: Sequence[ModelOrder], tell_of: TellOf, *, caching: ReuseSources | None, limits: Limits
) -> tuple[Ended, ...]:
    """Carry out models, each in a process of its own, and say how each ended, in their order.

    Args:
        models: what is to be made.
        tell_of: the listener to a model's progress, by its name; called from several threads.
        caching: where earlier results are looked for and new ones kept; None makes all anew.
        limits: how many at once, and what they may take.

    Raises:
        KeyboardInterrupt: this process was interrupted; children and their files are gone.
    """
    found: dict[str, Ended] = {}
    ready: list[Ready] = []
    for model in models:
        one = _taken_up(model, tell_of(model.name), caching)
        if isinstance(one, Ready) and one.left:
            ready.append(one)
        else:
            found[model.name] = one if isinstance(one, Ended) else _as_it_stands(one)
    if _goes_on(found.values(), limits):
        found |= _Crew(tell_of, caching, limits).carried_out(ready)
    return tuple(found.get(model.name) or _not_come_to(model) for model in models)


def _goes_on(ended: Iterable[Ended], limits: Limits) -> bool:
    """Whether another model is begun after these."""
    return limits.keep_going or not any(one.exit_code for one in ended)


def _taken_up(model: ModelOrder, tell: Tell, caching: ReuseSources | None) -> Ready | Ended:
    """The model with what of it is done; its end, where that cannot be looked at."""
    since = time.perf_counter()
    if caching is None:
        nothing = ReuseResult(manifest=None, resume=ResumeState())
        return Ready(model=model, taken=nothing, seconds=_since(since))
    try:
        with caching.digests.note_reads() as inputs:
            keys = step_keys(model.order, model.plan, root=caching.root, digests=caching.digests)
        taken = reuse_results(model.order, model.plan, keys, caching)
        resume = replace(taken.resume, inputs=inputs)
    except ModelcError as error:
        return _stopped(model, placed(error, model.places), since)
    if taken.restored:
        tell(Noted(text=f"{', '.join(taken.restored)}: from the cache"))
    if taken.again:
        tell(Noted(text=taken.again))
    return Ready(model=model, taken=replace(taken, resume=resume), seconds=_since(since))


def _since(moment: float) -> float:
    return round(time.perf_counter() - moment, 3)


def _as_it_stands(ready: Ready) -> Ended:
    manifest = ready.taken.manifest
    if manifest is None:
        raise RuntimeError(f"{ready.model.name}: nothing is left to make and there is no record")
    return ready.ended(manifest, time.perf_counter() - ready.seconds)


def _stopped(model: ModelOrder, error: ModelcError, since: float) -> Ended:
    return Ended(
        name=model.name,
        folder=str(model.order.out),
        error=error,
        seconds=_since(since),
    )


def _not_come_to(model: ModelOrder) -> Ended:
    return Ended(name=model.name, folder=str(model.order.out), started=False)


class _Crew:
    """Runs what is left, several at once, each within its part of what the run may take."""

    def __init__(self, tell_of: TellOf, caching: ReuseSources | None, limits: Limits) -> None:
        self._tell_of = tell_of
        self._caching = caching
        self._limits = limits
        self._stop = Event()

    def carried_out(self, ready: Sequence[Ready]) -> dict[str, Ended]:
        """The ends by name; those that were not come to are not there."""
        jobs = max(1, min(self._limits.jobs, len(ready)))
        small = [one for one in ready if self._fits(one, jobs)]
        large = [one for one in ready if not self._fits(one, jobs)]
        found = self._together(small, jobs)
        for one in large:  # alone, with all the memory that there is
            if not _goes_on(found.values(), self._limits):
                break
            found |= self._together([one], 1)
        return found

    def _fits(self, one: Ready, jobs: int) -> bool:
        """Whether the model is likely to do with its part of the memory."""
        if self._limits.memory is None or jobs == 1:
            return True
        return _estimate(one.model) <= self._limits.memory // jobs

    def _together(self, ready: Sequence[Ready], jobs: int) -> dict[str, Ended]:
        """Run them side by side. An interrupt reaches this thread: it ends the others' children."""
        found: dict[str, Ended] = {}
        waiting = list(ready)
        running: set[Future[Ended]] = set()
        bounds = self._bounds(jobs)
        with ThreadPoolExecutor(max_workers=jobs) as pool:
            try:
                while waiting or running:
                    while waiting and len(running) < jobs:
                        running.add(pool.submit(self._one, waiting.pop(0), bounds))
                    done, running = wait(running, timeout=0.2, return_when=FIRST_COMPLETED)
                    found |= {end.name: end for end in (one.result() for one in done)}
                    if not _goes_on(found.values(), self._limits):
                        waiting.clear()
            except BaseException:
                self._stop.set()
                raise
        return found

    def _bounds(self, jobs: int) -> ProcessLimits:
        memory = self._limits.memory
        return ProcessLimits(
            timeout=self._limits.timeout,
            memory=None if memory is None else memory // jobs,
            threads=None if jobs == 1 else max(1, _cores() // jobs),
            stop=self._stop.is_set,
        )

    def _one(self, ready: Ready, bounds: ProcessLimits) -> Ended:
        """Make what is left of one model, and keep it for later runs."""
        from ..pipeline.isolation.supervisor import run_isolated

        model = ready.model
        order = replace(model.order, resume=ready.taken.resume)
        since = time.perf_counter() - ready.seconds
        try:
            manifest = run_isolated(order, self._tell_of(model.name), bounds=bounds)
        except ModelcError as error:
            return _stopped(model, placed(error, model.places), since)
        except ChildBugError as error:
            return _stopped(model, _bug(error, order.out / LOGS_FOLDER), since)
        if self._caching is not None and self._caching.steps is not None:
            self._caching.steps.keep(manifest, order.out, model.name)
        return ready.ended(manifest, since)


def _bug(error: ChildBugError, logs: Path) -> ModelcError:
    """A bug of ours, which is the end of one model and not of the run; its traceback is written."""
    logs.mkdir(parents=True, exist_ok=True)
    path = logs / "bug.log"
    path.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    return ModelcError(f"a bug of modelc: {error}", hint=f"please report {path}")


def _cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _estimate(model: ModelOrder) -> int:
    """Bytes of memory that a model is likely to take, from the size of its checkpoint."""
    return _BASE + _TIMES * _size(model.order.source.checkpoint)


def _size(path: Path) -> int:
    if path.is_dir():
        return sum(one.stat().st_size for one in path.rglob("*") if one.is_file())
    return path.stat().st_size if path.exists() else 0
