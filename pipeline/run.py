"""Carries out an order: every step made and proven, the manifest written after each."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from .. import __version__
from ..converters.registry import TARGETS
from ..core.contract import EAGER, Target
from ..core.digest import sha256_of
from ..core.events import Entered, Tell, silence
from ..core.manifest import Manifest
from ..core.pace import unhurried_gc
from ..core.precision import Precision
from ..core.records import REJECTED, Artifact
from .accuracy import labelled_for
from .bench import Bench, Made, Parent
from .branches import with_branches
from .caching.store import FOLDER, LIMIT, Store
from .calibrating import calibration_for
from .calibration_cache import CalibrationCache
from .custom_ops import functions_of
from .folder import OutputFolder, opened
from .going_on import gone_on, steps_left, still_keyed, tracker_for, with_needs
from .held_out import moved_record, refer, stored
from .localising.refusal import Scene, with_guilty
from .making import make, make_above_one
from .order import Order
from .orphans import orphan
from .other_capture import make_from_other_capture
from .plan import Step, make_plan
from .preparing import prepare
from .provenance.stating import CHECKPOINT, MODELC, SIGNATURE, captured_by, signature_digest
from .record import begin_record, known_record, no_longer_named, recorded
from .recorded import record_beside, unknown_trace
from .stage import Stage
from .subject import Subject, open_subject, read_checkpoint
from .trying import held_out_for


def run(
    order: Order,
    tell: Tell = silence,
    *,
    targets: tuple[Target, ...] = TARGETS,
    begun: Callable[[Manifest], object] | None = None,
) -> Manifest:
    """Carry out the order.

    `begun` is given the record that the run begins with, before its first step.

    Raises:
        ModelcError: something stopped the work; artifacts already proven stay, with their record.
    """
    plan = make_plan(order, targets)
    with unhurried_gc(), ExitStack() as held, opened(order.out) as folder:
        stage = Stage(tell=tell, logs=folder.logs)
        order = replace(order, going_on=still_keyed(order.going_on, stage))
        checkpoint = read_checkpoint(order.source, stage)
        tracker = held.enter_context(tracker_for(order, checkpoint))
        functions_of(order.custom_ops)  # what is not there is told before eager runs
        known = known_record(order, folder, checkpoint)
        folder.claim(step.file for step in plan)
        subject = open_subject(order.source, checkpoint, order.judging, stage, order.signature)
        manifest = begin_record(order, folder, subject, known, tell)
        manifest = with_branches(manifest, subject, order.judging.accept, stage)
        steps = tuple(step.name for step in plan)
        manifest = replace(manifest, steps=steps, failures=order.going_on.failures)
        manifest = gone_on(manifest, known, order.going_on)
        if begun is not None:
            begun(manifest)
        bench = measured(replace(bench_for(order, subject, folder, stage), tracker=tracker), held)
        left = steps_left(plan, manifest, order.going_on)
        bench = _calibrated(bench, plan if _has_int8(left) else (), held)
        for done, step in enumerate(left, start=1):
            manifest = carry_out(step, manifest, bench)
            if not any(later.captures for later in left[done:]):
                bench.programs.clear()  # nothing starts from them any more
        return manifest


def _has_int8(plan: tuple[Step, ...]) -> bool:
    """Whether something is judged on samples that were held out of calibration."""
    return any(step.wanted.precision is Precision.INT8 for step in plan)


def bench_for(order: Order, subject: Subject, folder: OutputFolder, stage: Stage) -> Bench:
    """What the steps of the order share."""
    return Bench(
        order=order,
        subject=subject,
        folder=folder,
        stage=stage,
        metadata={
            MODELC: __version__,
            "torch": metadata.version("torch"),
            CHECKPOINT: subject.checkpoint.digest,
            SIGNATURE: signature_digest(subject.signature),
        },
        cache=_calibrations(order, stage),
        stamp=subject.stamp,
    )


def _calibrations(order: Order, stage: Stage) -> CalibrationCache | None:
    """Where quantizers' results are kept for later runs."""
    if order.cache is None:
        return None
    limit = LIMIT if order.cache_limit is None else order.cache_limit
    store = Store(order.cache / FOLDER, limit, tell=stage.tell)
    return CalibrationCache(store, order.source.checkpoint.name)


def measured(bench: Bench, held: ExitStack) -> Bench:
    """The bench with eager's answers on labelled data, where the order measures accuracy."""
    labelled = labelled_for(bench.order.measuring, bench.subject, bench.stage, held)
    return replace(bench, labelled=labelled)


def _calibrated(bench: Bench, plan: tuple[Step, ...], held: ExitStack) -> Bench:
    """The bench with its calibration samples looked through, where a step quantizes.

    Samples of a loader may lie in a temporary folder, which goes when `held` is closed. Where the
    parent is quantized already, what it was calibrated and judged with serves its children.
    """
    options = bench.order.lowering.calibration
    if options is None or not any(step.quantizers for step in plan):
        return _as_parent(bench)
    samples = calibration_for(options, bench.subject, bench.stage, root=bench.folder.path)
    held.callback(samples.close)
    held_out = refer(samples.held_out, bench.subject, bench.stage)
    return replace(bench, calibration=samples, record=samples.record, held_out=held_out)


