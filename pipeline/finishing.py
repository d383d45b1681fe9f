"""Finishes on this host what another has prepared: digests first, then only what is missing."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from ..converters.registry import TARGETS, target_named
from ..core.contract import Target
from ..core.events import Noted, Tell, silence
from ..core.manifest import Failure, Manifest, Pending
from ..core.records import Artifact
from .bench import Bench
from .branches import accepting, with_branches
from .folder import OutputFolder, opened
from .held_out import refer, stored
from .manifest_file import write_manifest
from .measuring import Measuring
from .order import Judging, Order, Wanted
from .pace import unhurried_gc
from .plan import Step, pending_of
from .recorded import (
    Moved,
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


def finish(  # noqa: PLR0913 - the options of a build command given a folder, all but one optional
    folder: Path,
    tell: Tell = silence,
    *,
    moved: Moved | None = None,
    judging: Judging | None = None,
    settings: Mapping[str, str] | None = None,
    cache: Path | None = None,
    measuring: Measuring | None = None,
    targets: tuple[Target, ...] = TARGETS,
) -> Manifest:
    """Carry out the pending steps of an output folder.

    Args:
        folder: an output folder.
        tell: listens to progress.
        moved: where checkpoint and samples are now.
        judging: what is not given in it is as recorded.
        settings: of the target, in place of those that were prepared with.
        cache: a folder for what later runs may use again; None does without.
        measuring: what to measure on labelled data.
        targets: the table of formats.

    Raises:
        ModelcError: the folder or the checkpoint cannot be used.
    """
    manifest = manifest_of(folder)
    if not manifest.pending:
        return _as_it_is(manifest, folder, tell)
    source = recorded_source(manifest, folder, moved or Moved())
    judging = accepting(as_recorded(judging or Judging(), manifest), manifest)
    plan = tuple(_step(pending, targets) for pending in manifest.pending)
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
            cache=cache,
            measuring=measuring,
        )
        subject = open_subject(source, now, judging, stage, manifest.signature)
        bench = measured(bench_for(order, subject, place, stage), held)
        done = replace(
            with_branches(manifest, subject, judging.accept, stage),
            steps=tuple(step.name for step in plan),
            failures=(),
        )
        for step, pending in zip(plan, manifest.pending, strict=True):
            asked = {**pending.settings, **(settings or {})}
            done = _finished(step, pending, done, _with_settings(bench, asked))
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


def _step(pending: Pending, targets: tuple[Target, ...]) -> Step:
    target = target_named(pending.target, targets)
    return Step(
        target=target,
        wanted=Wanted(target=target.NAME, precision=pending.precision),
        captures=(),
        parent=pending.made_from,
        pending=pending_of(target),
    )


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
