"""Accuracy on labelled data: what eager answered once, and any runner's answers beside it.

    with opened_labelled(measuring, subject, stage) as labelled:     # labelled_feeds.LabelledFeeds
        accuracy = measure_accuracy(runner, labelled, max_drop=0.005)  # core.findings.Accuracy

A run shares one LabelledFeeds: `bench.labelled`, None where the order has no `measuring`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ..calibration.labelled_set import LabelledBatch
from ..core.contract import Advance, Array, Outputs, Runner, unheard
from ..core.errors import RunnerError, UsageError
from ..core.findings import Accuracy, Answer
from ..validators.confidence_intervals import CONFIDENCE
from ..validators.paired_answers import (
    ModelAnswers,
    compare_answers,
    find_differing_samples,
    find_newly_broken,
)
from ..validators.task_metrics import NO_CLASS, LabelFaultError
from .labelled_feeds import LabelledFeeds, rows_of


MAX_NAMED_SAMPLES = 100  # disagreeing samples that are named


class BrokenAnswerError(RunnerError):
    """The artifact answers labelled samples with NaN or Inf where eager does not."""


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
    answers = ModelAnswers(labelled.eager.metric)
    noted = _NotableSamples(labelled=labelled, answers=answers)
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
        except UsageError:
            noted.find_broken(batch, start)  # the user's metric may well raise on NaN
            noted.refuse_broken()
            raise
        noted.take(batch, start)
        advance(len(answers), len(labelled))
    noted.refuse_broken()
    gate = labelled.measuring.max_drop if max_drop is None else max_drop
    return _build_accuracy(labelled, answers, tuple(noted.told), gate)


def _predictions(outputs: Outputs, output: str, batch: LabelledBatch) -> Array:
    if output not in outputs:
        raise RunnerError(f"the artifact has no output {output!r}", hint="convert it again")
    try:
        return rows_of(outputs[output], output, batch)
    except UsageError as error:  # eager's had its rows
        raise RunnerError(error.message, hint="convert it again") from error


@dataclass(frozen=True, kw_only=True)
class _NotableSamples:
    """The samples worth a name, found while they are at hand."""

    labelled: LabelledFeeds
    answers: ModelAnswers
    told: list[Answer] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def take(self, batch: LabelledBatch, start: int) -> None:
        """Look at the batch whose first sample is number `start`."""
        self.find_broken(batch, start)
        eager, stop = self.labelled.eager, len(self.answers)
        for place in find_differing_samples(eager, self.answers, start, stop)[
            : MAX_NAMED_SAMPLES - len(self.told)
        ]:
            label = int(batch.labels[place - start].reshape(-1)[0])
            self.told.append(
                Answer(
                    sample=batch.names[place - start],
                    label=self._class(label),
                    eager=self._classes(eager, place),
                    artifact=self._classes(self.answers, place),
                )
            )

    def find_broken(self, batch: LabelledBatch, start: int) -> None:
        """Look for NaN and Inf in the batch whose first sample is number `start`."""
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


def _build_accuracy(
    labelled: LabelledFeeds, answers: ModelAnswers, told: tuple[Answer, ...], gate: float | None
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
        disagreeing=tuple(answer.sample for answer in told),
        max_drop=gate,
        data=labelled.samples.source,
        relative=metric.relative,
        output=labelled.output,
        answers=told,
        digest=labelled.digest,
        preprocess=labelled.samples.preprocess,
    )
