"""One step of a plan: try each way, prove what it gives, keep the best that holds."""

from __future__ import annotations

from dataclasses import replace
from shutil import rmtree

from ..core.errors import ConversionError, ModelcError, RunnerError
from ..core.findings import TradeOff
from ..core.manifest import Failure
from ..core.precision import Precision
from ..core.records import Artifact, Attempt, CalibrationRecord
from ..core.verdict import Verdict
from ..sources.branches import shortest
from .bench import Bench, Made, Parent
from .budgeting import balanced, has_budget
from .choosing import chosen
from .folder import REJECTED
from .plan import Step
from .stage import Clock
from .trying import Trial, Way, attempt, ways_of
from .worst import drop_worst, place_worst


def make(step: Step, parent: Parent, bench: Bench) -> Made:
    """Try the step's ways in order; the verdict decides, not the absence of an exception.

    Captures end at the first that holds; a trace that froze a branch whose other arm no feed took
    does not. Quantizers are all tried.
    """
    clock = Clock()
    attempts: list[Attempt] = []
    trials: list[Trial] = []
    errors: list[ModelcError] = []
    for way in ways_of(step):
        began = Clock()
        try:
            trial = attempt(step, way, parent, bench)
        except (ConversionError, RunnerError) as error:
            errors.append(error)
            attempts.append(
                Attempt(
                    capture=way.name, outcome="error", reason=error.message, seconds=began.seconds
                )
            )
            _passed_over(way, step, attempts[-1], bench)
            continue
        trials.append(trial)
        attempts.append(_attempt(trial, began))
        if trial.verdict.passed and way.quantizer is None:
            break
        _passed_over(way, step, attempts[-1], bench)
    if not trials:
        drop_worst(bench.folder.path, f"{REJECTED}/{step.name}")
        return Made(failure=failure_of(step, errors[0], attempts))
    try:
        best, tradeoffs = _within_budget(step, chosen(trials), parent, bench)
    except (ConversionError, RunnerError) as error:
        return Made(failure=failure_of(step, error, attempts))
    artifact, verdict = _settle(step, best, parent, bench)
    for workplace in {trial.workplace for trial in (*trials, best)}:
        rmtree(workplace)  # what was not chosen may be gigabytes
    artifact = replace(
        artifact, attempts=tuple(attempts), tradeoffs=tradeoffs, seconds=clock.seconds
    )
    warned = tuple(
        replace(one, file=shortest(one.file)) for trial in trials for one in trial.converted.warned
    )
    return Made(artifact=artifact, verdict=verdict, warned=tuple(dict.fromkeys(warned)))


def _within_budget(
    step: Step, plain: Trial, parent: Parent, bench: Bench
) -> tuple[Trial, tuple[TradeOff, ...]]:
    """The trial to keep: of INT8 with a budget, one that holds it, if layers in float can do it."""
    if not has_budget(step, bench):
        return plain, ()
    found = balanced(step, plain, parent, bench)
    return found.trial, found.tradeoffs


def _attempt(trial: Trial, clock: Clock) -> Attempt:
    return Attempt(
        capture=trial.way.name,
        outcome=str(trial.verdict.state),
        reason=trial.verdict.reason,
        seconds=clock.seconds,
        sqnr=trial.verdict.sqnr,
        latency=trial.latency,
        size=trial.size,
    )


def _passed_over(way: Way, step: Step, attempt: Attempt, bench: Bench) -> None:
    """One line in the terminal for each attempt that did not hold."""
    if way != Way() and attempt.outcome != "passed":
        bench.stage.note(f"{step.name}: {attempt.capture} {attempt.outcome}: {attempt.reason}")


def failure_of(step: Step, error: ModelcError, attempts: list[Attempt]) -> Failure:
    """The record of a step that gave no artifact."""
    return Failure(
        step=step.name,
        message=error.message,
        hint=error.hint,
        exit_code=error.exit_code,
        attempts=tuple(attempts),
    )


def _settle(step: Step, trial: Trial, parent: Parent, bench: Bench) -> tuple[Artifact, Verdict]:
    """Move the chosen trial's files to where they belong and write its record."""
    passed = trial.verdict.passed
    name = step.name if passed else f"{REJECTED}/{step.name}"
    files = trial.files
    if passed:
        bench.folder.accept(files, trial.workplace)
    else:
        files = bench.folder.reject(files, trial.workplace)
    artifact = Artifact(
        name=name,
        target=step.target.NAME,
        precision=step.wanted.precision,
        files=files,
        parent=parent.digest,
        made_from=parent.name,
        capture=None if trial.way == Way() else trial.way.name,
        options=dict(trial.converted.options),
        versions=dict(trial.converted.versions),
        notes=trial.converted.notes,
        frozen=trial.frozen,
        judged_as=trial.converted.judged_as,
        rejected=not passed,
        tolerance=trial.verdict.tolerance,
        calibration=_calibration(step, bench),
        coverage=trial.coverage,
        latency=trial.latency,
        accuracy=trial.accuracy,
    )
    verdict = replace(trial.verdict, artifact=name)
    was = f"{REJECTED}/{step.name}"
    return artifact, place_worst(verdict, bench.folder.path, files[0].name, was=was)


def _calibration(step: Step, bench: Bench) -> CalibrationRecord | None:
    return bench.record if step.wanted.precision is Precision.INT8 else None
