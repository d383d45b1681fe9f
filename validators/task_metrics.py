"""Metrics on labelled data, built-in and user-defined: the score of a model on each sample.

Scores are kept per sample, at a few bytes each, for a paired comparison of two models.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ..core.contract import Array
from ..core.errors import UsageError, first_line

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BUILT_IN = ("top1", "top5", "mse")
NO_CLASS = -1  # the class of an answer with NaN


class LabelFaultError(Exception):
    """A label or an answer that the metric cannot score: the row in the batch, and the cause."""

    def __init__(self, row: int, reason: str, *, hint: str) -> None:
        super().__init__(reason)
        self.row = row
        self.reason = reason
        self.hint = hint


@dataclass(frozen=True, kw_only=True)
class BatchScores:
    """Scores of a batch per sample; `top` are the predicted classes, best first, shape (n, k)."""

    scores: Array
    top: Array | None = None
    classes: int = 0


class Metric(Protocol):
    """A measure of how well a model answers labelled samples.

    If `relative`, a drop is a share of eager's value; otherwise it is a difference in the metric's
    own unit.
    """

    @property
    def name(self) -> str:
        """The name that the user gives."""
        ...

    @property
    def higher_is_better(self) -> bool:
        """Whether a higher value is better."""
        ...

    @property
    def relative(self) -> bool:
        """Whether a drop is a share of eager's value."""
        ...


class SampleMetric(Metric, Protocol):
    """A metric that is the mean of scores per sample."""

    def score(self, predictions: Array, labels: Array) -> BatchScores:
        """Score a batch; both arrays have one row per sample.

        Raises:
            LabelFaultError: a label cannot be scored against its answer.
            UsageError: the user's own code raised.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class TopK:
    """The share of samples whose class is among the `k` highest outputs.

    Among equal outputs the first ranks higher, as in argmax, so that an output with equal scores
    for all classes does not count as a hit for each.
    """

    name: str
    k: int
    higher_is_better: bool = True
    relative: bool = False

    def score(self, predictions: Array, labels: Array) -> BatchScores:
        """Score 1 for a hit and 0 otherwise, including answers with NaN."""
        import numpy as np

        answers = _class_scores(predictions)
        count = answers.shape[1]
        if count <= self.k:
            raise LabelFaultError(
                0, f"is answered with {count} values: {self.name} wants more than {self.k} classes",
                hint="name the output with the classes: --metric-output NAME, or another --metric",
            )  # fmt: skip
        wanted = _class_labels(labels, len(answers), count)[:, None]
        mine = np.take_along_axis(answers, wanted, axis=1)
        earlier = np.arange(count)[None] < wanted
        rank = ((answers > mine) | ((answers == mine) & earlier)).sum(axis=1)
        top = np.argsort(-answers, axis=1, kind="stable")[:, : self.k]
        broken = np.isnan(answers).any(axis=1)
        top[broken] = NO_CLASS
        hits = (rank < self.k) & ~broken
        return BatchScores(scores=hits.astype(np.float64), top=top, classes=count)


def _class_scores(predictions: Array) -> Array:
    """Return outputs as float64 of shape (samples, classes); further axes must have size 1."""
    import numpy as np

    shape = predictions.shape
    wide = [size for size in shape[1:] if size != 1]
    if predictions.dtype.kind != "f" or len(wide) > 1:
        shown = f"{predictions.dtype} {'x'.join(map(str, shape[1:]))}"
        raise LabelFaultError(
            0, f"is answered with {shown}, which is no score a class",
            hint="name the output with the classes: --metric-output NAME, or give --metric "
            "PKG.MOD:FN",
        )  # fmt: skip
    return predictions.reshape(shape[0], -1).astype(np.float64)


def _class_labels(labels: Array, rows: int, count: int) -> NDArray[np.int64]:
    """Return the labels as class numbers below `count`."""
    import numpy as np

    if labels.size != rows:
        shown = "x".join(map(str, labels.shape[1:]))
        raise LabelFaultError(
            0, f"has a label of {shown}; one class number is wanted",
            hint="store class numbers, not one-hot rows; for other labels --metric PKG.MOD:FN",
        )  # fmt: skip
    flat = labels.reshape(rows)
    numbers = flat.astype(np.int64)
    wrong = (numbers != flat) | (numbers < 0) | (numbers >= count)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise LabelFaultError(
            row, f"has the label {flat[row]:g}; the output has {count} classes, 0 to {count - 1}",
            hint="count classes from 0, in the order of the outputs",
        )  # fmt: skip
    return numbers


@dataclass(frozen=True, kw_only=True)
class SquaredError:
    """The mean squared error: the mean over each sample's elements, then over samples."""

    name: str = "mse"
    higher_is_better: bool = False
    relative: bool = True

    def score(self, predictions: Array, labels: Array) -> BatchScores:
        """Score each sample, in the square of the labels' unit."""
        import numpy as np

        rows = len(predictions)
        answers = predictions.reshape(rows, -1).astype(np.float64)
        wanted = labels.reshape(rows, -1).astype(np.float64)
        first, second = ([n for n in a.shape[1:] if n != 1] for a in (predictions, labels))
        if answers.shape != wanted.shape or first != second:
            raise LabelFaultError(
                0, f"has a label of {_shape(labels)}, and the output is {_shape(predictions)}",
                hint="give labels of the output's shape, or name another --metric-output",
            )  # fmt: skip
        with np.errstate(all="ignore"):  # a later check finds overflow as Inf
            return BatchScores(scores=np.square(answers - wanted).mean(axis=1))


