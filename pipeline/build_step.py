"""Build one step of a plan: try each recipe, judge the results, keep the best that passes."""

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
    describe_misfit,
    describe_rewrite,
    match_rewrites,
    suggest_rewrites,
)
from ..capture.size_constraints import NarrowError
from ..checkpoints.user_code import shorten_path
from ..core.domain import Domain
from ..core.errors import ConversionError, ModelcError, RunnerError
from ..core.findings import TradeOff
from ..core.kinds import Capture, ReasonCode
from ..core.records import REJECTED_FOLDER, Artifact, Attempt
from ..core.signature import InputSpec
from ..core.target_extensions import runtime_settings
from ..core.verdict import Verdict
from ..validators.ruling import Ruling
from .attempt import Recipe, Trial, recipes_for, try_recipe
from .extra_sizes import size_feeds
from .fault_sensitivity import measure_sensitivity
from .held_out import select_held_out
from .judge_case import JudgeRequest, trial_candidate
from .narrow_domain import (
    SizeInterval,
    domain_inputs,
    domains_above_one,
    find_interval,
    narrow_reference,
    parse_interval,
)
from .order import Order
from .plan import Step, step_failure
from .run_context import StepResult, StepWork
from .run_progress import Clock, Progress
from .sensitive_layers import try_more_in_float
from .trial_choice import balance_layers, choose_trial
from .worst_feed import drop_worst_feeds, place_worst_feed

_MAX_NARROWED = 3  # smaller domains to try per capture, each narrower in one more dim


@dataclass
class _StepAttempts:
    """The attempts at one step so far, in order."""

    step: Step
    attempts: list[Attempt] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)
    errors: list[ModelcError] = field(default_factory=list)
    _failed: list[Recipe] = field(default_factory=list)
    _reported: set[tuple[str, str]] = field(default_factory=set)  # recipe names and reasons

    def rejections(self) -> list[tuple[Recipe, ModelcError]]:
        """Return the recipes that gave no artifact, with their errors."""
        return list(zip(self._failed, self.errors, strict=True))

    def has_passed(self) -> bool:
        """Return whether a trial passed."""
        return any(trial.verdict.passed for trial in self.trials)

    def evidence(self, errors: int = 0, trials: int = 0) -> RefusalEvidence:
        """Return the evidence, skipping the first `errors` errors and `trials` trials."""
        rejected = map(evidence_in_error, self.errors[errors:])
        judged = (evidence_in_verdict(t.verdict, t.frozen or ()) for t in self.trials[trials:])
        return join_evidence((*rejected, *judged))

    def all_of(self, recipes: Iterable[Recipe], work: StepWork) -> None:
        """Try captures until one passes, or all quantizers."""
        progress = work.run.workspace.progress
        for recipe in recipes:
            if recipe.capture is Capture.EXPORT_STRICT and not can_strict_help(self._of(recipe)):
                continue
            began = Clock()
            try:
                trial = try_recipe(work, recipe, met=self._of(recipe))
            except (ConversionError, RunnerError) as error:
                if is_redundant(error) and len(self.step.captures) > 1:
                    self._report(recipe, "skipped", error.message, progress)
                    continue
                self._failed.append(recipe)
                self.errors.append(error)
                self.attempts.append(_record_refusal(recipe, error, began))
                self._note_skipped(recipe, error.message, progress)
            else:
                self.trials.append(trial)
                self.attempts.append(_record_attempt(trial, began))
                if trial.verdict.passed and recipe.quantizer is None:
                    return
                reasons = trial.verdict.reasons
                self._note_skipped(recipe, reasons[0].text if reasons else "", progress)

    def _note_skipped(self, recipe: Recipe, reason: str, progress: Progress) -> None:
        """Report an attempt that did not pass."""
        attempt = self.attempts[-1]
        if recipe != Recipe() and attempt.outcome != "passed":
            self._report(recipe, attempt.outcome, reason, progress)

    def _report(self, recipe: Recipe, outcome: str, reason: str, progress: Progress) -> None:
        """Report a recipe without a usable artifact in one line; each reason once."""
        known = (recipe.name, reason) in self._reported
        self._reported.add((recipe.name, reason))
        names = [name for name in recipe.rewrites if not name.startswith(PATCH)]
        copy = f"with {', '.join(names)}: " if names else ""
        why = " as before" if known else f": {reason}"
        progress.note(f"{self.step.name}: {copy}{recipe.name} {outcome}{why}")

    def _of(self, recipe: Recipe) -> list[ModelcError]:
        """Return the earlier errors on the recipe's copy of the model."""
        return [error for other, error in self.rejections() if other.rewrites == recipe.rewrites]


