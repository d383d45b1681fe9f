"""Where a run goes on in a folder: what is kept of its record, what is left, what was read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

from ..core.manifest import Failure, Manifest
from ..core.records import Checkpoint, Needs, step_of
from .bench import RunContext
from .caching.digests import first_changed
from .caching.needs import merge_dependencies
from .caching.read_tracker import ReadTracker, collect_imported_dependencies, track_reads
from .order import Order, ResumeState
from .plan import Step
from .record import input_files
from .stage import Progress


def drop_stale_keys(going_on: ResumeState, stage: Progress) -> ResumeState:
    """Without keys where a file that they were made of is another by now: this run reads that one.

    What is made then is true of what was read, and must not be found again under these keys; what
    was to be kept was made of what is no more.
    """
    changed = first_changed(going_on.inputs)
    if not changed or not going_on.keys:
        return going_on
    text = f"{changed} changed after the run began: what is made of it is not kept for later runs"
    stage.note(text, warning=True)
    return ResumeState(failures=_new_failures(going_on.failures))


def _new_failures(failures: Iterable[Failure]) -> tuple[Failure, ...]:
    """Without those that stood when it began, and without their orphans: both are tried again."""
    left: dict[str, Failure] = {}
    for one in failures:
        if not one.key and (not one.orphan_of or one.orphan_of in left):
            left[one.step] = one
    return tuple(left.values())


def resume_manifest(manifest: Manifest, known: Manifest | None, going_on: ResumeState) -> Manifest:
    """The record to go on with: only what is kept has a key, and what that needed is needed still.

    Needs are of a whole record. An artifact that is not kept may have needed other things than
    this run does, and so must not be found again by its key.
    """
    kept = _list_kept_names(manifest, going_on)
    artifacts = tuple(
        one if one.step in kept else replace(one, key="") for one in manifest.artifacts
    )
    keeps = bool(kept) or any(failure.key for failure in going_on.failures)
    needs = known.needs if known is not None and keeps else Needs()
    return replace(manifest, artifacts=artifacts, needs=needs)


def list_remaining_steps(
    plan: Sequence[Step], manifest: Manifest, going_on: ResumeState
) -> tuple[Step, ...]:
    """The steps to carry out: what is to be kept, and is not on record with its key, is one too."""
    failed = {failure.step for failure in going_on.failures}
    done = _list_kept_names(manifest, going_on) | failed
    return tuple(step for step in plan if step.name not in done)


def _list_kept_names(manifest: Manifest, going_on: ResumeState) -> frozenset[str]:
    here = {a.step for a in manifest.artifacts if _has_resumed_key(a.name, a.key, going_on)}
    return going_on.kept & here


def _has_resumed_key(name: str, key: str, going_on: ResumeState) -> bool:
    return key == going_on.keys.get(step_of(name), "")


def open_tracker(
    order: Order, checkpoint: Checkpoint
) -> AbstractContextManager[ReadTracker | None]:
    """What tracks files that are read beside the order; None where no later run asks for them."""
    if not order.going_on.keys:
        return nullcontext()
    ours = [place for place in (order.out, order.cache) if place is not None]
    return track_reads(
        Path.cwd(), keyed=_iter_keyed_paths(order, checkpoint), ours=ours, declared=order.depends
    )


def _iter_keyed_paths(order: Order, checkpoint: Checkpoint) -> Iterator[Path]:
    """Files and folders whose bytes are in the keys of steps."""
    yield from input_files(order, checkpoint)
    if order.lowering.calibration is not None:
        yield Path(order.lowering.calibration.source)
    if order.measuring is not None:
        yield Path(order.measuring.data.source)


def add_dependencies(manifest: Manifest, bench: RunContext) -> Manifest:
    """The record with what was read until now."""
    tracker = bench.tracker
    needs = collect_imported_dependencies(Path.cwd()) if tracker is None else tracker.needs()
    return replace(manifest, needs=merge_dependencies(manifest.needs, needs))
