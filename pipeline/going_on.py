"""Where a run goes on in a folder: what is kept of its record, what is left, what was read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

from ..core.manifest import Failure, Manifest
from ..core.records import Checkpoint, Needs, step_of
from .bench import Bench
from .caching.digests import changed_since
from .caching.needs import merged
from .caching.read_tracker import ReadTracker, modules_needed, track_reads
from .order import GoingOn, Order
from .plan import Step
from .record import read_by
from .stage import Stage


def still_keyed(going_on: GoingOn, stage: Stage) -> GoingOn:
    """Without keys where a file that they were made of is another by now: this run reads that one.

    What is made then is true of what was read, and must not be found again under these keys; what
    was to be kept was made of what is no more.
    """
    changed = changed_since(going_on.inputs)
    if not changed or not going_on.keys:
        return going_on
    text = f"{changed} changed after the run began: what is made of it is not kept for later runs"
    stage.note(text, warning=True)
    return GoingOn(failures=_of_this_run(going_on.failures))


def _of_this_run(failures: Iterable[Failure]) -> tuple[Failure, ...]:
    """Without those that stood when it began, and without their orphans: both are tried again."""
    left: dict[str, Failure] = {}
    for one in failures:
        if not one.key and (not one.orphan_of or one.orphan_of in left):
            left[one.step] = one
    return tuple(left.values())


def gone_on(manifest: Manifest, known: Manifest | None, going_on: GoingOn) -> Manifest:
    """The record to go on with: only what is kept has a key, and what that needed is needed still.

    Needs are of a whole record. An artifact that is not kept may have needed other things than
    this run does, and so must not be found again by its key.
    """
    kept = _kept(manifest, going_on)
    artifacts = tuple(
        one if one.step in kept else replace(one, key="") for one in manifest.artifacts
    )
    keeps = bool(kept) or any(failure.key for failure in going_on.failures)
    needs = known.needs if known is not None and keeps else Needs()
    return replace(manifest, artifacts=artifacts, needs=needs)


def steps_left(plan: Sequence[Step], manifest: Manifest, going_on: GoingOn) -> tuple[Step, ...]:
    """The steps to carry out: what is to be kept, and is not on record with its key, is one too."""
    failed = {failure.step for failure in going_on.failures}
    done = _kept(manifest, going_on) | failed
    return tuple(step for step in plan if step.name not in done)


def _kept(manifest: Manifest, going_on: GoingOn) -> frozenset[str]:
    here = {a.step for a in manifest.artifacts if _has_key(a.name, a.key, going_on)}
    return going_on.kept & here


def _has_key(name: str, key: str, going_on: GoingOn) -> bool:
    return key == going_on.keys.get(step_of(name), "")


def tracker_for(order: Order, checkpoint: Checkpoint) -> AbstractContextManager[ReadTracker | None]:
    """What tracks files that are read beside the order; None where no later run asks for them."""
    if not order.going_on.keys:
        return nullcontext()
    ours = [place for place in (order.out, order.cache) if place is not None]
    return track_reads(
        Path.cwd(), keyed=_keyed(order, checkpoint), ours=ours, declared=order.depends
    )


def _keyed(order: Order, checkpoint: Checkpoint) -> Iterator[Path]:
    """Files and folders whose bytes are in the keys of steps."""
    yield from read_by(order, checkpoint)
    if order.lowering.calibration is not None:
        yield Path(order.lowering.calibration.source)
    if order.measuring is not None:
        yield Path(order.measuring.data.source)


def with_needs(manifest: Manifest, bench: Bench) -> Manifest:
    """The record with what was read until now."""
    tracker = bench.tracker
    needs = modules_needed(Path.cwd()) if tracker is None else tracker.needs()
    return replace(manifest, needs=merged(manifest.needs, needs))
