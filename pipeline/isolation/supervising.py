"""A run in child processes: what kills one of them ends one step, and the others go on."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ...core.events import Entered, Finished, Noted, Started, Tell, silence
from ...core.manifest import Failure, Manifest
from ...core.records import REJECTED
from ..finish_order import AnyRequest, FinishRequest
from ..folder import LOGS_FOLDER, check_output_path, clear_leftovers
from ..manifest_file import read_manifest
from ..plan import Step, make_plan, plan_pending
from ..recorded import load_manifest
from .bounds import ProcessLimits
from .child import ChildDeath, run_child
from .crossing import (
    CallResult,
    FinalManifest,
    InitialManifest,
    Interrupted,
    Message,
    StoppedByError,
    rebuild_error,
)
from .dying import crash_failure, error_before_first_step


@dataclass
class _RunListener:
    """What a child told: its record as it began, its end, and which steps are open."""

    tell: Tell
    begun: Manifest | None = None
    result: Manifest | None = None
    stopped: StoppedByError | None = None
    interrupted: bool = False
    entered: str = ""
    open: dict[str, float] = field(default_factory=dict)  # by title, when it began

    def __call__(self, message: Message) -> None:
        match message:
            case InitialManifest():
                self.begun = message.manifest
            case FinalManifest():
                self.result = message.manifest
            case StoppedByError():
                self.stopped = message
            case Interrupted():
                self.interrupted = True
            case CallResult():
                raise TypeError("a run of steps ended like a call")
            case _:
                self._follow(message)
                self.tell(message)

    def _follow(self, event: Message) -> None:
        if isinstance(event, Entered):
            self.entered = event.artifact
        elif isinstance(event, Started):
            self.open[event.step] = time.perf_counter()
        elif isinstance(event, Finished):
            self.open.pop(event.step, None)

    def close(self, detail: str) -> None:
        """Tell that what was open has ended."""
        for title, since in self.open.items():
            seconds = round(time.perf_counter() - since, 3)
            self.tell(Finished(step=title, passed=False, seconds=seconds, detail=detail))


def run_isolated(
    order: AnyRequest,
    tell: Tell = silence,
    *,
    bounds: ProcessLimits | None = None,
    environment: Mapping[str, str] | None = None,
) -> Manifest:
    """Carry out the order as `run` or `finish` does, in a process of its own.

    A step during which that process dies, or is ended for a bound, is recorded as failed; a new
    process goes on with the rest.

    Args:
        order: what to do.
        tell: listens to progress, in this process.
        bounds: what a step may take; by default only its logs are bounded.
        environment: of the child; None is this process's own.

    Raises:
        ModelcError: something stopped the work; artifacts already proven stay, with their record.
        BrokenOffError: a bug of ours in the child.
        KeyboardInterrupt: this process was interrupted; nothing of the child is left.
    """
    bounds = bounds or ProcessLimits()
    check_output_path(order.out)
    made = not order.out.exists()
    plan = _plan_of(order)
    while True:
        heard = _RunListener(tell)
        try:
            death = run_child(order, heard, bounds, order.out / LOGS_FOLDER, environment)
        except KeyboardInterrupt:
            clear_leftovers(order.out, made=made)
            raise
        if heard.stopped is not None:
            raise rebuild_error(heard.stopped)
        if heard.interrupted:
            raise KeyboardInterrupt
        if heard.result is not None:
            return heard.result
        if death is None:
            raise RuntimeError("the child ended without a word")
        manifest, order = _recover(death, heard, plan, order)
        if {step.name for step in plan} <= order.going_on.done:
            return manifest
        tell(Noted(text="going on with the rest in a new process"))


def _plan_of(order: AnyRequest) -> tuple[Step, ...]:
    if isinstance(order, FinishRequest):
        return plan_pending(load_manifest(order.out).pending)
    return make_plan(order)


def _recover(
    death: ChildDeath, heard: _RunListener, plan: tuple[Step, ...], order: AnyRequest
) -> tuple[Manifest, AnyRequest]:
    """The record after a death, as it is on the disk, and what is left of the order.

    Raises:
        CheckpointError: it died before it came to a step.
    """
    heard.close(death.name if death.overrun is None else death.overrun.told)
    logs = order.out / LOGS_FOLDER
    clear_leftovers(order.out)
    begun, titles = heard.begun, tuple(heard.open)
    if begun is None or not heard.entered:
        raise error_before_first_step(death, titles, logs)
    now = _read_record(order.out, begun)
    step = next(one for one in plan if one.name == heard.entered)
    if _step_end(step.name, now) == _step_end(step.name, begun):
        now = _add_failure(now, step, crash_failure(step.name, death, titles, logs), order.out)
    else:
        text = f"{step.name} was judged; then its process died ({death.name}): no more is looked at"
        heard.tell(Noted(text=text, warning=True))
    ended = {one.name for one in plan if _step_end(one.name, now) != _step_end(one.name, begun)}
    failed = {failure.step for failure in now.failures}
    kept = order.going_on.kept | (ended - failed)
    going_on = replace(order.going_on, kept=kept, failures=now.failures)
    return now, replace(order, going_on=going_on)


def _read_record(out: Path, begun: Manifest) -> Manifest:
    """The record of this run: the one on the disk, if the run has come to write it."""
    found = read_manifest(out)
    mine = (begun.created, begun.steps, begun.environment)
    if found is not None and (found.created, found.steps, found.environment) == mine:
        return found
    return begun


def _step_end(step: str, manifest: Manifest) -> tuple[object, ...]:
    """All that the record says of how a step ended."""
    names = (step, f"{REJECTED}/{step}")
    return (
        [one for one in manifest.artifacts if one.name in names],
        [one for one in manifest.verdicts if one.artifact in names],
        [one for one in manifest.failures if one.step == step],
        [one for one in manifest.pending if one.step == step],
    )


def _add_failure(manifest: Manifest, step: Step, failure: Failure, out: Path) -> Manifest:
    """The record with the failure, written as a run in this process would."""
    from ..bench import StepResult
    from ..folder import open_folder
    from ..record import find_unreferenced_files, record_result

    now = record_result(manifest, step, StepResult(failure=failure))
    with open_folder(out) as folder:
        folder.own(file.name for file in manifest.files)
        folder.commit(now, find_unreferenced_files(manifest, now))
    return now