def _as_parent(bench: Bench) -> Bench:
    """The bench with what the order's parent has on record, if that is of this very model."""
    path = bench.order.parent
    beside = None if path is None else record_beside(path)
    if path is None or beside is None or beside[1].calibration is None:
        return bench
    manifest, artifact = beside
    subject = bench.subject
    same_model = manifest.checkpoint.digest == subject.checkpoint.digest
    if not same_model or manifest.signature.inputs != subject.signature.inputs:
        bench.stage.note(
            f"{path.name} has held-out samples of another model or other inputs: not used",
            warning=True,
        )
        return bench
    record = moved_record(beside[1].calibration, path.parent, bench.folder.path)
    held_out = refer(stored(artifact, path.parent), subject, bench.stage)
    return replace(bench, record=record, held_out=held_out)


def carry_out(step: Step, manifest: Manifest, bench: Bench) -> Manifest:
    """Make one step; its files, the manifest with it and what that no longer names change at once.

    What was refused by its values is then looked into for its guilty layer.

    Raises:
        CheckpointError: the checkpoint was written to meanwhile.
    """
    bench.stage.tell(Entered(artifact=step.name))
    made, before = _make(step, manifest, bench), manifest
    other = None if _passed(made) else make_from_other_capture(step, manifest, bench)
    if other is not None:
        sibling, mother, made = other
        manifest = recorded(manifest, sibling, mother)
        manifest = replace(manifest, steps=(*manifest.steps, sibling.name))
    elif made.verdict is not None and not made.verdict.passed and step.is_derived:
        parent = _parent(step, manifest, bench)
        made = (parent and make_above_one(step, parent, bench)) or made
    bench.stamp.check()
    keys = still_keyed(bench.order.going_on, bench.stage).keys
    made = made if other else _keyed(made, keys.get(step.name, ""))
    now = with_needs(recorded(manifest, step, made), bench)
    left = {pending.step for pending in now.pending}
    for pending in manifest.pending:
        if pending.step not in {step.name, *left}:
            text = f"{pending.step} was prepared with an older {step.name}: prepare it again"
            bench.stage.note(text, warning=True)
    bench.folder.commit(now, no_longer_named(before, now))
    return with_guilty(now, f"{REJECTED}/{step.name}", step.target, _scene(step, bench))


def _passed(made: Made) -> bool:
    """Whether the step ended as it should: with an artifact that passed, or pending."""
    return made.pending is not None or (made.verdict is not None and made.verdict.passed)


def _keyed(made: Made, key: str) -> Made:
    """With the key of the step in its artifact's record, or in that of a failure that lasts."""
    if made.artifact is not None:
        return replace(made, artifact=replace(made.artifact, key=key))
    if made.failure is not None and made.lasting:
        return replace(made, failure=replace(made.failure, key=key))
    return made


def _scene(step: Step, bench: Bench) -> Scene:
    """Where a refused artifact of the step is looked into."""
    return Scene(
        subject=bench.subject,
        stage=bench.stage,
        folder=bench.folder.path,
        held_out=held_out_for(step.wanted.precision, bench),
        written=bench.order.custom_ops,
    )


def _make(step: Step, manifest: Manifest, bench: Bench) -> Made:
    """Make the step from its parent; a parent that was refused refuses its children."""
    parent = _parent(step, manifest, bench)
    if parent is None:
        return Made(failure=orphan(step, manifest))
    if step.pending is not None:
        if bench.labelled is not None:
            bench.stage.note(f"{step.name} is only prepared: not measured on labelled data")
        return prepare(step, parent, step.pending, bench)
    return make(step, parent, bench)


def _parent(step: Step, manifest: Manifest, bench: Bench) -> Parent | None:
    """What the step starts from; None where that was refused."""
    if step.parent is None:
        path = bench.order.parent
        if path is None:
            return Parent(name=EAGER, digest=bench.subject.checkpoint.digest)
        known = next((a for a in manifest.artifacts if _is_file(a, path, bench)), None)
        name = path.name if known is None else known.name
        beside = record_beside(path)
        frozen = None if beside is None else beside[1].frozen
        traced = beside is not None and unknown_trace(beside[1], beside[0])
        return Parent(
            name=name,
            digest=sha256_of(path),
            path=path,
            frozen=frozen,
            traced=traced,
            capture="" if beside is None else captured_by(beside[1], beside[0]),
            domain=None if beside is None else beside[1].domain,
        )
    parent = next((a for a in manifest.artifacts if a.name == step.parent), None)
    broken = {failure.step for failure in manifest.failures}
    refused = any(a.name == f"{REJECTED}/{step.parent}" for a in manifest.artifacts)
    if parent is None or refused or step.parent in broken:
        return None
    path = bench.folder.path / parent.files[0].name
    return Parent(
        name=parent.name,
        digest=parent.digest,
        path=path,
        frozen=parent.frozen,
        traced=unknown_trace(parent, manifest),
        capture=captured_by(parent, manifest),
        domain=parent.domain,
    )


def _is_file(artifact: Artifact, path: Path, bench: Bench) -> bool:
    """Whether the path is that very artifact of the output folder."""
    return (bench.folder.path / artifact.files[0].name).resolve() == path.resolve()
