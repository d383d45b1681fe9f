"""Accuracy on labelled data: eager's answers once, then any runner's beside them.

    with opened_labelled(measuring, subject, stage) as labelled:     # LabelledFeeds
        accuracy = measure_accuracy(runner, labelled, max_drop=0.005)  # core.findings.Accuracy

A run shares one LabelledFeeds: `bench.labelled`, None where the order has no `measuring`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..calibration.labelled import Batch, LabelledSet, open_labelled_set
from ..core.contract import Advance, Array, Outputs, Runner, unheard
from ..core.errors import RunnerError, UsageError
from ..core.findings import Accuracy, Answer
from ..core.names import unknown
from ..core.signature import Signature
from ..sources.factory import find
from ..validators.answers import Answers, metric_named
from ..validators.intervals import CONFIDENCE
from ..validators.pairing import differing, near_chance, newly_broken, paired
from ..validators.task_metrics import NOTHING, LabelFaultError
from .measuring import Measuring

if TYPE_CHECKING:
    from .stage import Stage
    from .subject import Subject

NAMED = 100  # disagreeing samples that are named
_HINT = "run again, with files that stay as they are"


@dataclass(frozen=True, kw_only=True)
class LabelledFeeds:
    """An opened labelled set and what eager answers on it, computed once.

    `signature` is the subject's. `output` is what the metric reads, `digests` has one a batch,
    `digest` is over all.
    """

    samples: LabelledSet
    signature: Signature
    measuring: Measuring
    output: str
    eager: Answers
    digests: tuple[bytes, ...]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        """How many samples there are."""
        return len(self.eager)

    @property
    def digest(self) -> str:
        """The SHA-256 over samples and labels as they were fed."""
        return hashlib.sha256(b"".join(self.digests)).hexdigest()

    def batches(self) -> Iterator[Batch]:
        """Every batch, read anew.

        Raises:
            UsageError: the data is not what eager was fed.
        """
        count = 0
        for count, batch in enumerate(self.samples, start=1):
            if count > len(self.digests) or batch.digest != self.digests[count - 1]:
                raise UsageError(f"{batch.names[0]} changed while it was in use", hint=_HINT)
            yield batch
        if count != len(self.digests):
            raise UsageError(f"{self.samples.source} shrank while it was in use", hint=_HINT)


class BrokenAnswerError(RunnerError):
    """The artifact answers labelled samples with NaN or Inf where eager does not."""


@contextmanager
def opened_labelled(
    measuring: Measuring, subject: Subject, stage: Stage
) -> Iterator[LabelledFeeds]:
    """Open the data and run eager on all of it; what a loader left on disk goes at the end.

    Raises:
        UsageError: the data, its labels or the metric cannot be used; told in one line.
    """
    metric = metric_named(measuring.metric, lambda spec: find(spec, "--metric"))
    with stage.step("open labelled data", log="labelled"):
        samples = open_labelled_set(
            measuring.data, subject.signature, lambda spec: find(spec, "--data")
        )
    with samples:
        labelled = _refer(samples, Answers(metric), measuring, subject, stage)
        for note in samples.notes:
            stage.note(f"labelled data: {note}")
        for note in labelled.notes:
            stage.note(note, warning=True)
        yield labelled


def labelled_for(
    measuring: Measuring | None, subject: Subject, stage: Stage, held: ExitStack
) -> LabelledFeeds | None:
    """The labelled data open for as long as `held` is; None where nothing is measured."""
    if measuring is None:
        return None
    return held.enter_context(opened_labelled(measuring, subject, stage))


def _refer(
    samples: LabelledSet, eager: Answers, measuring: Measuring, subject: Subject, stage: Stage
) -> LabelledFeeds:
    """Run eager on every sample."""
    title = "eager on labelled data"
    digests: list[bytes] = []
    output = ""
    with stage.step(title, log="labelled") as clock:
        for batch in samples:
            outputs = subject.eager.run(batch.feed)
            output = output or _output_of(outputs, measuring.output)
            _add(eager, outputs, output, batch, samples)
            digests.append(batch.digest)
            stage.advance(title, len(eager), max(len(eager), samples.places))
        value = eager.value
        clock.detail = f"{measuring.metric} {value:.6g} of {len(eager):,} samples"
    return LabelledFeeds(
        samples=samples,
        signature=subject.signature,
        measuring=measuring,
        output=output,
        eager=eager,
        digests=tuple(digests),
        notes=tuple(filter(None, (near_chance(eager),))),
    )


def _output_of(outputs: Outputs, given: str | None) -> str:
    """The name of the output that the metric reads.

    Raises:
        UsageError: there is no such output, or no float one.
    """
    if given is not None:
        if given not in outputs:
            raise unknown("--metric-output", given, list(outputs))
        return given
    floats = [name for name, array in outputs.items() if array.dtype.kind == "f"]
    if not floats:
        raise UsageError(
            f"no output of the model is of floats: {', '.join(outputs)}",
            hint=f"name what the metric reads: --metric-output {next(iter(outputs))}",
        )
    return floats[0]


def _add(
    answers: Answers, outputs: Outputs, output: str, batch: Batch, samples: LabelledSet
) -> None:
    """Score a batch of eager's; a fault is the labels', and named by the sample."""
    predictions = _rows_of(outputs[output], output, batch)
    _check_classes(predictions, samples, answers)
    try:
        answers.add(predictions, batch.labels)
    except LabelFaultError as error:
        name = batch.names[error.row]
        raise UsageError(
            f"labelled data {samples.source}: {name} {error.reason}", hint=error.hint
        ) from error


def _rows_of(array: Array, output: str, batch: Batch) -> Array:
    """The rows of the samples, without what fills the batch up."""
    if not batch.axis:
        return array[None]
    rows = next(iter(batch.feed.values())).shape[0]
    if not array.ndim or array.shape[0] != rows:
        shape = "x".join(map(str, array.shape)) or "a number"
        raise UsageError(
            f"the output {output!r} is {shape} for {rows} samples: it has no row a sample",
            hint="name another with --metric-output NAME",
        )
    return array[: len(batch.names)]


def _check_classes(predictions: Array, samples: LabelledSet, answers: Answers) -> None:
    """That there are as many classes as outputs, for metrics of classes."""
    classes = samples.classes
    if not classes or not answers.metric.name.startswith("top"):
        return
    outputs = predictions[0].size
    if outputs != len(classes):
        raise UsageError(
            f"{samples.source} has {len(classes)} classes, the model's output has {outputs}",
            hint=f"name all {outputs}, one a line, in {samples.source}/classes.txt",
        )


def measure_accuracy(
    runner: Runner,
    labelled: LabelledFeeds,
    *,
    max_drop: float | None = None,
    advance: Advance = unheard,
) -> Accuracy:
    """Run the labelled samples through an opened model and compare it with eager.

    Args:
        runner: any opened model of the subject's inputs and outputs.
        labelled: the samples with eager's answers.
        max_drop: the gate that `Accuracy.passed` holds to; None is the order's own.
        advance: told how many samples are done.

    Raises:
        RunnerError: the runtime refused a batch, or answers are NaN or Inf where eager's are not.
        UsageError: the data changed, or the user's metric raised.
    """
    answers = Answers(labelled.eager.metric)
    noted = _Noted(labelled=labelled, answers=answers)
    for batch in labelled.batches():
        outputs = runner.run(batch.feed)
        start = len(answers)
        try:
            answers.add(_predictions(outputs, labelled.output, batch), batch.labels)
        except LabelFaultError as error:
            raise RunnerError(
                f"its answer to {batch.names[error.row]} cannot be scored: it {error.reason}",
                hint="see the verdict on its outputs",
            ) from error
        noted.take(batch, start)
        advance(len(answers), len(labelled))
    noted.refuse_broken()
    gate = labelled.measuring.max_drop if max_drop is None else max_drop
    return _accuracy(labelled, answers, tuple(noted.told), gate)


def _predictions(outputs: Outputs, output: str, batch: Batch) -> Array:
    if output not in outputs:
        raise RunnerError(f"the artifact has no output {output!r}", hint="convert it again")
    try:
        return _rows_of(outputs[output], output, batch)
    except UsageError as error:  # eager's had its rows
        raise RunnerError(error.message, hint="convert it again") from error


@dataclass(frozen=True, kw_only=True)
class _Noted:
    """The samples worth a name, found while they are at hand."""

    labelled: LabelledFeeds
    answers: Answers
    told: list[Answer] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def take(self, batch: Batch, start: int) -> None:
        """Look at the batch whose first sample is number `start`."""
        eager, stop = self.labelled.eager, len(self.answers)
        places = newly_broken(eager, self.answers, start, stop)
        self.broken.extend(batch.names[place - start] for place in places)
        for place in differing(eager, self.answers, start, stop)[: NAMED - len(self.told)]:
            label = int(batch.labels[place - start].reshape(-1)[0])
            self.told.append(
                Answer(
                    sample=batch.names[place - start],
                    label=self._class(label),
                    eager=self._classes(eager, place),
                    artifact=self._classes(self.answers, place),
                )
            )

    def _classes(self, answers: Answers, place: int) -> str:
        top = answers.top_of(place, place + 1)
        return "" if top is None else ", ".join(self._class(int(one)) for one in top[0])

    def _class(self, number: int) -> str:
        names = self.labelled.samples.classes
        if number == NOTHING:
            return "NaN"
        return names[number] if names else str(number)

    def refuse_broken(self) -> None:
        """NaN where eager has none is wrong, whatever a metric makes of it."""
        if not self.broken:
            return
        count = len(self.broken)
        raise BrokenAnswerError(
            f"NaN or Inf on {count:,} of {len(self.answers):,} labelled samples where eager has "
            f"fewer or none, the first {self.broken[0]}",
            hint="values may overflow in its precision: keep layers in floating point",
        )


def _accuracy(
    labelled: LabelledFeeds, answers: Answers, told: tuple[Answer, ...], gate: float | None
) -> Accuracy:
    metric, pair = labelled.eager.metric, paired(labelled.eager, answers)
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
        disagreeing=tuple(answer.sample for answer in told),
        max_drop=gate,
        data=labelled.samples.source,
        relative=metric.relative,
        output=labelled.output,
        answers=told,
        digest=labelled.digest,
        preprocess=labelled.samples.preprocess,
    )