def _shape(rows: Array) -> str:
    return "x".join(map(str, rows.shape[1:])) or "a number"


# The user's own metric: a function with its properties as attributes.


@dataclass(frozen=True, kw_only=True)
class UserSampleMetric:
    """The user's `function(prediction, label) -> float` of one sample; the metric is its mean."""

    name: str
    function: Callable[..., object]
    higher_is_better: bool
    relative: bool

    def score(self, predictions: Array, labels: Array) -> BatchScores:
        """Call the function on each sample."""
        import numpy as np

        pairs = zip(predictions, labels, strict=True)
        values = [_call_metric(self, np.array(answer), np.array(label)) for answer, label in pairs]
        return BatchScores(scores=np.array(values))


@dataclass(frozen=True, kw_only=True)
class UserSetMetric:
    """The user's `function(predictions, labels) -> float` of all samples at once."""

    name: str
    function: Callable[..., object]
    higher_is_better: bool
    relative: bool

    def value(self, predictions: Sequence[Array], labels: Sequence[Array]) -> float:
        """Call the function on all samples."""
        return _call_metric(self, list(predictions), list(labels))


def _call_metric(
    metric: UserSampleMetric | UserSetMetric, predictions: object, labels: object
) -> float:
    try:
        found = metric.function(predictions, labels)
    except Exception as error:
        raise UsageError(
            f"the metric {metric.name} raised {type(error).__name__}: {first_line(error)}",
            hint="the error is in the metric's code; call it in Python to see all of it",
        ) from error
    try:
        value = float(found)  # type: ignore[arg-type]  # the except clause reports other types
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"the metric {metric.name} gave a {type(found).__name__}, not a number",
            hint="return one float",
        ) from error
    if not math.isfinite(value):
        raise UsageError(
            f"the metric {metric.name} gave {value}", hint="return a finite number for all data"
        )
    return value


def make_user_metric(
    name: str, function: Callable[..., object]
) -> UserSampleMetric | UserSetMetric:
    """Wrap the user's function as a metric.

    Raises:
        UsageError: the function does not set `higher_is_better`, without which a gate cannot judge.
    """
    higher = getattr(function, "higher_is_better", None)
    if not isinstance(higher, bool):
        short = name.rpartition(":")[2]
        raise UsageError(
            f"the metric {name} does not say whether more is better",
            hint=f"write below it: {short}.higher_is_better = True (or False)",
        )
    kind = UserSampleMetric if getattr(function, "per_sample", False) else UserSetMetric
    relative = bool(getattr(function, "relative", False))
    return kind(name=name, function=function, higher_is_better=higher, relative=relative)
