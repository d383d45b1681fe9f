"""One step of a plan: try each recipe, judge what it gives, keep the best that passes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from shutil import rmtree

from ..capture.evidence import (
    RefusalEvidence,
    evidence_in_error,
    evidence_in_verdict,
    join_evidence,
)
from ..capture.model_copy import PATCH
from ..capture.refusals import can_strict_help, is_redundant, most_specific
from ..capture.rewrite_table import (
    apply_rewrites,
    describe_rewrite,
    match_rewrites,
    suggest_rewrites,
)
from ..capture.size_constraints import NarrowError
from ..checkpoints.data_branches import shorten_path
from ..core.domain import Domain
from ..core.errors import ConversionError, ModelcError, RunnerError
from ..core.findings import TradeOff
from ..core.kinds import Capture, Precision
from ..core.records import REJECTED_FOLDER, Artifact, Attempt, CalibrationRecord
from ..core.signature import InputSpec
from ..core.target_extensions import runtime_settings
from ..core.verdict import Verdict
from .attempt import Recipe, Trial, recipes_for, try_recipe
from .extra_sizes import size_feeds
from .fault_sensitivity import measure_sensitivity
from .held_out import select_held_out
from .judge_artifact import trial_candidate
from .narrow_domain import (
    SizeInterval,
    domain_inputs,
    domains_above_one,
    find_interval,
    narrow_subject,
    parse_interval,
)
from .plan import Step, step_failure
from .run_context import Parent, RunContext, StepResult
from .run_progress import Clock
from .trial_choice import balance_layers, choose_trial, has_budget
from .worst_feed import drop_worst_feeds, place_worst_feed

_MAX_NARROWED = 3  # times that one capture is narrowed, each time in another dim


@dataclass
class _StepAttempts:
    """What was tried for one step so far, in order."""

    step: Step
    attempts: list[Attempt] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)
    errors: list[ModelcError] = field(default_factory=list)
    _refused: list[Recipe] = field(default_factory=list)
    _told: set[tuple[str, str]] = field(default_factory=set)  # captures, and why they did not hold

    @property
    def refused(self) -> list[tuple[Recipe, ModelcError]]:
        """The ways that gave no artifact, and why."""
        return list(zip(self._refused, self.errors, strict=True))

    def holds(self) -> bool:
        """Whether one of the trials passed."""
        return any(trial.verdict.passed for trial in self.trials)

    def evidence(self, errors: int = 0, trials: int = 0) -> RefusalEvidence:
        """What was found wrong, from these counts of errors and trials on."""
        refused = map(evidence_in_error, self.errors[errors:])
        judged = (evidence_in_verdict(t.verdict, t.frozen or ()) for t in self.trials[trials:])
        return join_evidence((*refused, *judged))

    def all_of(self, recipes: Iterable[Recipe], parent: Parent, run: RunContext) -> None:
        """Try ways until one holds; quantizers are all tried."""
        for recipe in recipes:
            if recipe.capture is Capture.EXPORT_STRICT and not can_strict_help(self._of(recipe)):
                continue
            began = Clock()
            try:
                trial = try_recipe(self.step, recipe, parent, run, met=self._of(recipe))
            except (ConversionError, RunnerError) as error:
                if is_redundant(error) and len(self.step.captures) > 1:
                    self._tell(recipe, "left out", error.message, run)
                    continue
                self._refused.append(recipe)
                self.errors.append(error)
                self.attempts.append(_record_refusal(recipe, error, began))
                self._note_skipped(recipe, error.message, run)
            else:
                self.trials.append(trial)
                self.attempts.append(_record_attempt(trial, began))
                if trial.verdict.passed and recipe.quantizer is None:
                    return
                reasons = trial.verdict.reasons
                self._note_skipped(recipe, reasons[0].text if reasons else "", run)

    def _note_skipped(self, recipe: Recipe, reason: str, run: RunContext) -> None:
        """One line in the terminal for an attempt that did not hold."""
        attempt = self.attempts[-1]
        if recipe != Recipe() and attempt.outcome != "passed":
            self._tell(recipe, attempt.outcome, reason, run)

    def _tell(self, recipe: Recipe, outcome: str, reason: str, run: RunContext) -> None:
        """One line in the terminal for a way that gave nothing to keep, each reason once."""
        known = (recipe.name, reason) in self._told
        self._told.add((recipe.name, reason))
        names = [name for name in recipe.rewrites if not name.startswith(PATCH)]
        copy = f"with {', '.join(names)}: " if names else ""
        why = " as before" if known else f": {reason}"
        run.progress.note(f"{self.step.name}: {copy}{recipe.name} {outcome}{why}")

    def _of(self, recipe: Recipe) -> list[ModelcError]:
        """What refused the way's copy of the model so far."""
        refused = zip(self._refused, self.errors, strict=True)
        return [error for other, error in refused if other.rewrites == recipe.rewrites]


