"""Accuracy on labelled data: eager's outputs, computed once, compared with an artifact's."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..calibration.labelled_set import LabelledBatch, LabelledSet, open_labelled_set
from ..calibration.sample_reader import feed_digest
from ..checkpoints.factory import import_object
from ..core.contract import Advance, Array, Outputs, Runner, no_progress
from ..core.errors import ErrorCode, Hint, Option, RunnerError, UsageError, unknown_name_error
from ..core.findings import Accuracy, Answer
from ..core.signature import Signature
from ..validators.accuracy_text import metric_text
from ..validators.confidence_intervals import CONFIDENCE
from ..validators.paired_answers import (
    ModelAnswers,
    check_defined,
    compare_answers,
    explain_near_chance,
    find_differing_samples,
    find_metric,
    find_newly_broken,
)
from ..validators.task_metrics import NO_CLASS, LabelFaultError, TopK
from .limit_text import Measuring

if TYPE_CHECKING:
    from .eager_reference import EagerReference
    from .run_progress import Progress

MAX_NAMED_SAMPLES = 100  # limit of differing samples in the record


class BrokenAnswerError(RunnerError):
    """The artifact gives NaN or Inf on labelled samples where eager does not."""


def measure_accuracy(
    runner: Runner,
    labelled: LabelledFeeds,
    *,
    max_drop: float | None = None,
    advance: Advance = no_progress,
) -> Accuracy:
    """Run the labelled samples through an open model and compare it with eager.

    Args:
        runner: an opened model with the inputs and outputs of the eager reference.
        labelled: the samples with eager's outputs.
        max_drop: the limit that `Accuracy.passed` applies; the order's own if None.
        advance: receives the number of samples done.

    Raises:
        RunnerError: the runtime rejects a batch, or outputs have NaN or Inf where eager's do not.
        UsageError: the data changed, or the user's metric raised.
    """
    answers = ModelAnswers(labelled.eager.metric)
    noted = _NotableSamples(labelled=labelled, answers=answers)
    for batch in labelled.batches():
        outputs = runner.run(batch.feed)
        start = len(answers)
        try:
            answers.add(_predictions(outputs, labelled.output, batch), batch.labels)
        except LabelFaultError as error:
            raise RunnerError(
                f"its output on {batch.names[error.row]} cannot be scored: it {error.reason}",
                hint="see the verdict on its outputs",
            ) from error
        except UsageError:
            noted.find_broken(batch, start)  # a user's metric may raise on NaN
            noted.check_finite()
            raise
        noted.collect(batch, start)
        advance(len(answers), len(labelled))
    noted.check_finite()
    gate = labelled.measuring.max_drop if max_drop is None else max_drop
    return _build_accuracy(labelled, answers, tuple(noted.differing), gate)


def _predictions(outputs: Outputs, output: str, batch: LabelledBatch) -> Array:
    if output not in outputs:
        raise RunnerError(f"the artifact has no output {output!r}", hint="convert it again")
    try:
        return rows_of(outputs[output], output, batch)
    except UsageError as error:  # the output of eager has these rows
        raise RunnerError(error.message, hint="convert it again") from error


@dataclass(frozen=True, kw_only=True)
class _NotableSamples:
    """Collects samples to name in the record, while their batch is in memory."""

    labelled: LabelledFeeds
    answers: ModelAnswers
    differing: list[Answer] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def collect(self, batch: LabelledBatch, start: int) -> None:
        """Collect from the batch whose first sample has the number `start`."""
        self.find_broken(batch, start)
        eager, stop = self.labelled.eager, len(self.answers)
        for place in find_differing_samples(eager, self.answers, start, stop)[
            : MAX_NAMED_SAMPLES - len(self.differing)
        ]:
            label = int(batch.labels[place - start].reshape(-1)[0])
            self.differing.append(
                Answer(
                    sample=batch.names[place - start],
                    label=self._class(label),
                    eager=self._classes(eager, place),
                    artifact=self._classes(self.answers, place),
                )
            )

    def find_broken(self, batch: LabelledBatch, start: int) -> None:
        """Collect samples with new NaN or Inf from the batch whose first sample is `start`."""
        places = find_newly_broken(self.labelled.eager, self.answers, start, len(self.answers))
        self.broken.extend(batch.names[place - start] for place in places)

    def _classes(self, answers: ModelAnswers, place: int) -> str:
        top = answers.top_of(place, place + 1)
        return "" if top is None else ", ".join(self._class(int(one)) for one in top[0])

    def _class(self, number: int) -> str:
        names = self.labelled.samples.classes
        if number == NO_CLASS:
            return "NaN"
        return names[number] if names else str(number)

    def check_finite(self) -> None:
        """Raise BrokenAnswerError if any sample has new NaN or Inf, whatever the metric is."""
        if not self.broken:
            return
        count = len(self.broken)
        raise BrokenAnswerError(
            f"NaN or Inf on {count:,} of {len(self.answers):,} labelled samples where eager has "
            f"fewer or none, the first {self.broken[0]}",
            hint="values may overflow in its precision: keep layers in floating point",
        )


def _build_accuracy(
    labelled: LabelledFeeds, answers: ModelAnswers, named: tuple[Answer, ...], gate: float | None
) -> Accuracy:
    metric, pair = labelled.eager.metric, compare_answers(labelled.eager, answers)
    if not (math.isfinite(answers.value) and math.isfinite(pair.drop)):
        raise RunnerError(
            f"its {metric.name} is {answers.value}, eager's is {labelled.eager.value:.5g}",
            hint="see the verdict on its outputs",
        )
    return Accuracy(
        metric=metric.name,
        higher_is_better=metric.higher_is_better,
        samples=len(answers),
        eager=labelled.eager.value,
        artifact=answers.value,
        drop=pair.drop,
        low=pair.interval.low,
        high=pair.interval.high,
        confidence=CONFIDENCE,
        method=pair.interval.method,
        disagreements=pair.differing,
        disagreeing=tuple(answer.sample for answer in named),
        max_drop=gate,
        data=labelled.samples.source,
        relative=metric.relative,
        output=labelled.output,
        answers=named,
        digest=labelled.digest,
        preprocess=labelled.samples.preprocess,
    )


_STABLE_FILES_HINT = "run again, with files that stay as they are"


@dataclass(frozen=True, kw_only=True)
class LabelledFeeds:
    """An opened labelled set and eager's outputs on it, computed once.

    `signature` is that of the eager reference. `output` is the one that the metric reads. `digests`
    holds one digest per batch. `predictions` are that output by digest of the batch's feed, if they
    are to be stored.
    """

    samples: LabelledSet
    signature: Signature
    measuring: Measuring
    output: str
    eager: ModelAnswers
    digests: tuple[bytes, ...]
    predictions: Mapping[str, Array] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.eager)

    @property
    def digest(self) -> str:
        """The SHA-256 over samples and labels as fed."""
        return hashlib.sha256(b"".join(self.digests)).hexdigest()

    def batches(self) -> Iterator[LabelledBatch]:
        """Read every batch again.

        Raises:
            UsageError: the data differs from what eager was fed.
        """
        count = 0
        for count, batch in enumerate(self.samples, start=1):
            if count > len(self.digests) or batch.digest != self.digests[count - 1]:
                raise UsageError(
                    f"{batch.names[0]} changed while it was in use",
                    hint=_STABLE_FILES_HINT,
                    code=ErrorCode.FILE_CHANGED,
                )
            yield batch
        if count != len(self.digests):
            raise UsageError(
                f"{self.samples.source} shrank while it was in use", hint=_STABLE_FILES_HINT
            )


def enter_labelled(
    measuring: Measuring | None,
    eager: EagerReference,
    progress: Progress,
    held: ExitStack,
    *,
    keeps: bool = False,
) -> LabelledFeeds | None:
    """Open the data until `held` closes and run eager on all of it; None if nothing is measured.

    With `keeps`, its predictions are kept, for another host.

    Raises:
        UsageError: the data, its labels or the metric are unusable.
    """
    if measuring is None:
        return None
    metric = find_metric(measuring.metric, lambda spec: import_object(spec, "--metric"))
    with progress.step("open labelled data", log="labelled"):
        samples = open_labelled_set(
            measuring.data, eager.signature, lambda spec: import_object(spec, "--data")
        )
    held.enter_context(samples)
    predictions: dict[str, Array] | None = {} if keeps else None
    labelled = _run_eager_on_labels(
        samples, ModelAnswers(metric), measuring, eager, progress, predictions
    )
    for note in samples.notes:
        progress.note(f"labelled data: {note}")
    return labelled


def _run_eager_on_labels(  # noqa: PLR0913, PLR0917 - data, metric, eager, and what is kept
    samples: LabelledSet,
    scores: ModelAnswers,
    measuring: Measuring,
    eager: EagerReference,
    progress: Progress,
    predictions: dict[str, Array] | None,
) -> LabelledFeeds:
    title = "eager on labelled data"
    digests: list[bytes] = []
    output = ""
    with progress.step(title, log="labelled") as clock:
        for batch in samples:
            outputs = eager.model.run(batch.feed)
            output = output or _choose_output(outputs, measuring.output)
            _score_batch(scores, outputs, output, batch, samples)
            digests.append(batch.digest)
            if predictions is not None:
                predictions[feed_digest(batch.feed).hex()] = outputs[output]
            progress.advance(title, len(scores), max(len(scores), samples.places))
        broken = int((scores.count_nonfinite(0, len(scores)) > 0).sum())
        if not math.isfinite(scores.value):
            raise UsageError(
                f"eager's own {measuring.metric} is {scores.value}, with NaN or Inf on "
                f"{broken:,} of {len(scores):,} labelled samples",
                hint=Hint(
                    "remove samples on which the model fails, or name another ",
                    Option("metric-output"),
                ),
                option="metric-output",
            )
        check_defined(scores)
        value = metric_text(measuring.metric, scores.value)
        clock.detail = f"{measuring.metric} {value} on {len(scores):,} samples"
    nan = f"eager gives NaN or Inf on {broken:,} of {len(scores):,} labelled samples"
    for warning in filter(None, (explain_near_chance(scores), nan if broken else "")):
        progress.note(warning, warning=True)
    return LabelledFeeds(
        samples=samples,
        signature=eager.signature,
        measuring=measuring,
        output=output,
        eager=scores,
        digests=tuple(digests),
        predictions=predictions or {},
    )


def _choose_output(outputs: Outputs, given: str | None) -> str:
    """Return the name of the output that the metric reads.

    Raises:
        UsageError: the output does not exist, or none is of a float dtype.
    """
    if given is not None:
        if given not in outputs:
            raise unknown_name_error("--metric-output", given, list(outputs))
        return given
    floats = [name for name, array in outputs.items() if array.dtype.kind == "f"]
    if not floats:
        raise UsageError(
            f"no output of the model has a float dtype: {', '.join(outputs)}",
            hint=Hint("name what the metric reads: ", Option("metric-output", next(iter(outputs)))),
            option="metric-output",
        )
    return floats[0]


def _score_batch(
    answers: ModelAnswers, outputs: Outputs, output: str, batch: LabelledBatch, samples: LabelledSet
) -> None:
    """Score a batch of eager's outputs; a fault is attributed to the label and names the sample."""
    predictions, classes = rows_of(outputs[output], output, batch), samples.classes
    count = predictions[0].size
    if classes and isinstance(answers.metric, TopK) and count != len(classes):
        raise UsageError(
            f"{samples.source} has {len(classes)} classes, the model's output has {count}",
            hint=f"name all {count}, one a line, in {samples.source}/classes.txt",
            code=ErrorCode.LABELS_MISMATCH,
        )
    try:
        answers.add(predictions, batch.labels)
    except LabelFaultError as error:
        name = batch.names[error.row]
        raise UsageError(
            f"labelled data {samples.source}: {name} {error.reason}", hint=error.hint
        ) from error


def rows_of(array: Array, output: str, batch: LabelledBatch) -> Array:
    """Return the rows of the samples, without the padding of the batch."""
    if not batch.axis:
        return array[None]
    rows = next(iter(batch.feed.values())).shape[0]
    if not array.ndim or array.shape[0] != rows:
        shape = "x".join(map(str, array.shape)) or "a number"
        raise UsageError(
            f"the output {output!r} is {shape} for {rows} samples: not one row per sample",
            hint=Hint("name another with ", Option("metric-output", "NAME")),
            option="metric-output",
        )
    return array[: len(batch.names)]