def build_step(work: StepWork) -> StepResult:
    """Try the recipes of a step in order, and keep the best artifact by its verdict.

    Captures end at the first that passes. A trace does not pass if it froze a branch whose other
    outcome no feed covers. If no capture passes, try copies of the model with rewrites, then
    smaller domains. Quantizers are all tried.
    """
    clock = Clock()
    work = within_domain(work, domain_inputs(work.parent.domain, work.run.eager))
    step, run = work.step, work.run
    tried = _try_all(work)
    if step.captures and not tried.has_passed():
        _try_narrower_domains(tried, work)
    trials, attempts = tried.trials, tried.attempts
    if not trials:
        drop_worst_feeds(run.workspace.folder, f"{REJECTED_FOLDER}/{step.name}")
        failure = step_failure(step, _most_useful(tried.errors, narrow=run.order.narrow), attempts)
        return StepResult(failure=failure, lasting=all(error.lasting for error in tried.errors))
    try:
        best, tradeoffs = choose_trial(trials), tuple[TradeOff, ...]()
        if step.quantizers and step.searches and run.order.has_accuracy_budget:
            best, tradeoffs = balance_layers(work, best)
    except (ConversionError, RunnerError) as error:
        return StepResult(failure=step_failure(step, error, attempts), lasting=error.lasting)
    run.eager.stamp.check()
    artifact, verdict = settle_trial(work, best)
    for workplace in {trial.workplace for trial in (*trials, best)}:
        rmtree(workplace)  # unused artifacts may take gigabytes
    artifact = replace(
        artifact, attempts=tuple(attempts), tradeoffs=tradeoffs, seconds=clock.seconds
    )
    warned = tuple(
        replace(one, file=shorten_path(one.file))
        for trial in trials
        for one in trial.converted.warned
    )
    return StepResult(artifact=artifact, verdict=verdict, warned=tuple(dict.fromkeys(warned)))


def build_above_one(work: StepWork) -> StepResult | None:
    """Build a derived artifact in the domain without size 1 of dims whose bounds modelc chose.

    A runtime may fail only at size 1, or after it: OpenVINO 2026.4 keeps the strides of an
    attention whose first run has one token. Return None if the artifact does not pass there either.
    """
    work = within_domain(work, domain_inputs(work.parent.domain, work.run.eager))
    step, run = work.step, work.run
    clock, tried = Clock(), _StepAttempts(step=step)
    for inputs in domains_above_one(run.eager.signature):
        tried.all_of(recipes_for(step), within_domain(work, inputs))
        if tried.has_passed():
            run.workspace.folder.forget()
            best = choose_trial(tried.trials)
            artifact, verdict = settle_trial(work, best)
            rmtree(best.workplace)
            domain = Domain(inputs=inputs).describe_chosen()
            run.workspace.progress.note(f"{step.name}: passed in the smaller domain {domain}")
            artifact = replace(artifact, attempts=tuple(tried.attempts), seconds=clock.seconds)
            return StepResult(artifact=artifact, verdict=verdict)
    return None


def _try_all(work: StepWork) -> _StepAttempts:
    """Try the model with the user's patches only, then with each suggested set of rewrites."""
    step, run, tried = work.step, work.run, _StepAttempts(step=work.step)
    tried.all_of(recipes_for(step, _user_patches(run.order)), work)
    if not step.captures and not tried.has_passed():
        try_more_in_float(tried, work)
    if not step.captures or tried.has_passed():
        return tried
    sets = (*run.memory.held, *suggest_rewrites(run.eager.model, tried.evidence()))
    for names in dict.fromkeys(sets):  # sets that passed for another format come first
        held = _try_rewrites(names, tried, work)
        for name in held:
            run.workspace.progress.note(f"{step.name}: captured with {describe_rewrite(name)}")
        if held:
            run.memory.held[:] = [held, *(one for one in run.memory.held if one != held)]
            break
    return tried


def within_domain(work: StepWork, inputs: tuple[InputSpec, ...]) -> StepWork:
    """Return the work restricted to the domain of `inputs`, without cached captures."""
    run = work.run
    if inputs == run.eager.signature.inputs:
        return work
    key = Domain(inputs=inputs).as_input()
    if key not in run.memory.narrowed:
        run.memory.narrowed[key] = narrow_reference(run.eager, inputs, run.workspace.progress)
    memory = replace(run.memory, programs={})
    return replace(work, run=replace(run, eager=memory.narrowed[key], memory=memory))


def _try_narrower_domains(tried: _StepAttempts, work: StepWork) -> None:
    """Try captures again in the part of the domain where they are valid, the largest part first.

    This requires `--narrow`, or that the smaller domain excludes only size 1 of a dim whose
    bounds the user did not declare.
    """
    run, signature = work.run, work.run.eager.signature
    found = dict(_iter_intervals(tried, work))
    for recipe, interval in sorted(found.items(), key=lambda one: -one[1].share_of(signature)):
        within = work
        narrowed: SizeInterval | None = interval
        for _ in range(_MAX_NARROWED):
            accepted = run.order.narrow or (
                narrowed is not None and narrowed.is_all_but_one(signature)
            )
            if narrowed is None or not accepted:
                break
            within = within_domain(within, narrowed.narrow(within.run.eager.signature).inputs)
            before = len(tried.errors), len(tried.trials)
            run.workspace.progress.note(
                f"{tried.step.name}: {recipe.name} in the smaller domain {narrowed}"
            )
            tried.all_of([recipe], within)
            if tried.has_passed():
                return
            again: list[ModelcError | Trial] = [*tried.errors[before[0] :]]
            again += tried.trials[before[1] :]
            narrowed = next((_find_valid_interval(one, within) for one in again), None)