def build_step(step: Step, parent: Parent, run: RunContext) -> StepResult:
    """Try the step's ways in order; the verdict decides, not the absence of an exception.

    Captures end at the first that holds; a trace that froze a branch whose other arm no feed took
    does not. Where none holds, copies of the model are tried that known rewrites were made on.
    Quantizers are all tried.
    """
    clock = Clock()
    inputs = domain_inputs(parent.domain, run.eager)
    run = _in_domain(run, inputs)
    tried = _try_all(step, parent, run)
    if step.captures and not tried.holds():
        _try_narrower_domains(tried, parent, run)
    trials, attempts = tried.trials, tried.attempts
    if not trials:
        drop_worst_feeds(run.folder, f"{REJECTED_FOLDER}/{step.name}")
        failure = step_failure(step, _most_useful(tried.errors, run), attempts)
        return StepResult(failure=failure, lasting=all(error.lasting for error in tried.errors))
    try:
        best, tradeoffs = _apply_budget(step, choose_trial(trials), parent, run)
    except (ConversionError, RunnerError) as error:
        return StepResult(failure=step_failure(step, error, attempts), lasting=error.lasting)
    run.stamp.check()
    artifact, verdict = settle_trial(step, best, parent, run)
    for workplace in {trial.workplace for trial in (*trials, best)}:
        rmtree(workplace)  # what was not chosen may be gigabytes
    artifact = replace(
        artifact, attempts=tuple(attempts), tradeoffs=tradeoffs, seconds=clock.seconds
    )
    warned = tuple(
        replace(one, file=shorten_path(one.file))
        for trial in trials
        for one in trial.converted.warned
    )
    return StepResult(artifact=artifact, verdict=verdict, warned=tuple(dict.fromkeys(warned)))


def build_above_one(step: Step, parent: Parent, run: RunContext) -> StepResult | None:
    """What is made from another artifact, in the domain without size 1 of dims that were chosen.

    None where it does not pass there either. A runtime may go wrong at size 1 alone, or after it:
    OpenVINO 2026.4 keeps strides of an attention that ran first with one token.
    """
    run = _in_domain(run, domain_inputs(parent.domain, run.eager))
    clock, tried = Clock(), _StepAttempts(step=step)
    for inputs in domains_above_one(run.eager.signature):
        tried.all_of(recipes_for(step), parent, _in_domain(run, inputs))
        if tried.holds():
            run.folder.forget()
            best = choose_trial(tried.trials)
            artifact, verdict = settle_trial(step, best, parent, run)
            rmtree(best.workplace)
            domain = Domain(inputs=inputs).describe_chosen()
            run.progress.note(f"{step.name}: passed in the smaller domain {domain}")
            artifact = replace(artifact, attempts=tuple(tried.attempts), seconds=clock.seconds)
            return StepResult(artifact=artifact, verdict=verdict)
    return None


def _try_all(step: Step, parent: Parent, run: RunContext) -> _StepAttempts:
    """The model as it is, but for the user's patches; then with rewrites, set after set."""
    tried = _StepAttempts(step=step)
    tried.all_of(recipes_for(step, _user_patches(run)), parent, run)
    if not step.captures or tried.holds():
        return tried
    sets = (*run.held, *suggest_rewrites(run.eager.model, tried.evidence()))
    for names in dict.fromkeys(sets):  # what held for another format comes first
        held = _try_rewrites(names, tried, parent, run)
        for name in held:
            run.progress.note(f"{step.name}: captured with {describe_rewrite(name)}")
        if held:
            run.held[:] = [held, *(one for one in run.held if one != held)]
            break
    return tried


