"""Labelled data of a run: opened once, answered by eager once, fed again to every artifact."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..calibration.labelled_set import LabelledBatch, LabelledSet, open_labelled_set
from ..core.contract import Array, Outputs
from ..core.errors import Hint, Option, UsageError
from ..core.names import unknown
from ..core.signature import Signature
from ..sources.factory import import_object
from ..validators.accuracy_text import metric_text
from ..validators.paired_answers import (
    ModelAnswers,
    check_defined,
    explain_near_chance,
    find_metric,
)
from ..validators.task_metrics import LabelFaultError, TopK
from .measuring import Measuring

if TYPE_CHECKING:
    from .stage import Progress
    from .subject import EagerReference

_STABLE_FILES_HINT = "run again, with files that stay as they are"


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
    eager: ModelAnswers
    digests: tuple[bytes, ...]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        """How many samples there are."""
        return len(self.eager)

    @property
    def digest(self) -> str:
        """The SHA-256 over samples and labels as they were fed."""
        return hashlib.sha256(b"".join(self.digests)).hexdigest()

    def batches(self) -> Iterator[LabelledBatch]:
        """Every batch, read anew.

        Raises:
            UsageError: the data is not what eager was fed.
        """
        count = 0
        for count, batch in enumerate(self.samples, start=1):
            if count > len(self.digests) or batch.digest != self.digests[count - 1]:
                raise UsageError(
                    f"{batch.names[0]} changed while it was in use", hint=_STABLE_FILES_HINT
                )
            yield batch
        if count != len(self.digests):
            raise UsageError(
                f"{self.samples.source} shrank while it was in use", hint=_STABLE_FILES_HINT
            )


@contextmanager
def open_labelled(
    measuring: Measuring, subject: EagerReference, stage: Progress
) -> Iterator[LabelledFeeds]:
    """Open the data and run eager on all of it; what a loader left on disk goes at the end.

    Raises:
        UsageError: the data, its labels or the metric cannot be used; told in one line.
    """
    metric = find_metric(measuring.metric, lambda spec: import_object(spec, "--metric"))
    with stage.step("open labelled data", log="labelled"):
        samples = open_labelled_set(
            measuring.data, subject.signature, lambda spec: import_object(spec, "--data")
        )
    with samples:
        labelled = _run_eager_on_labels(samples, ModelAnswers(metric), measuring, subject, stage)
        for note in samples.notes:
            stage.note(f"labelled data: {note}")
        for note in labelled.notes:
            stage.note(note, warning=True)
        yield labelled


def enter_labelled(
    measuring: Measuring | None, subject: EagerReference, stage: Progress, held: ExitStack
) -> LabelledFeeds | None:
    """The labelled data open for as long as `held` is; None where nothing is measured."""
    if measuring is None:
        return None
    return held.enter_context(open_labelled(measuring, subject, stage))


def _run_eager_on_labels(
    samples: LabelledSet,
    eager: ModelAnswers,
    measuring: Measuring,
    subject: EagerReference,
    stage: Progress,
) -> LabelledFeeds:
    """Run eager on every sample."""
    title = "eager on labelled data"
    digests: list[bytes] = []
    output = ""
    with stage.step(title, log="labelled") as clock:
        for batch in samples:
            outputs = subject.eager.run(batch.feed)
            output = output or _choose_output(outputs, measuring.output)
            _score_batch(eager, outputs, output, batch, samples)
            digests.append(batch.digest)
            stage.advance(title, len(eager), max(len(eager), samples.places))
        broken = int((eager.count_nonfinite(0, len(eager)) > 0).sum())
        if not math.isfinite(eager.value):
            raise UsageError(
                f"eager's own {measuring.metric} is {eager.value}, with NaN or Inf in its answers "
                f"to {broken:,} of {len(eager):,} labelled samples",
                hint=Hint(
                    "remove samples that the model cannot answer, or name another ",
                    Option("metric-output"),
                ),
                option="metric-output",
            )
        check_defined(eager)
        value = metric_text(measuring.metric, eager.value)
        clock.detail = f"{measuring.metric} {value} on {len(eager):,} samples"
    return LabelledFeeds(
        samples=samples,
        signature=subject.signature,
        measuring=measuring,
        output=output,
        eager=eager,
        digests=tuple(digests),
        notes=_eager_warnings(eager, broken),
    )


def _eager_warnings(eager: ModelAnswers, broken: int) -> tuple[str, ...]:
    """What looks wrong with eager's own answers."""
    nan = f"eager answers {broken:,} of {len(eager):,} labelled samples with NaN or Inf"
    return tuple(filter(None, (explain_near_chance(eager), nan if broken else "")))


def _choose_output(outputs: Outputs, given: str | None) -> str:
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
            hint=Hint(
                "name what the metric reads: ", Option("metric-output", f"{next(iter(outputs))}")
            ),
            option="metric-output",
        )
    return floats[0]


def _score_batch(
    answers: ModelAnswers, outputs: Outputs, output: str, batch: LabelledBatch, samples: LabelledSet
) -> None:
    """Score a batch of eager's; a fault is the labels', and named by the sample."""
    predictions = rows_of(outputs[output], output, batch)
    _check_classes(predictions, samples, answers)
    try:
        answers.add(predictions, batch.labels)
    except LabelFaultError as error:
        name = batch.names[error.row]
        raise UsageError(
            f"labelled data {samples.source}: {name} {error.reason}", hint=error.hint
        ) from error


def _check_classes(predictions: Array, samples: LabelledSet, answers: ModelAnswers) -> None:
    """That there are as many classes as outputs, for metrics of classes."""
    classes = samples.classes
    if not classes or not isinstance(answers.metric, TopK):
        return
    outputs = predictions[0].size
    if outputs != len(classes):
        raise UsageError(
            f"{samples.source} has {len(classes)} classes, the model's output has {outputs}",
            hint=f"name all {outputs}, one a line, in {samples.source}/classes.txt",
        )


def rows_of(array: Array, output: str, batch: LabelledBatch) -> Array:
    """The rows of the samples, without what fills the batch up."""
    if not batch.axis:
        return array[None]
    rows = next(iter(batch.feed.values())).shape[0]
    if not array.ndim or array.shape[0] != rows:
        shape = "x".join(map(str, array.shape)) or "a number"
        raise UsageError(
            f"the output {output!r} is {shape} for {rows} samples: it has no row a sample",
            hint=Hint("name another with ", Option("metric-output", "NAME")),
            option="metric-output",
        )
    return array[: len(batch.names)]
