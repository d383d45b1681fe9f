"""Resumes a run: which earlier results stay, what is left to do, what a run depends on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

from ..checkpoints.user_code import project_folder
from ..core.manifest import Failure, Manifest
from ..core.records import REJECTED_FOLDER, Checkpoint, Dependencies
from .cache.dependencies import (
    ReadTracker,
    collect_imported_dependencies,
    merge_dependencies,
    track_reads,
)
from .cache.file_digests import first_changed
from .order import Order, ResumeState
from .plan import Step
from .run_context import input_files
from .run_progress import Progress


def drop_stale_keys(resume: ResumeState, progress: Progress) -> ResumeState:
    """Drop the cache keys of a resumed run if one of its input files changed since it began.

    The keys describe the files as they were. Later results come from other bytes and must not be
    found under these keys, and earlier results are out of date.
    """
    changed = first_changed(resume.inputs)
    if not changed or not resume.keys:
        return resume
    text = f"{changed} changed after the run began: its results are not cached"
    progress.note(text, warning=True)
    return ResumeState(failures=_new_failures(resume.failures))


def _new_failures(failures: Iterable[Failure]) -> tuple[Failure, ...]:
    """Return the failures of this run; earlier ones, and steps skipped for them, are retried."""
    left: dict[str, Failure] = {}
    for one in failures:
        if not one.key and (not one.orphan_of or one.orphan_of in left):
            left[one.step] = one
    return tuple(left.values())


def resume_manifest(manifest: Manifest, known: Manifest | None, resume: ResumeState) -> Manifest:
    """Return the manifest to continue: artifacts that are kept have keys and dependencies.

    Dependencies belong to a whole record. An artifact that is not kept may have had others than
    this run has, so that its key must not be found again.
    """
    kept = _list_kept_names(manifest, resume)
    artifacts = tuple(
        one if one.step in kept else replace(one, key="") for one in manifest.artifacts
    )
    keeps = bool(kept) or any(failure.key for failure in resume.failures)
    needs = known.needs if known is not None and keeps else Dependencies()
    return replace(manifest, artifacts=artifacts, needs=needs)


def list_remaining_steps(
    plan: Sequence[Step], manifest: Manifest, resume: ResumeState
) -> tuple[Step, ...]:
    """Return the steps to execute, also those whose kept result is no longer in the manifest."""
    failed = {failure.step for failure in resume.failures}
    done = _list_kept_names(manifest, resume) | failed
    return tuple(step for step in plan if step.name not in done)


def _list_kept_names(manifest: Manifest, resume: ResumeState) -> frozenset[str]:
    here = {a.step for a in manifest.artifacts if a.key == resume.keys.get(a.step, "")}
    return resume.kept & here


def open_tracker(
    order: Order, checkpoint: Checkpoint
) -> AbstractContextManager[ReadTracker | None]:
    """Track the files that a run reads beside its request; None if no later run reuses results."""
    if not order.resume.keys:
        return nullcontext()
    ours = [place for place in (order.out, order.cache) if place is not None]
    keyed = _iter_keyed_paths(order, checkpoint)
    return track_reads(
        ReadTracker(project_folder(), keyed=keyed, ours=ours, declared=order.depends)
    )


def _iter_keyed_paths(order: Order, checkpoint: Checkpoint) -> Iterator[Path]:
    """Yield the files and folders whose bytes are part of the cache keys."""
    yield from input_files(order, checkpoint)
    if checkpoint.hub is not None:  # its commit is part of the keys
        place = Path(checkpoint.path)
        place = place if place.is_dir() else place.parent
        yield from (place, *place.iterdir())  # links to files elsewhere
    if order.lowering.calibration is not None:
        yield Path(order.lowering.calibration.source)
    if order.measuring is not None:
        yield Path(order.measuring.data.source)


def add_dependencies(manifest: Manifest, tracker: ReadTracker | None) -> Manifest:
    """Add the dependencies read so far to the manifest."""
    needs = collect_imported_dependencies(project_folder()) if tracker is None else tracker.needs()
    return replace(manifest, needs=merge_dependencies(manifest.needs, needs))


def make_skipped_failure(step: Step, manifest: Manifest) -> Failure:
    """Return the failure record of a step whose parent is missing, with its parent's exit code."""
    codes = [f.exit_code for f in manifest.failures if f.step == step.parent]
    verdict = manifest.verdict_of(f"{REJECTED_FOLDER}/{step.parent}")
    code = codes[0] if codes else (1 if verdict is None else verdict.exit_code)
    return Failure(
        step=step.name,
        message=f"skipped: its parent {step.parent} failed or was rejected",
        hint=f"see the verdict of {step.parent}",
        exit_code=code,
        orphan_of=step.parent or "",
    )
