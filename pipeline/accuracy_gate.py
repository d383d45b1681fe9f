"""Accuracy of an artifact on labelled data with its gate."""

from __future__ import annotations

from dataclasses import replace

from ..core.errors import RunnerError, UsageError
from ..core.findings import Accuracy
from ..core.kinds import ReasonCode
from ..core.manifest import Manifest
from ..core.preprocess import Preprocess
from ..core.verdict import State
from ..validators.accuracy_text import (
    describe_accuracy,
    drop_text,
    explain_doubt,
    explain_refusal,
    value_text,
)
from ..validators.ruling import Judgment, Ruling
from .judge_case import JudgeRequest
from .labelled_accuracy import BrokenAnswerError, LabelledFeeds, measure_accuracy
from .limit_text import Measuring
from .run_progress import Progress


def check_accuracy(request: JudgeRequest, judged: Judgment) -> Ruling:
    """Measure an artifact that could be judged; a drop beyond the gate rejects it.

    An artifact that cannot be measured does not pass. Without labelled data, the accuracy on record
    of an unchanged file is compared with its gate.

    Raises:
        UsageError: the data changed, or the user's metric raised on a valid output.
    """
    verdict, labelled, candidate = judged.verdict, request.labelled, request.candidate
    if labelled is None:
        then = request.recorded_accuracy
        rejection = "" if then is None or not verdict.outputs else explain_refusal(then)
        return Ruling.fault(ReasonCode.ACCURACY, *[rejection] if rejection else [])
    if verdict.state is State.ERROR:
        return Ruling(notes=("not measured on labelled data, as it could not be judged",))
    title = f"labelled data {candidate.name}"
    try:
        with request.progress.step(
            title, log=candidate.log, attempt=True, runs_artifact=True
        ) as clock:
            clock.passed = False
            with candidate.open(verdict.device, labelled.signature) as runner:
                accuracy = measure_accuracy(
                    runner,
                    labelled,
                    advance=lambda done, total: request.progress.advance(title, done, total),
                )
            value, drop = (
                value_text(accuracy, accuracy.artifact),
                drop_text(accuracy, accuracy.drop),
            )
            clock.passed, clock.detail = accuracy.passed, f"{accuracy.metric} {value}, drop {drop}"
    except RunnerError as error:
        state = State.FAILED if isinstance(error, BrokenAnswerError) else State.ERROR
        fault = Ruling.fault(ReasonCode.ACCURACY, f"on labelled data: {error.message}")
        return replace(fault, state=state)
    except UsageError as error:
        raise UsageError(f"{candidate.name}: {error.message}", hint=error.advice) from error
    rejection, doubt = explain_refusal(accuracy), explain_doubt(accuracy)
    stated = describe_accuracy(accuracy) if request.states_accuracy else ""
    fault = Ruling.fault(ReasonCode.ACCURACY, *[rejection] if rejection else [])
    return replace(fault, accuracy=accuracy, notes=tuple(filter(None, (doubt, stated))))


def apply_recorded_gate(
    labelled: LabelledFeeds | None, then: Accuracy | None
) -> LabelledFeeds | None:
    """Add the gate on record for the same metric if none is requested."""
    if labelled is None:
        return None
    measuring = labelled.measuring
    if measuring.max_drop is not None or then is None or then.metric != measuring.metric:
        return labelled
    return replace(labelled, measuring=replace(measuring, max_drop=then.max_drop))


def apply_recorded_preprocessing(
    measuring: Measuring | None, manifest: Manifest, progress: Progress
) -> Measuring | None:
    """Add the preprocessing of images on record if none is requested."""
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
    progress.note(f"labelled data: images are preprocessed as on record, by {records[0]}")
    steps = Preprocess.parse(records[0])
    return replace(measuring, data=replace(measuring.data, preprocess=steps))


def apply_recorded_measuring(
    measuring: Measuring | None, manifest: Manifest, progress: Progress
) -> Measuring | None:
    """Add the gate and the preprocessing of the preparation if none is requested."""
    if measuring is None:
        return None
    then = manifest.order
    if measuring.max_drop is None and then.get("metric") == measuring.metric:
        gate = then.get("max_drop", "")
        measuring = replace(measuring, max_drop=float(gate) if gate else None)
    return apply_recorded_preprocessing(measuring, manifest, progress)
