"""Models of a project before they are run: what is reused of them, and how each ends."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, TypeAlias

from ..core.children.messages import ChildBugError
from ..core.errors import ModelcError, RunnerError
from ..core.events import Advanced, Entered, Event, Noted, Started, Tell
from ..pipeline.cache.reuse import ReuseResult, ReuseSources, reuse_results
from ..pipeline.cache.step_keys import step_keys
from ..pipeline.hub_source import locate_source
from ..pipeline.order import ResumeState
from ..pipeline.recorded_run import check_source
from .parts_models import reuse_parts
from .project_faults import place_error
from .project_records import ModelOrder, ModelOutcome, find_breaches, find_doubts

if TYPE_CHECKING:
    from ..core.manifest import Manifest

TellOf: TypeAlias = Callable[[str], Tell]


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
        return tuple(name for name in self.model.step_names if name not in done)

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


def reuse_steps(
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
        if model.parts is not None:
            taken = reuse_parts(model, model.parts, keys, caching)
        else:
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


def end_unchanged(ready: ReadyModel) -> ModelOutcome:
    """Return the outcome of a model of which no step is left to run."""
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


def end_unstarted(model: ModelOrder) -> ModelOutcome:
    """Return the outcome of a model that was not started, as an earlier one failed."""
    return ModelOutcome(name=model.name, folder=str(model.order.out), started=False)


ALL_STEPS = "all artifacts"  # the title of the run as a whole


def report_bug(error: ChildBugError, logs: Path) -> ModelcError:
    """Convert a bug of modelc to an error of one model, and write its traceback to a log."""
    logs.mkdir(parents=True, exist_ok=True)
    path = logs / "bug.log"
    path.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    return ModelcError(f"bug in modelc: {error}", hint=f"report it with {path}")


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
        """Count the last step of a model that has ended, and drop those that it did not come to."""
        with self._lock:
            last, left = self._entered.get(model), self._left[model]
            if last in left:
                self._done.add((model, str(last)))
            self._total -= sum((model, step) not in self._done for step in left)
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
