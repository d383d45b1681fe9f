"""Steps that another host finishes: prepared here, and perhaps built."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from shutil import copy2

from ..core.contract import Deferred, Preflight, Readiness
from ..core.errors import LOGGED, ConversionError, Hint, ModelcError, Option
from ..core.manifest import Failure, Manifest, Pending
from ..core.records import FileRecord
from .attempt import convert_step, make_job
from .output_folder import OutputFolder
from .plan import Step, step_failure
from .prepare_references import store_references
from .run_context import (
    Parent,
    Product,
    RunContext,
    StepResult,
    StepWork,
    find_unreferenced_files,
)

NOT_JUDGED = "built and not judged yet"  # of a step that is being judged, or whose run ended then


class BuiltKeeper:
    """Commits what a deferred target built to `pending/`, and holds the manifest that says so."""

    def __init__(self, step: Step, manifest: Manifest, context: RunContext) -> None:
        self.manifest = manifest
        self.kept: Pending | None = step.built
        self._step, self._context = step, context

    def keep(self, parent: Parent, product: Product) -> None:
        """Commit copies of the files as a pending step."""
        folder = self._context.workspace.folder
        place = folder.workplace(f"{self._step.name}-built")
        for file in product.files:
            _link_or_copy(product.workplace / file.name, place / file.name)
        pending = _describe_pending(self._step, parent, self._context, NOT_JUDGED)
        mine = [one for one in self.manifest.pending if one.step == self._step.name]
        references = mine[0].references if mine else ()
        pending = replace(pending, references=references)
        pending = _with_files(pending, replace(product, workplace=place), folder)
        others = (one for one in self.manifest.pending if one.step != self._step.name)
        now = replace(self.manifest, pending=(*others, pending))
        folder.commit(now, find_unreferenced_files(self.manifest, now))
        self.manifest, self.kept = now, pending

    def hint(self, failure: Failure) -> Failure:
        """Return the failure with the command that judges what was built again."""
        command = self.kept and f"{self.kept.command} {self._context.order.out}"
        given = failure.advice or (failure.hint,)
        again = f"{command} judges what was built without building it again"
        # the path of the log follows the hint that names it, which is last
        hint = Hint(again, "; ", *given) if LOGGED in given else Hint(*given, "; ", again)
        return replace(failure, hint=str(hint), advice=hint.parts)


def _link_or_copy(source: Path, target: Path) -> None:
    """Give a large file a second name; copy it where the file system has no links."""
    try:
        target.hardlink_to(source)
    except OSError:
        copy2(source, target)


def prepare_pending(work: StepWork, readiness: Readiness) -> StepResult:
    """Run the target's pre-flight on the parent, store references and leave the step pending.

    A target that needs no device to build is built too, unless its files are there already. If the
    pre-flight finds blockers, the step fails: another host could not finish it.
    """
    step, parent, context = work.step, work.parent, work.run
    target = step.target
    if not isinstance(target, Deferred) or parent.path is None:
        raise RuntimeError(f"{step.name} cannot be prepared")
    if step.built is not None:
        return StepResult(pending=step.built)
    try:
        with context.workspace.progress.step(f"pre-flight {step.name}", log=step.name) as clock:
            job = make_job(work, context.workspace.folder.workplace(step.name))
            found = target.preflight(job)
            clock.passed = not found.blockers
            if found.blockers:
                raise _blocker_error(step, found, context.workspace.folder.logs)
        product = convert_step(work) if readiness.builds else None
        references = _prepare_references(work)
    except ModelcError as error:
        return StepResult(failure=step_failure(step, error, []))
    for warning in found.warnings:
        context.workspace.progress.note(f"{step.name}: {warning}", warning=True)
    pending = replace(
        _describe_pending(step, parent, context, readiness.reason),
        warnings=found.warnings,
        memory=found.memory,
        source=found.source,
        references=references,
    )
    if product is not None:
        pending = _with_files(pending, product, context.workspace.folder)
    return StepResult(pending=pending)


def _describe_pending(step: Step, parent: Parent, context: RunContext, reason: str) -> Pending:
    """Return the record of a step that is not finished here."""
    if not isinstance(step.target, Deferred):
        raise TypeError(f"{step.name} cannot be finished later")
    return Pending(
        step=step.name,
        target=step.target.NAME,
        precision=step.wanted.precision,
        made_from=parent.name,
        parent=parent.digest,
        reason=reason,
        command=f"modelc {step.target.FINISHED_BY}",
        settings=dict(context.order.settings),
        limits=context.order.judging.limits_by_output,
    )


def _with_files(pending: Pending, product: Product, folder: OutputFolder) -> Pending:
    """Return the record with the built files, which move to `pending/` with the next commit."""
    made = product.converted
    return replace(
        pending,
        files=folder.keep_pending(product.files, product.workplace),
        versions=dict(made.versions),
        options=dict(made.options),
        notes=made.notes,
        judged_as=made.judged_as,
    )


def _prepare_references(work: StepWork) -> tuple[FileRecord, ...]:
    """Return the files with eager's outputs for the other host; those of before in a finish."""
    eager = work.run.eager
    if eager.stored is not None:
        return eager.stored.files
    return store_references(work) if work.run.order.references else ()


def _blocker_error(step: Step, found: Preflight, logs: Path) -> ConversionError:
    more = f" (and {len(found.blockers) - 1} more)" if len(found.blockers) > 1 else ""
    help_option: tuple[str | Option, ...] = ()
    if found.option == "plugins":
        help_option = (
            "; give libraries for missing operators with ", Option(found.option, "FILE"),
            ", or let ONNX Runtime or torch run the rest: modelc build-trt CHECKPOINT ",
            "--onnxruntime or --partial",
        )  # fmt: skip
    elif found.option:
        help_option = ("; a smaller ", Option(found.option, "N"), " may help")
    return ConversionError(
        f"{step.name} cannot be built: {found.blockers[0]}{more}",
        hint=Hint(f"see {logs / step.name}.log", *help_option),
        option=found.option,
    )
