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
from .order import Wanted
from .plan import Step
from .run_context import Parent, RunContext, StepResult


def build_from_other_capture(
    step: Step, manifest: Manifest, run: RunContext
) -> tuple[Step, StepResult | None, StepResult] | None:
    """A second parent and the step made from it, both passed; None where no capture gives both.

    Tried where the captures were left to modelc, and the step has no choice of its own. The second
    parent's result is None where another step of this folder has made it already.
    """
    parent = next((one for one in manifest.artifacts if one.name == step.parent), None)
    if parent is None or not _can_try(step, parent, run):
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
            origin = _trial_parent(other, mother)
            run.folder.forget()  # the rejected file that came of the first parent is of no use
            run.folder.claim([other.file])
            run.progress.note(f"{step.name}: made from {other.name} in place of {parent.name}")
            return (
                other,
                _settle_step(other, mother, _eager_parent(run), run),
                _settle_step(step, child, origin, run),
            )
    return None


def _can_try(step: Step, parent: Artifact, run: RunContext) -> bool:
    exact = step.wanted.precision is Precision.FP32
    half_weights = step.wanted.precision is Precision.FP16 and isinstance(step.target, FloatEnds)
    plain = (exact or half_weights) and not step.quantizers
    return plain and run.order.capture is None and parent.capture is not None


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
        path=run.folder.path / known.files[0].name,
        frozen=known.frozen,
        capture=known.capture or "",
        domain=known.domain,
    )
    try:
        child = try_recipe(step, Recipe(), parent, run)
    except (ConversionError, RunnerError) as error:
        run.progress.note(f"{step.name}: not from {known.name}: {error.message}")
        return None
    if not child.verdict.passed:
        rmtree(child.workplace)
        return None
    run.folder.forget()
    run.progress.note(f"{step.name}: made from {known.name}")
    return _settle_step(step, child, parent, run)


def _try_both(step: Step, other: Step, run: RunContext) -> tuple[Trial, Trial] | None:
    """The second parent and its child, if both pass; what was made of them goes otherwise."""
    made: list[Trial] = []
    try:
        mother = try_recipe(other, Recipe(capture=other.captures[0]), _eager_parent(run), run)
        made.append(mother)
        if mother.verdict.passed:
            child = try_recipe(step, Recipe(), _trial_parent(other, mother), run)
            made.append(child)
            if child.verdict.passed:
                return mother, child
    except (ConversionError, RunnerError) as error:
        run.progress.note(f"{step.name}: not from {other.name}: {error.message}")
    for trial in made:
        rmtree(trial.workplace)
    return None


def _eager_parent(run: RunContext) -> Parent:
    return Parent(name=EAGER, digest=run.eager.checkpoint.digest)


def _trial_parent(other: Step, trial: Trial) -> Parent:
    return Parent(
        name=other.name,
        digest=trial.files[0].sha256,
        path=trial.workplace / trial.files[0].name,
        frozen=trial.frozen,
        capture=str(other.captures[0]),
        domain=Domain(inputs=trial.judged.signature.inputs),
    )


def _settle_step(step: Step, trial: Trial, parent: Parent, run: RunContext) -> StepResult:
    artifact, verdict = settle_trial(step, trial, parent, run)
    rmtree(trial.workplace, ignore_errors=True)
    return StepResult(artifact=replace(artifact, seconds=verdict.seconds), verdict=verdict)
