"""Execute an order: build and judge every step, and write the manifest after each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from ..checkpoints.checkpoint_files import weight_files
from ..checkpoints.float32_copy import count_weights
from ..converters.registry import TARGETS
from ..core.children.preloaded import check_preloaded
from ..core.contract import EAGER, Deferred, Target
from ..core.events import Entered, Tell, ignore_events
from ..core.kinds import QUANTIZED
from ..core.large_arrays import available_memory
from ..core.manifest import Manifest
from ..core.model_meta import ModelMeta
from ..core.process import relax_gc
from ..core.records import REJECTED_FOLDER, Artifact, Checkpoint, sha256_of, size_text
from ..core.target_extensions import SettingsChecked, Stateful
from ..core.weights import WeightCopying
from .branch_coverage import update_branches
from .build_step import build_above_one, build_step
from .cache.result_store import DEFAULT_CACHE_LIMIT, RESULTS_FOLDER, ResultStore
from .debug.rejection import RejectionContext, add_guilty_layer
from .eager_reference import EagerReference, open_reference, read_checkpoint
from .enclosed_checks import check_enclosed
from .held_out import load_samples, refer_held_out, relocate_record, select_held_out
from .hub_source import locate_source
from .labelled_accuracy import enter_labelled
from .meta_checks import complete_meta, note_other_meta
from .order import Order
from .other_capture import build_from_other_capture
from .output_folder import OutputFolder, open_folder
from .pending_step import BuiltKeeper, prepare_pending
from .plan import Step, make_plan
from .provenance.seals import capture_method
from .python_pipeline import compare_pipeline, load_pipeline
from .quantization import CalibrationCache, prepare_calibration
from .recorded_run import has_unknown_trace, record_beside
from .resume import (
    add_dependencies,
    drop_stale_keys,
    list_remaining_steps,
    make_skipped_failure,
    open_tracker,
    resume_manifest,
)
from .run_context import (
    Parent,
    RunContext,
    RunSamples,
    StepResult,
    StepWork,
    Workspace,
    begin_record,
    find_unreferenced_files,
    read_known_record,
    record_result,
)
from .run_progress import Progress
from .stated_inputs import check_input_specs, load_functions
from .token_reference import plan_tokens


def run(
    order: Order,
    tell: Tell = ignore_events,
    *,
    targets: tuple[Target, ...] = TARGETS,
    on_start: Callable[[Manifest], object] | None = None,
) -> Manifest:
    """Execute the order.

    `on_start` receives the initial manifest before the first step.

    Raises:
        ModelcError: an error stopped the run; artifacts that passed before stay in the manifest.
    """
    plan = make_plan(order, targets)
    with relax_gc(), ExitStack() as held, open_folder(order.out) as folder:
        progress = Progress(tell=tell, logs=folder.logs)
        order = _locate(order, progress)
        checkpoint = read_checkpoint(order.source, progress)
        _warn_of_memory(plan, checkpoint, progress)
        tracker = held.enter_context(open_tracker(order, checkpoint))
        load_functions(order.custom_ops)  # fail before eager runs if one is missing
        load_pipeline(order.against_pipeline, progress)
        known = read_known_record(order, folder, checkpoint)
        folder.claim(step.file for step in plan)
        eager = open_reference(order.source, checkpoint, order.judging, progress, order.signature)
        check_preloaded()  # a model may also change them while it runs
        order, eager = _check_by_model(order, plan, eager, progress)
        eager = eager.with_tokens(plan_tokens(eager, order.judging, progress))
        note_other_meta(known, order, {step.name for step in plan}, progress)
        manifest = begin_record(order, folder, eager, known, tell)
        manifest = update_branches(manifest, eager, order.judging.accept, progress)
        manifest = replace(
            manifest, steps=tuple(step.name for step in plan), failures=order.resume.failures
        )
        manifest = resume_manifest(manifest, known, order.resume)
        if on_start is not None:
            on_start(manifest)
        left = list_remaining_steps(plan, manifest, order.resume)
        workspace = replace(make_workspace(order, folder, progress), tracker=tracker)
        quantizes = any(step.wanted.precision in QUANTIZED for step in left)
        keeps = order.references and any(step.pending is not None for step in plan)
        labelled = enter_labelled(order.measuring, eager, progress, held, keeps=keeps)
        samples = _open_samples(order, plan if quantizes else (), eager, workspace, held)
        context = RunContext(
            order=order,
            eager=eager,
            workspace=workspace,
            samples=replace(samples, labelled=labelled),
        )
        return _execute_steps(left, manifest, context)


def _execute_steps(left: Sequence[Step], manifest: Manifest, context: RunContext) -> Manifest:
    """Execute the steps in order; what no later step uses is not kept in memory."""
    memory = context.memory
    memory.quantizes.extend(step for step in left if step.quantizers)
    for done, step in enumerate(left, start=1):
        manifest = execute_step(step, manifest, context)
        if not any(later.captures for later in left[done:]):
            memory.programs.clear()
        if not any(later.quantizers for later in left[done:]):
            memory.calibrations.clear()
    return manifest


def _check_by_model(
    order: Order, plan: Sequence[Step], eager: EagerReference, progress: Progress
) -> tuple[Order, EagerReference]:
    """Check what can be checked once the model is open; complete the metadata.

    Raises:
        UsageError: a setting or the metadata contradicts the model.
        CheckpointError: steps inside the model, or the user's pipeline, compute something else.
    """
    for step in plan:
        if isinstance(step.target, SettingsChecked):
            step.target.check_settings(eager.signature, order.settings)
        if order.stateful and isinstance(step.target, Stateful):
            step.target.check_states(eager.signature)
    if eager.model.reference is not None:
        progress.note(
            f"the reference is {eager.model.reference}; to compare with eager: "
            "--against CHECKPOINT --model PKG.MOD:FACTORY"
        )
    check_enclosed(eager, progress)
    eager = replace(eager, pipeline=compare_pipeline(order.against_pipeline, eager, progress))
    data = None if order.measuring is None else order.measuring.data
    images = [one.preprocess for one in (order.lowering.calibration, data) if one is not None]
    used = next(filter(None, images), None)
    return replace(order, meta=complete_meta(order.meta or ModelMeta(), eager, used)), eager


def _warn_of_memory(plan: Sequence[Step], checkpoint: Checkpoint, progress: Progress) -> None:
    """Warn of artifacts whose runtime will take more memory for weights than is available."""
    free, weights = available_memory(), count_weights(weight_files(checkpoint))
    for step in plan:
        if not isinstance(step.target, WeightCopying) or free is None:
            continue
        needed = step.target.estimate_copies(weights, step.wanted.precision)
        if needed > free:
            text = f"{step.name}: to judge it, {step.target.NAME} needs about {size_text(needed)} "
            text += f"of memory for copies of the weights, and {size_text(free)} is available"
            progress.note(text, warning=True)


def _locate(order: Order, progress: Progress) -> Order:
    """Return the order without stale keys, and with its checkpoint on this disk.

    Raises:
        ModelcError: an input spec is wrong, or the hub does not give the checkpoint.
    """
    check_input_specs(order.source)
    resume = drop_stale_keys(order.resume, progress)
    return replace(order, resume=resume, source=locate_source(order.source, progress.tell))


def make_workspace(order: Order, folder: OutputFolder, progress: Progress) -> Workspace:
    """Create the workspace, with a cache for results of quantizers if the order has one."""
    if order.cache is None:
        return Workspace(folder=folder, progress=progress)
    limit = DEFAULT_CACHE_LIMIT if order.cache_limit is None else order.cache_limit
    store = ResultStore(order.cache / RESULTS_FOLDER, limit, tell=progress.tell)
    cache = CalibrationCache(store, order.source.checkpoint.name)
    return Workspace(folder=folder, progress=progress, cache=cache)


def _open_samples(
    order: Order,
    plan: Sequence[Step],
    eager: EagerReference,
    workspace: Workspace,
    held: ExitStack,
) -> RunSamples:
    """Open samples if a step quantizes.

    Samples of a loader may lie in a temporary folder, which is removed when `held` closes. If no
    step quantizes, use the calibration record and the held-out samples of the parent.
    """
    progress, folder = workspace.progress, workspace.folder
    options = order.lowering.calibration
    if options is None or not any(step.quantizers for step in plan):
        return _samples_of_parent(order.parent, eager, workspace)
    feeds = [one.feed for one in eager.references]
    found = prepare_calibration(options, eager.signature, feeds, progress, root=folder.path)
    held.callback(found.close)
    return RunSamples(
        calibration=found,
        record=found.record,
        held_out=refer_held_out(found.held_out, eager, progress),
    )


def _samples_of_parent(
    parent: Path | None, eager: EagerReference, workspace: Workspace
) -> RunSamples:
    """Load the held-out samples of the parent if it has the same model and inputs."""
    beside = None if parent is None else record_beside(parent)
    if parent is None or beside is None or beside[1].calibration is None:
        return RunSamples()
    manifest, artifact = beside
    same_model = manifest.checkpoint.digest == eager.checkpoint.digest
    if not same_model or manifest.signature.inputs != eager.signature.inputs:
        workspace.progress.note(
            f"the held-out samples of {parent.name} are of another model or other inputs: ignored",
            warning=True,
        )
        return RunSamples()
    record = relocate_record(beside[1].calibration, parent.parent, workspace.folder.path)
    feeds = load_samples(artifact, parent.parent)
    return RunSamples(record=record, held_out=refer_held_out(feeds, eager, workspace.progress))


def execute_step(step: Step, manifest: Manifest, context: RunContext) -> Manifest:
    """Execute one step and commit its files with the manifest atomically.

    Files that the new manifest no longer lists are removed in the same commit. What a deferred
    target built is committed to `pending/` before it is loaded, so that nothing that happens while
    it is judged costs the build. A rejected artifact is then searched for the layer that causes the
    error.

    Raises:
        CheckpointError: the checkpoint changed during the step.
    """
    context.workspace.progress.tell(Entered(artifact=step.name))
    keeper = BuiltKeeper(step, manifest, context)
    made = _make_step(step, keeper, context)
    before = manifest = keeper.manifest
    if made.failure is not None and keeper.kept is not None:
        made = replace(made, failure=keeper.hint(made.failure))
    done = _has_passed(made) or not context.eager.model.has_module
    other = None if done else build_from_other_capture(step, manifest, context)
    if other is not None:
        sibling, mother, made = other
        if mother is not None:
            manifest = record_result(manifest, sibling, mother)
            manifest = replace(manifest, steps=(*manifest.steps, sibling.name))
    elif not done and made.verdict is not None and step.is_derived:
        parent = _find_parent(step, manifest, context)
        work = parent and StepWork(step=step, parent=parent, run=context)
        made = (work and build_above_one(work)) or made
    context.eager.stamp.check()
    keys = drop_stale_keys(context.order.resume, context.workspace.progress).keys
    made = made if other else _add_key(made, keys.get(step.name, ""))
    now = add_dependencies(record_result(manifest, step, made), context.workspace.tracker)
    left = {pending.step for pending in now.pending}
    for pending in manifest.pending:
        if pending.step not in {step.name, *left}:
            text = f"{pending.step} was prepared from an older {step.name}: prepare it again"
            context.workspace.progress.note(text, warning=True)
    context.workspace.folder.commit(now, find_unreferenced_files(before, now))
    if not context.eager.model.has_module:
        return now
    rejection = RejectionContext(
        eager=context.eager,
        progress=context.workspace.progress,
        folder=context.workspace.folder.path,
        held_out=select_held_out(step, context.samples),
        written=context.order.custom_ops,
    )
    return add_guilty_layer(now, f"{REJECTED_FOLDER}/{step.name}", step.target, rejection)


def _has_passed(made: StepResult) -> bool:
    """Return whether the step is pending or has an artifact that passed."""
    return made.pending is not None or (made.verdict is not None and made.verdict.passed)


def _add_key(made: StepResult, key: str) -> StepResult:
    """Set the cache key of the step on its artifact or on its lasting failure."""
    if made.artifact is not None:
        return replace(made, artifact=replace(made.artifact, key=key))
    if made.failure is not None and made.lasting:
        return replace(made, failure=replace(made.failure, key=key))
    return made


def _make_step(step: Step, keeper: BuiltKeeper, context: RunContext) -> StepResult:
    """Build or prepare the step; skip it if its parent failed or was rejected."""
    manifest = keeper.manifest
    parent = _find_parent(step, manifest, context)
    if parent is None:
        return StepResult(failure=make_skipped_failure(step, manifest))
    work = StepWork(step=step, parent=parent, run=context)
    if step.pending is not None:
        if context.samples.labelled is not None:
            context.workspace.progress.note(
                f"{step.name} is only prepared: its accuracy is not measured"
            )
        return prepare_pending(work, step.pending)
    if isinstance(step.target, Deferred):
        work = replace(work, on_built=partial(keeper.keep, parent))
    return build_step(work)


def _find_parent(step: Step, manifest: Manifest, context: RunContext) -> Parent | None:
    """Return the parent of the step; None if it failed or was rejected."""
    folder = context.workspace.folder.path
    if step.parent is None:
        path = context.order.parent
        if path is None:
            return Parent(name=EAGER, digest=context.eager.checkpoint.digest)
        names = (
            one.name
            for one in manifest.artifacts
            if (folder / one.files[0].name).resolve() == path.resolve()
        )
        parent = Parent(name=next(names, path.name), digest=sha256_of(path), path=path, frozen=None)
        beside = record_beside(path)
        return parent if beside is None else _with_capture(parent, beside[1], beside[0])
    found = next((a for a in manifest.artifacts if a.name == step.parent), None)
    failed = {failure.step for failure in manifest.failures}
    rejected = any(a.name == f"{REJECTED_FOLDER}/{step.parent}" for a in manifest.artifacts)
    if found is None or rejected or step.parent in failed:
        return None
    parent = Parent(name=found.name, digest=found.digest, path=folder / found.files[0].name)
    return _with_capture(parent, found, manifest)


def _with_capture(parent: Parent, artifact: Artifact, manifest: Manifest) -> Parent:
    """Return the parent with the recorded capture and domain of the artifact."""
    return replace(
        parent,
        frozen=artifact.frozen,
        traced=has_unknown_trace(artifact, manifest),
        capture=capture_method(artifact, manifest),
        domain=artifact.domain,
    )
