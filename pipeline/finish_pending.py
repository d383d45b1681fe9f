"""Finish the pending steps of a folder that another host prepared, after checking digests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from ..converters.registry import TARGETS
from ..core.contract import EAGER, Native, Target
from ..core.errors import CheckpointError, ModelcError
from ..core.events import Noted, Tell, ignore_events
from ..core.manifest import Failure, Manifest, Pending
from ..core.process import relax_gc
from ..core.records import Artifact
from ..core.target_extensions import HostBound
from .accuracy_gate import apply_recorded_measuring
from .branch_coverage import update_branches
from .finish_reference import FinishReference, open_finish_reference
from .held_out import load_samples, refer_held_out
from .manifest_file import write_manifest
from .order import Order, Wanted
from .output_folder import OutputFolder, open_folder
from .plan import Step, plan_pending
from .recorded_run import FinishRequest, describe_changed_file, load_manifest
from .run_context import RunContext, RunSamples, Workspace
from .run_order import execute_step, make_workspace
from .run_progress import Progress

_CHANGED_EXIT_CODE = 1  # as for a rejected artifact
_CONSENT = "trust_engine"  # the setting that allows code in an engine
_PLUGINS = "plugins"  # the setting that names libraries to load


def finish_pending(
    request: FinishRequest,
    tell: Tell = ignore_events,
    *,
    targets: tuple[Target, ...] = TARGETS,
    on_start: Callable[[Manifest], object] | None = None,
) -> Manifest:
    """Finish the pending steps of an output folder.

    Args:
        request: the folder, and the options of this run.
        tell: receives progress events.
        targets: the table of formats.
        on_start: receives the manifest before the first step.

    Raises:
        ModelcError: the folder or the checkpoint cannot be used.
    """
    manifest, folder = load_manifest(request.out), request.out
    if not manifest.pending:
        return _check_finished(manifest, folder, tell)
    plan = plan_pending(manifest.pending, targets)
    with relax_gc(), ExitStack() as held, open_folder(folder) as place:
        place.own(file.name for file in manifest.files)
        place.claim(step.file for step in plan)
        progress = Progress(tell=tell, logs=place.logs)
        opened = open_finish_reference(manifest, request, progress)
        done, eager = manifest, opened.eager
        if eager is not None:
            done = update_branches(manifest, eager, opened.judging.accept, progress)
        # Of this run's steps, those that an interrupted run finished keep their results.
        names = (*sorted(request.resume.done), *(step.name for step in plan))
        steps = tuple(dict.fromkeys(names))
        done = replace(done, steps=steps, failures=request.resume.failures)
        if on_start is not None:
            on_start(done)
        order = Order(
            source=opened.source,
            wanted=tuple(step.wanted for step in plan),
            out=folder,
            judging=opened.judging,
            signature=manifest.signature,
            cache=request.cache,
            measuring=apply_recorded_measuring(request.measuring, manifest, progress),
            meta=manifest.meta,
        )
        workspace = make_workspace(order, place, progress)
        labelled = opened.open_labelled(order.measuring, held)
        run = _FinishRun(
            order=order, opened=opened, workspace=workspace, samples=RunSamples(labelled=labelled),
            given=request.settings,
        )  # fmt: skip
        for step, pending in zip(plan, manifest.pending, strict=True):
            if step.name not in request.resume.done:
                done = run.finish(step, pending, done)
        return done


def _reuse_built(step: Step, given: Mapping[str, str], context: RunContext) -> Step:
    """Return the step without its built files if they are not for this host and its settings.

    Files that may run code are built again without consent in this run, which `given` holds: the
    record of a stranger's folder may hold consent too.
    """
    target, built = step.target, step.built
    if built is None:
        return step
    folder, file = context.workspace.folder.path, built.files[0].name
    if describe_changed_file(built, folder):
        return step  # a failure
    consented = built.settings.get(_CONSENT) in (None, given.get(_CONSENT))
    if isinstance(target, Native) and target.distrust_reason(folder / file, given):
        consented = False
    fits = not isinstance(target, HostBound) or target.is_for_host(folder / file)
    if (
        consented
        and fits
        and _list_built(target, built.settings) == _list_built(target, context.order.settings)
    ):
        return step
    context.workspace.progress.note(
        f"{step.name}: {file} was built for another host, with other options or by a maker who is "
        "not trusted here (--trust): built again"
    )
    return replace(step, built=None)


def _list_built(target: Target, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that change what is built."""
    others = target.RUN_SETTINGS if isinstance(target, HostBound) else {_CONSENT}
    return {name: value for name, value in settings.items() if name not in others}


