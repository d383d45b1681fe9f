"""The user's own metric: a function, with what it has to say of itself as attributes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..core.contract import Array
from ..core.errors import UsageError, first_line
from .task_metrics import BatchScores

# The user's own metric: a function, with what it has to say of itself as attributes.


@dataclass(frozen=True, kw_only=True)
class UserSampleMetric:
    """The user's `function(prediction, label) -> float` of one sample; its mean counts."""

    name: str
    function: Callable[..., object]
    higher_is_better: bool
    relative: bool

    def score(self, predictions: Array, labels: Array) -> BatchScores:
        """Each sample's own value."""
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
        """The function's value of these samples."""
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
        value = float(found)  # type: ignore[arg-type]  # what is no number is told below
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
    """The metric that the user's function is.

    Raises:
        UsageError: it does not say whether more is better: a gate would be a guess.
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
