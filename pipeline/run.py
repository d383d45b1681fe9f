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
from .accuracy import enter_labelled
from .bench import Parent, RunContext, StepResult
from .branches import update_branches
from .caching.store import DEFAULT_CACHE_LIMIT, RESULTS_FOLDER, ResultStore
from .calibrating import prepare_calibration
from .calibration_cache import CalibrationCache
from .custom_ops import load_functions
from .folder import OutputFolder, open_folder
from .going_on import (
    add_dependencies,
    drop_stale_keys,
    list_remaining_steps,
    open_tracker,
    resume_manifest,
)
from .held_out import load_samples, refer_held_out, relocate_record
from .localising.refusal import RejectionScene, add_guilty_layer
from .making import build_above_one, build_step
from .order import Order
from .orphans import make_skipped_failure
from .other_capture import build_from_other_capture
from .plan import Step, make_plan
from .preparing import prepare_pending
from .provenance.stating import (
    CHECKPOINT_KEY,
    MODELC_KEY,
    SIGNATURE_KEY,
    capture_method,
    signature_digest,
)
from .record import begin_record, find_unreferenced_files, read_known_record, record_result
from .recorded import has_unknown_trace, record_beside
from .stage import Progress
from .subject import EagerReference, open_subject, read_checkpoint
from .trying import select_held_out


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
    with unhurried_gc(), ExitStack() as held, open_folder(order.out) as folder:
        stage = Progress(tell=tell, logs=folder.logs)
        order = replace(order, going_on=drop_stale_keys(order.going_on, stage))
        checkpoint = read_checkpoint(order.source, stage)
        tracker = held.enter_context(open_tracker(order, checkpoint))
        load_functions(order.custom_ops)  # what is not there is told before eager runs
        known = read_known_record(order, folder, checkpoint)
        folder.claim(step.file for step in plan)
        subject = open_subject(order.source, checkpoint, order.judging, stage, order.signature)
        manifest = begin_record(order, folder, subject, known, tell)
        manifest = update_branches(manifest, subject, order.judging.accept, stage)
        steps = tuple(step.name for step in plan)
        manifest = replace(manifest, steps=steps, failures=order.going_on.failures)
        manifest = resume_manifest(manifest, known, order.going_on)
        if begun is not None:
            begun(manifest)
        bench = add_labelled(
            replace(make_context(order, subject, folder, stage), tracker=tracker), held
        )
        left = list_remaining_steps(plan, manifest, order.going_on)
        bench = _add_calibration(bench, plan if _has_int8(left) else (), held)
        for done, step in enumerate(left, start=1):
            manifest = execute_step(step, manifest, bench)
            if not any(later.captures for later in left[done:]):
                bench.programs.clear()  # nothing starts from them any more
        return manifest


def _has_int8(plan: tuple[Step, ...]) -> bool:
    """Whether something is judged on samples that were held out of calibration."""
    return any(step.wanted.precision is Precision.INT8 for step in plan)


def make_context(
    order: Order, subject: EagerReference, folder: OutputFolder, stage: Progress
) -> RunContext:
    """What the steps of the order share."""
    return RunContext(
        order=order,
        subject=subject,
        folder=folder,
        stage=stage,
        metadata={
            MODELC_KEY: __version__,
            "torch": metadata.version("torch"),
            CHECKPOINT_KEY: subject.checkpoint.digest,
            SIGNATURE_KEY: signature_digest(subject.signature),
        },
        cache=_open_calibration_cache(order, stage),
        stamp=subject.stamp,
    )


def _open_calibration_cache(order: Order, stage: Progress) -> CalibrationCache | None:
    """Where quantizers' results are kept for later runs."""
    if order.cache is None:
        return None
    limit = DEFAULT_CACHE_LIMIT if order.cache_limit is None else order.cache_limit
    store = ResultStore(order.cache / RESULTS_FOLDER, limit, tell=stage.tell)
    return CalibrationCache(store, order.source.checkpoint.name)


def add_labelled(bench: RunContext, held: ExitStack) -> RunContext:
    """The bench with eager's answers on labelled data, where the order measures accuracy."""
    labelled = enter_labelled(bench.order.measuring, bench.subject, bench.stage, held)
    return replace(bench, labelled=labelled)


def _add_calibration(bench: RunContext, plan: tuple[Step, ...], held: ExitStack) -> RunContext:
    """The bench with its calibration samples looked through, where a step quantizes.

    Samples of a loader may lie in a temporary folder, which goes when `held` is closed. Where the
    parent is quantized already, what it was calibrated and judged with serves its children.
    """
    options = bench.order.lowering.calibration
    if options is None or not any(step.quantizers for step in plan):
        return _add_recorded_parent(bench)
    samples = prepare_calibration(options, bench.subject, bench.stage, root=bench.folder.path)
    held.callback(samples.close)
    held_out = refer_held_out(samples.held_out, bench.subject, bench.stage)
    return replace(bench, calibration=samples, record=samples.record, held_out=held_out)