def _iter_intervals(tried: _StepAttempts, work: StepWork) -> Iterator[tuple[Recipe, SizeInterval]]:
    """Yield each recipe that is valid in a part of the domain, by its error or by running it."""
    for recipe, error in tried.rejections():
        interval = parse_interval(error, work.run.eager.signature)
        if interval is not None:
            yield recipe, interval
    for number, trial in enumerate(tried.trials):
        branches = {ReasonCode.BRANCH_FROZEN, ReasonCode.BRANCH_UNCOVERED}
        by_data = any(reason.code in branches for reason in trial.verdict.reasons)
        interval = None if by_data else _find_valid_interval(trial, work)
        if interval is not None:
            if not work.run.order.narrow:
                note = f"no feed was wrong where {interval}: --narrow converts for that domain"
                tried.trials[number] = trial.plus(Ruling(notes=(note,)))
            yield trial.recipe, interval


def _find_valid_interval(found: ModelcError | Trial, work: StepWork) -> SizeInterval | None:
    run = work.run
    if isinstance(found, ModelcError):
        return parse_interval(found, run.eager.signature)
    candidate = trial_candidate(work, found)
    device = run.order.judging.device_for(work.step.target)
    try:
        return find_interval(
            found.verdict,
            found.judged,
            lambda: candidate.open(device, found.judged.signature),
        )
    except RunnerError:
        return None


def _most_useful(errors: Sequence[ModelcError], *, narrow: bool) -> ModelcError:
    """Return the error to report.

    Prefer errors that leave a part of the domain: the first one, or the last one with `narrow`.
    """
    found = [error for error in errors if isinstance(error, NarrowError)]
    return found[-1 if narrow else 0] if found else most_specific(errors)


def _user_patches(order: Order) -> tuple[str, ...]:
    return tuple(f"{PATCH}{spec}" for spec in order.patches)


def _try_rewrites(names: tuple[str, ...], tried: _StepAttempts, work: StepWork) -> tuple[str, ...]:
    """Try these rewrites, and add rewrites that match the new errors until an attempt passes.

    Return the names of the rewrites that pass; empty if none do.
    """
    run, patches = work.run, _user_patches(work.run.order)
    while names:
        unfit = describe_misfit((*patches, *names), run.eager.model, run.eager.example)
        if unfit:
            run.workspace.progress.note(f"{tried.step.name}: {unfit}")
            return ()
        before = len(tried.errors), len(tried.trials)
        tried.all_of(recipes_for(tried.step, (*patches, *names)), work)
        if tried.has_passed():
            return names
        more = match_rewrites(run.eager.model, tried.evidence(*before), exclude=names)
        names = (*names, *more) if more else ()
    return ()


def _record_refusal(recipe: Recipe, error: ModelcError, clock: Clock) -> Attempt:
    return Attempt(
        capture=recipe.name,
        outcome="error",
        reason=error.message,
        seconds=clock.seconds,
        rewrites=recipe.rewrites,
        rest=recipe.rest,
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
        rest=trial.recipe.rest,
    )


def settle_trial(work: StepWork, trial: Trial) -> tuple[Artifact, Verdict]:
    """Move the files of the chosen trial to their final folder, and create its record."""
    step, parent, run = work.step, work.parent, work.run
    asked = JudgeRequest(
        candidate=trial_candidate(work, trial, aside=trial.workplace),
        eager=trial.judged,
        judging=run.order.select_judging(step.wanted),
        progress=run.workspace.progress,
        held_out=select_held_out(step, run.samples),
    )
    trial = trial.plus(measure_sensitivity(asked, trial.verdict))
    passed = trial.verdict.passed
    name = step.name if passed else f"{REJECTED_FOLDER}/{step.name}"
    files = trial.files
    if passed:
        run.workspace.folder.accept(files, trial.workplace)
    else:
        files = run.workspace.folder.reject(files, trial.workplace)
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
        domain=Domain(  # scope of the verdict
            inputs=trial.judged.signature.inputs,
            compute={} if trial.coverage is None else trial.coverage.share,
            settings=runtime_settings(step.target, run.order.judging.device_for(step.target)),
        ),
        judged_as=trial.converted.judged_as,
        places=size_feeds(trial.judged),
        rejected=not passed,
        tolerance=trial.verdict.tolerance,
        calibration=run.samples.record if step.uses_samples else None,
        coverage=trial.coverage,
        latency=trial.latency,
        accuracy=trial.accuracy,
    )
    was = f"{REJECTED_FOLDER}/{step.name}"
    return artifact, place_worst_feed(
        trial.verdict, run.workspace.folder, files[0].name, artifact=name, was=was
    )
