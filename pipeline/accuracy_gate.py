"""Accuracy of an artifact on labelled data with its gate, and its latency beside its parent's."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..calibration.preprocess import Preprocess
from ..converters.registry import is_stage
from ..core.contract import Feed, Runner, Target
from ..core.errors import RunnerError, UsageError
from ..core.findings import Accuracy
from ..core.kinds import Precision, ReasonCode
from ..core.manifest import Manifest
from ..core.records import Latency
from ..core.signature import Signature
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
from .run_context import StepWork
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


_WARMUP_RUNS, _MIN_RUNS, _MAX_RUNS = 3, 7, 50  # runs of each model
_MIN_NOISE = 0.01  # share of a latency: the clock, and differences between processes
_MAX_SECONDS = 4.0  # no runs beyond `_MIN_RUNS` after that


def measure_step_latency(work: StepWork, path: Path) -> Latency | None:
    """Measure a calibrated artifact beside its FP32 parent, if this host runs it as intended.

    With `order.timed`, measure any artifact below FP32.
    """
    step, parent, run = work.step, work.parent, work.run
    timed = step.quantizers or (run.order.timed and step.wanted.precision is not Precision.FP32)
    if not timed or parent.path is None or is_stage(step.target):
        return None
    feeds = [r.feed.arrays for r in (*run.samples.held_out, *run.eager.references)]
    progress = run.workspace.progress
    with progress.step(f"time {step.name}", log=step.name, runs_artifact=True) as clock:
        latency = measure_latency(
            path,
            parent.path,
            step.target,
            device=run.order.judging.device_for(step.target),
            signature=run.eager.signature,
            feed=min(feeds, key=lambda feed: sum(array.size for array in feed.values())),
        )
        clock.detail = f"{latency.milliseconds:.2f} ms, fp32 {latency.parent:.2f} ms"
    return latency


def measure_latency(  # noqa: PLR0913 - two models, what runs them, and what they are run on
    path: Path, parent: Path, target: Target, *, device: str, signature: Signature, feed: Feed
) -> Latency:
    """Return median milliseconds of a run of `path` and of its FP32 `parent`, run alternately.

    Args:
        path: the model file.
        parent: the FP32 model that it was made from; the target's runtime opens it too.
        target: the target whose runtime runs both.
        device: the device.
        signature: the signature of both.
        feed: the feed to run.

    Raises:
        RunnerError: the runtime cannot run one of them.
    """
    with (
        target.open_runner(path, device, signature) as mine,
        target.open_runner(parent, device, signature) as other,
    ):
        for _ in range(_WARMUP_RUNS):
            _time_run(mine, feed)
            _time_run(other, feed)
        began = time.perf_counter()
        pairs: list[tuple[float, float]] = []
        while len(pairs) < _MIN_RUNS or (
            len(pairs) < _MAX_RUNS and time.perf_counter() - began < _MAX_SECONDS
        ):
            pairs.append((_time_run(mine, feed), _time_run(other, feed)))
    return Latency(
        milliseconds=round(1e3 * statistics.median(one for one, _ in pairs), 3),
        parent=round(1e3 * statistics.median(other for _, other in pairs), 3),
        device=device,
        runs=len(pairs),
        noise=round(ratio_noise([one / other for one, other in pairs]), 4),
    )


def ratio_noise(ratios: Sequence[float]) -> float:
    """Return two standard errors of the median, as a share of it; at least 1 %.

    The deviation is 1.4826 times the median absolute deviation, as of a normal distribution, and a
    median of n draws scatters by sqrt(pi / 2n) of it.
    """
    middle = statistics.median(ratios)
    spread = 1.4826 * statistics.median(abs(one - middle) for one in ratios)
    return max(2 * math.sqrt(math.pi / 2 / len(ratios)) * spread / middle, _MIN_NOISE)


def report_latency(latency: Latency | None) -> Ruling:
    """Return the ruling that holds the latency, with a note if the artifact is slower."""
    if latency is None or not latency.slower:
        return Ruling(latency=latency)
    note = (
        f"slower than its fp32 parent on {latency.device}: "
        f"{latency.milliseconds:.2f} ms instead of {latency.parent:.2f} ms"
    )
    return Ruling(latency=latency, notes=(note,))


def _time_run(runner: Runner, feed: Feed) -> float:
    began = time.perf_counter()
    runner.run(feed)
    return time.perf_counter() - began