def _add_recorded_parent(bench: RunContext) -> RunContext:
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
    record = relocate_record(beside[1].calibration, path.parent, bench.folder.path)
    held_out = refer_held_out(load_samples(artifact, path.parent), subject, bench.stage)
    return replace(bench, record=record, held_out=held_out)


def execute_step(step: Step, manifest: Manifest, bench: RunContext) -> Manifest:
    """Make one step; its files, the manifest with it and what that no longer names change at once.

    What was refused by its values is then looked into for its guilty layer.

    Raises:
        CheckpointError: the checkpoint was written to meanwhile.
    """
    bench.stage.tell(Entered(artifact=step.name))
    made, before = _make_step(step, manifest, bench), manifest
    other = None if _has_passed(made) else build_from_other_capture(step, manifest, bench)
    if other is not None:
        sibling, mother, made = other
        manifest = record_result(manifest, sibling, mother)
        manifest = replace(manifest, steps=(*manifest.steps, sibling.name))
    elif made.verdict is not None and not made.verdict.passed and step.is_derived:
        parent = _find_parent(step, manifest, bench)
        made = (parent and build_above_one(step, parent, bench)) or made
    bench.stamp.check()
    keys = drop_stale_keys(bench.order.going_on, bench.stage).keys
    made = made if other else _add_key(made, keys.get(step.name, ""))
    now = add_dependencies(record_result(manifest, step, made), bench)
    left = {pending.step for pending in now.pending}
    for pending in manifest.pending:
        if pending.step not in {step.name, *left}:
            text = f"{pending.step} was prepared with an older {step.name}: prepare it again"
            bench.stage.note(text, warning=True)
    bench.folder.commit(now, find_unreferenced_files(before, now))
    return add_guilty_layer(
        now, f"{REJECTED}/{step.name}", step.target, _rejection_scene(step, bench)
    )


def _has_passed(made: StepResult) -> bool:
    """Whether the step ended as it should: with an artifact that passed, or pending."""
    return made.pending is not None or (made.verdict is not None and made.verdict.passed)


def _add_key(made: StepResult, key: str) -> StepResult:
    """With the key of the step in its artifact's record, or in that of a failure that lasts."""
    if made.artifact is not None:
        return replace(made, artifact=replace(made.artifact, key=key))
    if made.failure is not None and made.lasting:
        return replace(made, failure=replace(made.failure, key=key))
    return made


def _rejection_scene(step: Step, bench: RunContext) -> RejectionScene:
    """Where a refused artifact of the step is looked into."""
    return RejectionScene(
        subject=bench.subject,
        stage=bench.stage,
        folder=bench.folder.path,
        held_out=select_held_out(step.wanted.precision, bench),
        written=bench.order.custom_ops,
    )


def _make_step(step: Step, manifest: Manifest, bench: RunContext) -> StepResult:
    """Make the step from its parent; a parent that was refused refuses its children."""
    parent = _find_parent(step, manifest, bench)
    if parent is None:
        return StepResult(failure=make_skipped_failure(step, manifest))
    if step.pending is not None:
        if bench.labelled is not None:
            bench.stage.note(f"{step.name} is only prepared: not measured on labelled data")
        return prepare_pending(step, parent, step.pending, bench)
    return build_step(step, parent, bench)


def _find_parent(step: Step, manifest: Manifest, bench: RunContext) -> Parent | None:
    """What the step starts from; None where that was refused."""
    if step.parent is None:
        path = bench.order.parent
        if path is None:
            return Parent(name=EAGER, digest=bench.subject.checkpoint.digest)
        known = next((a for a in manifest.artifacts if _is_artifact_file(a, path, bench)), None)
        name = path.name if known is None else known.name
        beside = record_beside(path)
        frozen = None if beside is None else beside[1].frozen
        traced = beside is not None and has_unknown_trace(beside[1], beside[0])
        return Parent(
            name=name,
            digest=sha256_of(path),
            path=path,
            frozen=frozen,
            traced=traced,
            capture="" if beside is None else capture_method(beside[1], beside[0]),
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
        traced=has_unknown_trace(parent, manifest),
        capture=capture_method(parent, manifest),
        domain=parent.domain,
    )


def _is_artifact_file(artifact: Artifact, path: Path, bench: RunContext) -> bool:
    """Whether the path is that very artifact of the output folder."""
    return (bench.folder.path / artifact.files[0].name).resolve() == path.resolve()
