"""Retries a step from the same parent format by another capture, where it was rejected."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from shutil import rmtree

from ..core.contract import EAGER
from ..core.domain import Domain
from ..core.errors import ConversionError, RunnerError
from ..core.kinds import Precision
from ..core.manifest import Manifest
from ..core.records import Artifact
from ..core.target_extensions import FloatEnds
from .attempt import Recipe, Trial, try_recipe
from .build_step import settle_trial
from .order import Order, Wanted
from .plan import Step
from .run_context import Parent, RunContext, StepResult, StepWork


def build_from_other_capture(
    step: Step, manifest: Manifest, run: RunContext
) -> tuple[Step, StepResult | None, StepResult] | None:
    """A second parent and the step made from it, both passed; None where no capture gives both.

    Tried where the captures were left to modelc, and the step has no choice of its own. The second
    parent's result is None where another step of this folder has made it already.
    """
    parent = next((one for one in manifest.artifacts if one.name == step.parent), None)
    if parent is None or not _can_try(step, parent, run.order):
        return None
    for other in _other_capture_steps(step, parent):
        known = next((one for one in manifest.artifacts if one.name == other.name), None)
        if known is not None:
            made = _build_from_known(step, known, run)
            if made is not None:
                return other, None, made
            continue
        found = _try_both(step, other, run)
        if found is not None:
            mother, child = found
            folder = run.workspace.folder
            folder.forget()  # the rejected file that came of the first parent is of no use
            folder.claim([other.file])
            run.workspace.progress.note(
                f"{step.name}: made from {other.name} in place of {parent.name}"
            )
            return (
                other,
                _settle_step(_eager_work(other, run), mother),
                _settle_step(_child_work(step, other, mother, run), child),
            )
    return None


def _can_try(step: Step, parent: Artifact, order: Order) -> bool:
    exact = step.wanted.precision is Precision.FP32
    half_weights = step.wanted.precision is Precision.FP16 and isinstance(step.target, FloatEnds)
    plain = (exact or half_weights) and not step.quantizers
    here = step.pending is None  # else another host builds it
    return plain and here and order.capture is None and parent.capture is not None


def _other_capture_steps(step: Step, parent: Artifact) -> Iterator[Step]:
    """The parent's format by each capture that was not its own."""
    target = step.origin
    if target is None:
        return
    for capture in target.CAPTURES:
        if str(capture) != parent.capture:
            yield Step(
                target=target,
                wanted=Wanted(target=target.NAME, precision=parent.precision),
                captures=(capture,),
                parent=None,
                asked=False,
                variant=str(capture),
            )


def _build_from_known(step: Step, known: Artifact, run: RunContext) -> StepResult | None:
    """The step made from a second parent that is in the folder; None where it does not pass."""
    parent = Parent(
        name=known.name,
        digest=known.digest,
        path=run.workspace.folder.path / known.files[0].name,
        frozen=known.frozen,
        capture=known.capture or "",
        domain=known.domain,
    )
    work = StepWork(step=step, parent=parent, run=run)
    try:
        child = try_recipe(work, Recipe())
    except (ConversionError, RunnerError) as error:
        run.workspace.progress.note(f"{step.name}: not from {known.name}: {error.message}")
        return None
    if not child.verdict.passed:
        rmtree(child.workplace)
        return None
    run.workspace.folder.forget()
    run.workspace.progress.note(f"{step.name}: made from {known.name}")
    return _settle_step(work, child)


def _try_both(step: Step, other: Step, run: RunContext) -> tuple[Trial, Trial] | None:
    """The second parent and its child, if both pass; what was made of them goes otherwise."""
    made: list[Trial] = []
    try:
        mother = try_recipe(_eager_work(other, run), Recipe(capture=other.captures[0]))
        made.append(mother)
        if mother.verdict.passed:
            child = try_recipe(_child_work(step, other, mother, run), Recipe())
            made.append(child)
            if child.verdict.passed:
                return mother, child
    except (ConversionError, RunnerError) as error:
        run.workspace.progress.note(f"{step.name}: not from {other.name}: {error.message}")
    for trial in made:
        rmtree(trial.workplace)
    return None


def _eager_work(step: Step, run: RunContext) -> StepWork:
    parent = Parent(name=EAGER, digest=run.eager.checkpoint.digest)
    return StepWork(step=step, parent=parent, run=run)


def _child_work(step: Step, other: Step, trial: Trial, run: RunContext) -> StepWork:
    """The step from the second parent, while that lies in its workplace."""
    parent = Parent(
        name=other.name,
        digest=trial.files[0].sha256,
        path=trial.workplace / trial.files[0].name,
        frozen=trial.frozen,
        capture=str(other.captures[0]),
        domain=Domain(inputs=trial.judged.signature.inputs),
    )
    return StepWork(step=step, parent=parent, run=run)


def _settle_step(work: StepWork, trial: Trial) -> StepResult:
    artifact, verdict = settle_trial(work, trial)
    rmtree(trial.workplace, ignore_errors=True)
    return StepResult(artifact=replace(artifact, seconds=verdict.seconds), verdict=verdict)
