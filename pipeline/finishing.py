"""Finishes on this host what another has prepared: digests first, then only what is missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from ..converters.registry import TARGETS
from ..core.contract import Target
from ..core.events import Noted, Tell, silence
from ..core.manifest import Failure, Manifest, Pending
from ..core.pace import unhurried_gc
from ..core.records import Artifact
from .bench import Bench
from .branches import accepting, with_branches
from .finish_order import FinishOrder
from .folder import OutputFolder, opened
from .held_out import refer, stored
from .manifest_file import write_manifest
from .order import GoingOn, Order
from .plan import Step, plan_of_pending
from .recorded import (
    as_recorded,
    changed_file,
    check_same,
    manifest_of,
    recorded_source,
)
from .run import bench_for, carry_out, measured
from .stage import Stage
from .subject import open_subject, read_checkpoint

_CHANGED = 1  # as a verdict that failed


def finish(
    asked: FinishOrder,
    tell: Tell = silence,
    *,
    targets: tuple[Target, ...] = TARGETS,
    begun: Callable[[Manifest], object] | None = None,
) -> Manifest:
    """Carry out the pending steps of an output folder.

    Args:
        asked: the folder, and what is said of it today.
        tell: listens to progress.
        targets: the table of formats.
        begun: is given the record that the run begins with, before its first step.

    Raises:
        ModelcError: the folder or the checkpoint cannot be used.
    """
    manifest, folder = manifest_of(asked.out), asked.out
    if not manifest.pending:
        return _as_it_is(manifest, folder, tell)
    source = recorded_source(manifest, folder, asked.moved)
    judging = accepting(as_recorded(asked.judging, manifest), manifest)
    plan = plan_of_pending(manifest.pending, targets)
    with unhurried_gc(), ExitStack() as held, opened(folder) as place:
        place.own(file.name for file in manifest.files)
        place.claim(step.file for step in plan)
        stage = Stage(tell=tell, logs=place.logs)
        now = read_checkpoint(source, stage)
        check_same(now, manifest, source)
        order = Order(
            source=source,
            wanted=tuple(step.wanted for step in plan),
            out=folder,
            judging=judging,
            signature=manifest.signature,
            cache=asked.cache,
            measuring=asked.measuring,
        )
        subject = open_subject(source, now, judging, stage, manifest.signature)
        done = with_branches(manifest, subject, judging.accept, stage)
        done = _going_on(done, plan, asked.going_on)
        if begun is not None:
            begun(done)
        bench = measured(bench_for(order, subject, place, stage), held)
        for step, pending in zip(plan, manifest.pending, strict=True):
            if step.name not in asked.going_on.done:
                settings = {**pending.settings, **asked.settings}
                done = _finished(step, pending, done, _with_settings(bench, settings))
        return done


def _as_it_is(manifest: Manifest, folder: Path, tell: Tell) -> Manifest:
    """The record where nothing is pending, with every digest checked; nothing is run or written."""
    tell(Noted(text=f"nothing is pending in {folder}: only digests were checked"))
    faults = [
        Failure(
            step=artifact.name,
            message=fault,
            hint="make it again, or see what is wrong: modelc validate",
            exit_code=_CHANGED,
        )
        for artifact in manifest.artifacts
        if (fault := changed_file(artifact, folder))
    ]
    names = [artifact.step for artifact in manifest.artifacts]
    steps = (*names, *(failure.step for failure in manifest.failures))
    return replace(manifest, steps=steps, failures=(*manifest.failures, *faults))


def _going_on(manifest: Manifest, plan: Sequence[Step], going_on: GoingOn) -> Manifest:
    """The record to begin with: of this run's steps, what was done before ended as it did."""
    names = (*sorted(going_on.done), *(step.name for step in plan))
    return replace(manifest, steps=tuple(dict.fromkeys(names)), failures=going_on.failures)


def _with_settings(bench: Bench, settings: Mapping[str, str]) -> Bench:
    return replace(bench, order=replace(bench.order, settings=settings))


def _finished(step: Step, pending: Pending, manifest: Manifest, bench: Bench) -> Manifest:
    """The manifest with the step carried out, if what it is made from is as it was proven."""
    parent = next((a for a in manifest.artifacts if a.name == pending.made_from), None)
    reason = _altered(pending, parent, bench.folder)
    if parent is None or reason:
        failure = Failure(
            step=step.name,
            message=f"not built: {reason}",
            hint="prepare it again from the checkpoint",
            exit_code=_CHANGED,
        )
        done = replace(manifest, failures=(*manifest.failures, failure))
        write_manifest(done, bench.folder.path)
        return done
    feeds = stored(parent, bench.folder.path)
    held_out = refer(feeds, bench.subject, bench.stage) if feeds else ()
    return carry_out(step, manifest, replace(bench, held_out=held_out, record=parent.calibration))


def _altered(pending: Pending, parent: Artifact | None, folder: OutputFolder) -> str:
    if parent is None:
        return f"{pending.made_from}, which it is made from, is no longer in the record"
    if parent.digest != pending.parent:
        return f"{pending.made_from} was made anew since this step was prepared"
    return changed_file(parent, folder.path)