def _in_domain(run: RunContext, inputs: tuple[InputSpec, ...]) -> RunContext:
    """The bench with eager on feeds of these inputs alone; what is captured is captured anew."""
    if inputs == run.eager.signature.inputs:
        return run
    key = Domain(inputs=inputs).as_input()
    if key not in run.narrowed:
        run.narrowed[key] = narrow_subject(run.eager, inputs, run.progress)
    return replace(run, eager=run.narrowed[key], programs={})


def _try_narrower_domains(tried: _StepAttempts, parent: Parent, run: RunContext) -> None:
    """Try captures again in the part of the domain that they hold in, the largest part first.

    That is done where the smaller domain is accepted, or leaves out nothing but size 1 of a dim
    whose bounds nobody stated.
    """
    signature = run.eager.signature
    found = dict(_iter_intervals(tried, run))
    for recipe, interval in sorted(found.items(), key=lambda one: -one[1].share_of(signature)):
        within = run
        narrowed: SizeInterval | None = interval
        for _ in range(_MAX_NARROWED):
            accepted = run.order.narrow or (
                narrowed is not None and narrowed.is_all_but_one(signature)
            )
            if narrowed is None or not accepted:
                break
            within = _in_domain(within, narrowed.narrow(within.eager.signature).inputs)
            before = len(tried.errors), len(tried.trials)
            run.progress.note(f"{tried.step.name}: {recipe.name} in the smaller domain {narrowed}")
            tried.all_of([recipe], parent, within)
            if tried.holds():
                return
            again: list[ModelcError | Trial] = [*tried.errors[before[0] :]]
            again += tried.trials[before[1] :]
            narrowed = next((_find_valid_interval(one, within, tried) for one in again), None)


def _iter_intervals(tried: _StepAttempts, run: RunContext) -> Iterator[tuple[Recipe, SizeInterval]]:
    """Each way that holds in a part of the domain, as its capture says or running it shows."""
    for recipe, error in tried.refused:
        interval = parse_interval(error, run.eager.signature)
        if interval is not None:
            yield recipe, interval
    for number, trial in enumerate(tried.trials):
        interval = _find_valid_interval(trial, run, tried)
        if interval is not None:
            tried.trials[number] = replace(trial, verdict=_note_interval(trial.verdict, interval))
            yield trial.recipe, interval


def _find_valid_interval(
    found: ModelcError | Trial, run: RunContext, tried: _StepAttempts
) -> SizeInterval | None:
    if isinstance(found, ModelcError):
        return parse_interval(found, run.eager.signature)
    candidate = trial_candidate(tried.step, found, run)
    device = run.order.judging.device_for(tried.step.target)
    try:
        return find_interval(
            found.verdict,
            found.judged,
            lambda: candidate.open(device, found.judged.signature),
        )
    except RunnerError:
        return None


def _note_interval(verdict: Verdict, interval: SizeInterval) -> Verdict:
    """The verdict with the part of the domain in which the artifact is right."""
    note = f"right where {interval}, as running it shows: accept that domain with --narrow"
    return replace(verdict, notes=(*verdict.notes, note))


def _most_useful(errors: Sequence[ModelcError], run: RunContext) -> ModelcError:
    """The refusal to report: one that leaves a part of the domain; the last where it may."""
    narrow = [error for error in errors if isinstance(error, NarrowError)]
    return narrow[-1 if run.order.narrow else 0] if narrow else most_specific(errors)


def _user_patches(run: RunContext) -> tuple[str, ...]:
    return tuple(f"{PATCH}{spec}" for spec in run.order.patches)


