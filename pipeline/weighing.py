"""An artifact on labelled data: its accuracy, and what that makes of its verdict."""

from __future__ import annotations

from dataclasses import replace

from ..calibration.preprocess import Preprocess
from ..core.errors import RunnerError, UsageError
from ..core.findings import Accuracy
from ..core.manifest import Manifest
from ..core.records import Artifact
from ..core.verdict import ReasonCode, State, Verdict
from ..validators.accuracy_text import (
    describe_accuracy,
    drop_text,
    explain_doubt,
    explain_refusal,
    value_text,
)
from .accuracy import BrokenAnswerError, LabelledFeeds, measure_accuracy
from .measuring import Measuring
from .proof import Candidate
from .stage import Progress


def gate_accuracy(
    candidate: Candidate, verdict: Verdict, labelled: LabelledFeeds | None, stage: Progress
) -> tuple[Accuracy | None, Verdict]:
    """Measure what was judged and could be run; a drop beyond the gate fails its verdict.

    What cannot be measured though it was asked for is an error of the verdict, not a pass.

    Raises:
        UsageError: the data changed meanwhile, or the user's metric raised on a sound answer.
    """
    if labelled is None:
        return None, verdict
    if verdict.state is State.ERROR:
        return None, _add_note(verdict, "not measured on labelled data, as it could not be judged")
    title = f"labelled data {candidate.name}"
    try:
        with stage.step(title, log=candidate.log, attempt=True) as clock:
            clock.passed = False
            with candidate.open(verdict.device, labelled.signature) as runner:
                accuracy = measure_accuracy(
                    runner, labelled, advance=lambda done, total: stage.advance(title, done, total)
                )
            clock.passed, clock.detail = accuracy.passed, _accuracy_detail(accuracy)
    except RunnerError as error:
        return None, _fail_measuring(verdict, error)
    except UsageError as error:
        raise UsageError(f"{candidate.name}: {error.message}", hint=error.advice) from error
    return accuracy, _set_accuracy(verdict, accuracy)


def gate_accuracy_again(
    artifact: Artifact,
    candidate: Candidate,
    verdict: Verdict,
    labelled: LabelledFeeds,
    stage: Progress,
) -> tuple[Artifact, Verdict]:
    """A recorded artifact with its accuracy measured anew, within the gate that it had.

    A file that was not run, because it is not the recorded one, is not run here either.
    """
    if not verdict.outputs:
        return artifact, _add_note(verdict, "not measured on labelled data, as it was not run")
    again = apply_recorded_gate(labelled, artifact.accuracy)
    accuracy, verdict = gate_accuracy(candidate, verdict, again, stage)
    return replace(artifact, accuracy=accuracy), verdict


def apply_recorded_gate(labelled: LabelledFeeds, then: Accuracy | None) -> LabelledFeeds:
    """The labelled data with the gate on record for the same metric, where none is asked for."""
    measuring = labelled.measuring
    if measuring.max_drop is not None or then is None or then.metric != measuring.metric:
        return labelled
    return replace(labelled, measuring=replace(measuring, max_drop=then.max_drop))


def apply_recorded_accuracy(verdict: Verdict, then: Accuracy | None) -> Verdict:
    """The verdict on an unchanged file whose recorded accuracy its gate refuses, if it does."""
    refusal = "" if then is None or not verdict.outputs else explain_refusal(then)
    return verdict.with_fault(ReasonCode.ACCURACY, refusal) if refusal else verdict


def note_accuracy(found: tuple[Accuracy | None, Verdict]) -> Verdict:
    """The verdict alone, with the accuracy as a note."""
    accuracy, verdict = found
    return verdict if accuracy is None else _add_note(verdict, describe_accuracy(accuracy))


def apply_recorded_preprocessing(
    measuring: Measuring | None, manifest: Manifest, stage: Progress
) -> Measuring | None:
    """The order with the preprocessing of images on record, where none is asked for now."""
    if measuring is None or measuring.data.preprocess is not None:
        return measuring
    records = [
        record.preprocess
        for artifact in manifest.artifacts
        for record in (artifact.accuracy, artifact.calibration)
        if record is not None and record.preprocess and ": " not in record.preprocess
    ]
    if not records:
        return measuring
    stage.note(f"labelled data: images are preprocessed as on record, by {records[0]}")
    steps = Preprocess.parse(records[0])
    return replace(measuring, data=replace(measuring.data, preprocess=steps))


def _accuracy_detail(accuracy: Accuracy) -> str:
    value, drop = value_text(accuracy, accuracy.artifact), drop_text(accuracy, accuracy.drop)
    return f"{accuracy.metric} {value}, drop {drop}"


def _add_note(verdict: Verdict, note: str) -> Verdict:
    return replace(verdict, notes=(*verdict.notes, note))


def _fail_measuring(verdict: Verdict, error: RunnerError) -> Verdict:
    """The verdict where the labelled data could not be measured, or gave NaN."""
    state = State.FAILED if isinstance(error, BrokenAnswerError) else State.ERROR
    if verdict.state is State.FAILED:
        state = State.FAILED
    text = f"on labelled data: {error.message}"
    return replace(verdict.with_fault(ReasonCode.ACCURACY, text), state=state)


def _set_accuracy(verdict: Verdict, accuracy: Accuracy) -> Verdict:
    refusal, doubt = explain_refusal(accuracy), explain_doubt(accuracy)
    if refusal:
        verdict = verdict.with_fault(ReasonCode.ACCURACY, refusal)
    return _add_note(verdict, doubt) if doubt else verdict
