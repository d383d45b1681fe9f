"""One step of a plan: try each capture, prove what it gives, keep the first that holds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from shutil import rmtree

from ..core.capture import Capture
from ..core.contract import Branch, Converted, Job
from ..core.digest import record_of
from ..core.errors import ConversionError, ModelcError, RunnerError
from ..core.manifest import Failure
from ..core.records import Artifact, Attempt, FileRecord
from ..core.verdict import Verdict
from .folder import REJECTED, OutputFolder
from .order import Order
from .plan import Step
from .proof import Candidate, Frozen, frozen_arms, prove, tell_frozen
from .stage import Clock, Stage
from .subject import Subject


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What every step of one run shares."""

    order: Order
    subject: Subject
    folder: OutputFolder
    stage: Stage
    metadata: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Parent:
    """What a step starts from: the eager model (no path) or another artifact's file."""

    name: str
    digest: str
    path: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What one capture gave: files in their workplace and the verdict on them."""

    capture: Capture | None
    workplace: Path
    converted: Converted
    files: tuple[FileRecord, ...]
    verdict: Verdict
    frozen: tuple[Frozen, ...]

    @property
    def doubtful(self) -> bool:
        """Whether a trace froze a branch whose other arm no feed took."""
        return any(not frozen.others for frozen in self.frozen)

    @property
    def told(self) -> str:
        """The frozen branches in words."""
        return "; ".join(tell_frozen(self.frozen))


@dataclass(frozen=True, kw_only=True)
class Made:
    """The end of a step: an artifact with its verdict, or a failure."""

    artifact: Artifact | None = None
    verdict: Verdict | None = None
    failure: Failure | None = None


def make(step: Step, parent: Parent, bench: Bench) -> Made:
    """Try the step's captures in order; the verdict decides, not the absence of an exception.

    A trace that holds on every feed but froze a branch that no feed took is kept only when no
    later capture holds.
    """
    clock = Clock()
    attempts: list[Attempt] = []
    trials: list[Trial] = []
    errors: list[ModelcError] = []
    for capture in step.captures or (None,):
        began = Clock()
        try:
            trial = _try(step, capture, parent, bench)
        except (ConversionError, RunnerError) as error:
            errors.append(error)
            attempts.append(_attempt(capture, "error", error.message, began))
            _passed_over(step, attempts[-1], bench)
            continue
        trials.append(trial)
        attempts.append(_attempt(capture, *_outcome(trial), began))
        if trial.verdict.passed and not trial.doubtful:
            break
        _passed_over(step, attempts[-1], bench)
    if not trials:
        return Made(failure=_failure(step, errors[0], attempts))
    artifact, verdict = _settle(step, _best(trials), parent, bench)
    for trial in trials:
        rmtree(trial.workplace)  # what was not chosen may be gigabytes
    artifact = replace(artifact, attempts=tuple(attempts), seconds=clock.seconds)
    return Made(artifact=artifact, verdict=verdict)


def _attempt(capture: Capture | None, outcome: str, reason: str, clock: Clock) -> Attempt:
    return Attempt(
        capture=str(capture or "convert"), outcome=outcome, reason=reason, seconds=clock.seconds
    )


def _outcome(trial: Trial) -> tuple[str, str]:
    if not trial.verdict.passed:
        return str(trial.verdict.state), trial.verdict.reason
    return ("doubtful", trial.told) if trial.doubtful else ("passed", "")


def _passed_over(step: Step, attempt: Attempt, bench: Bench) -> None:
    """One line in the terminal for each attempt that is not the end of the step."""
    if step.captures:
        bench.stage.note(f"{step.name}: {attempt.capture} {attempt.outcome}: {attempt.reason}")


def _best(trials: list[Trial]) -> Trial:
    """The first that passed without doubt, else the first that passed, else the first."""
    passed = [trial for trial in trials if trial.verdict.passed]
    sure = [trial for trial in passed if not trial.doubtful]
    return (sure or passed or trials)[0]


def _try(step: Step, capture: Capture | None, parent: Parent, bench: Bench) -> Trial:
    """Convert in a folder of its own, then prove."""
    workplace = bench.folder.workplace(step.name)
    how = f" ({capture})" if capture else ""
    with bench.stage.step(f"convert {step.name}{how}", log=step.name):
        converted = step.target.convert(_job(step, capture, parent.path, bench, workplace))
        files = tuple(record_of(workplace / name, role=role) for name, role in converted.files)
    candidate = Candidate(
        name=step.name,
        target=step.target,
        precision=step.wanted.precision,
        path=workplace / files[0].name,
    )
    verdict = prove(candidate, bench.subject, bench.order.judging, bench.stage)
    frozen = _frozen(converted.frozen, bench)
    if not verdict.passed and frozen:
        told = "; ".join(tell_frozen(frozen))
        verdict = replace(verdict, reason=f"{verdict.reason}; {told}")
    return Trial(
        capture=capture,
        workplace=workplace,
        converted=converted,
        files=files,
        verdict=verdict,
        frozen=frozen,
    )


def _frozen(branches: tuple[Branch, ...], bench: Bench) -> tuple[Frozen, ...]:
    if not branches:
        return ()
    with bench.stage.step("look at frozen branches", log="eager"):
        return frozen_arms(bench.subject, branches)


def _job(
    step: Step, capture: Capture | None, parent: Path | None, bench: Bench, workplace: Path
) -> Job:
    metadata = {**bench.metadata, "precision": str(step.wanted.precision)}
    if capture is not None:
        metadata["capture"] = str(capture)
    return Job(
        signature=bench.subject.signature,
        precision=step.wanted.precision,
        folder=workplace,
        stem=step.stem,
        example=bench.subject.example,
        model=bench.subject.eager if parent is None else None,
        parent=parent,
        capture=capture,
        opset=bench.order.opset,
        external_data=bench.order.external_data,
        metadata=metadata,
    )


def _failure(step: Step, error: ModelcError, attempts: list[Attempt]) -> Failure:
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
        capture=None if trial.capture is None else str(trial.capture),
        options=dict(trial.converted.options),
        versions=dict(trial.converted.versions),
        notes=(*trial.converted.notes, *tell_frozen(trial.frozen)),
        rejected=not passed,
        tolerance=trial.verdict.tolerance,
    )
    untested = tell_frozen([one for one in trial.frozen if passed and not one.others])
    notes = (*trial.verdict.notes, *untested)
    return artifact, replace(trial.verdict, artifact=name, notes=notes)