def _try_rewrites(
    names: tuple[str, ...], tried: _StepAttempts, parent: Parent, run: RunContext
) -> tuple[str, ...]:
    """Try these rewrites, then with those that answer what they met; the names that hold."""
    while names:
        unfit = _why_unfit((*_user_patches(run), *names), run)
        if unfit:
            run.progress.note(f"{tried.step.name}: {unfit}")
            return ()
        before = len(tried.errors), len(tried.trials)
        tried.all_of(recipes_for(tried.step, (*_user_patches(run), *names)), parent, run)
        if tried.holds():
            return names
        more = match_rewrites(run.eager.model, tried.evidence(*before), exclude=names)
        names = (*names, *more) if more else ()
    return ()


def _why_unfit(names: tuple[str, ...], run: RunContext) -> str:
    """Why a copy with these rewrites is not this model; empty where it gives its outputs."""
    eager = run.eager
    try:
        with apply_rewrites(eager.model, names, example=eager.example):
            return ""
    except ConversionError as error:
        return error.message


def _apply_budget(
    step: Step, plain: Trial, parent: Parent, run: RunContext
) -> tuple[Trial, tuple[TradeOff, ...]]:
    """The trial to keep: of INT8 with a budget, one that holds it, if layers in float can do it."""
    if not has_budget(step, run):
        return plain, ()
    found = balance_layers(step, plain, parent, run)
    return found.trial, found.tradeoffs


def _record_refusal(recipe: Recipe, error: ModelcError, clock: Clock) -> Attempt:
    return Attempt(
        capture=recipe.name,
        outcome="error",
        reason=error.message,
        seconds=clock.seconds,
        rewrites=recipe.rewrites,
    )


def _record_attempt(trial: Trial, clock: Clock) -> Attempt:
    return Attempt(
        capture=trial.recipe.name,
        rewrites=trial.recipe.rewrites,
        outcome=str(trial.verdict.state),
        reason=trial.verdict.reason,
        seconds=clock.seconds,
        sqnr=trial.verdict.sqnr,
        latency=trial.latency,
        size=trial.size,
    )


def settle_trial(
    step: Step, trial: Trial, parent: Parent, run: RunContext
) -> tuple[Artifact, Verdict]:
    """Move the chosen trial's files to where they belong and write its record."""
    measured = measure_sensitivity(
        trial.verdict,
        replace(trial_candidate(step, trial, run), aside=trial.workplace),
        trial.judged,
        run.order.select_judging(step.wanted),
        run.progress,
        held_out=select_held_out(step.wanted.precision, run),
    )
    passed = trial.verdict.passed
    name = step.name if passed else f"{REJECTED_FOLDER}/{step.name}"
    files = trial.files
    if passed:
        run.folder.accept(files, trial.workplace)
    else:
        files = run.folder.reject(files, trial.workplace)
    artifact = Artifact(
        name=name,
        target=step.target.NAME,
        precision=step.wanted.precision,
        files=files,
        parent=parent.digest,
        made_from=parent.name,
        capture=None if trial.recipe == Recipe() else trial.recipe.name,
        options=dict(trial.converted.options),
        versions=dict(trial.converted.versions),
        notes=trial.converted.notes,
        rewrites=trial.recipe.rewrites,
        frozen=trial.frozen,
        domain=_artifact_domain(step, trial, run),
        judged_as=trial.converted.judged_as,
        places=size_feeds(trial.judged),
        rejected=not passed,
        tolerance=trial.verdict.tolerance,
        calibration=_calibration_record(step, run),
        coverage=trial.coverage,
        latency=trial.latency,
        accuracy=trial.accuracy,
    )
    verdict = replace(measured, artifact=name)
    was = f"{REJECTED_FOLDER}/{step.name}"
    return artifact, place_worst_feed(verdict, run.folder, files[0].name, was=was)


def _artifact_domain(step: Step, trial: Trial, run: RunContext) -> Domain:
    """What the verdict is a statement about."""
    device = run.order.judging.device_for(step.target)
    return Domain(
        inputs=trial.judged.signature.inputs,
        compute={} if trial.coverage is None else trial.coverage.share,
        settings=runtime_settings(step.target, device),
    )


def _calibration_record(step: Step, run: RunContext) -> CalibrationRecord | None:
    return run.record if step.wanted.precision is Precision.INT8 else None