def _check_finished(manifest: Manifest, folder: Path, tell: Tell) -> Manifest:
    """Check every digest of a folder without pending steps; run and write nothing."""
    tell(Noted(text=f"nothing is pending in {folder}: only digests were checked"))
    faults = [
        Failure(
            step=artifact.name,
            message=fault,
            hint="build it again, or find the difference with modelc validate",
            exit_code=_CHANGED_EXIT_CODE,
        )
        for artifact in manifest.artifacts
        if (fault := describe_changed_file(artifact, folder))
    ]
    names = [artifact.step for artifact in manifest.artifacts]
    steps = (*names, *(failure.step for failure in manifest.failures))
    return replace(manifest, steps=steps, failures=(*manifest.failures, *faults))


@dataclass(frozen=True, kw_only=True)
class _FinishRun:
    """What the pending steps of a folder share; `given` are the settings of this run."""

    given: Mapping[str, str]
    order: Order
    opened: FinishReference
    workspace: Workspace
    samples: RunSamples

    def finish(self, step: Step, pending: Pending, manifest: Manifest) -> Manifest:
        """Execute the step, if the artifact that it is built from is unchanged."""
        folder, progress = self.workspace.folder, self.workspace.progress
        plugins = pending.settings.get(_PLUGINS)
        if plugins not in (None, self.given.get(_PLUGINS)):
            message = f"not finished: its record names the plugins {plugins}, which run code"
            hint = "give them as --plugins, only if you trust their maker"
            return self._fail(step, message, hint, manifest, CheckpointError.exit_code)
        parent = next((a for a in manifest.artifacts if a.name == pending.made_from), None)
        reason = _describe_altered(step, pending, parent, folder)
        if parent is None or reason:
            hint = "prepare it again from the checkpoint"
            return self._fail(step, f"not finished: {reason}", hint, manifest)
        try:
            eager = self.opened.eager_of(pending)
        except ModelcError as error:
            return self._fail(step, f"not finished: {error.message}", error.hint, manifest)
        order = replace(
            self.order,
            judging=self.order.judging.use_limits(pending.limits),
            settings={**pending.settings, **self.given},
            references=bool(pending.references),
        )
        feeds = load_samples(parent, folder.path)
        held_out = refer_held_out(feeds, eager, progress)
        context = RunContext(
            order=order,
            eager=eager,
            workspace=self.workspace,
            samples=replace(self.samples, held_out=held_out, record=parent.calibration),
        )
        return execute_step(_reuse_built(step, self.given, context), manifest, context)

    def _fail(
        self, step: Step, message: str, hint: str, manifest: Manifest,
        exit_code: int = _CHANGED_EXIT_CODE,
    ) -> Manifest:  # fmt: skip
        failure = Failure(step=step.name, message=message, hint=hint, exit_code=exit_code)
        done = replace(manifest, failures=(*manifest.failures, failure))
        write_manifest(done, self.workspace.folder.path)
        return done


def _describe_altered(
    step: Step, pending: Pending, parent: Artifact | None, folder: OutputFolder
) -> str:
    origin = step.target.MADE_FROM.get(pending.precision, EAGER)
    if pending.step != step.name or Wanted.parse(origin).name != pending.made_from:
        return (
            f"the manifest's record contradicts itself: {pending.target} in {pending.precision} "
            f"from {pending.made_from}"
        )
    if parent is None:
        return f"{pending.made_from}, from which it is built, is not in the manifest"
    if parent.digest != pending.parent:
        return f"{pending.made_from} was built again after this step was prepared"
    changed = describe_changed_file(parent, folder.path)
    return changed or describe_changed_file(pending, folder.path) or _describe_foreign(step, folder)


def _describe_foreign(step: Step, folder: OutputFolder) -> str:
    """Describe built files of which one does not belong to the other, or to this step."""
    if step.built is None or isinstance(step.target, HostBound):  # it is built again
        return ""
    file = step.built.files[0].name
    try:
        stored = step.target.inspect(folder.path / file).metadata.get("precision")
    except ModelcError as error:
        return error.message
    return "" if stored == step.wanted.precision else f"{file} was built in {stored}"
