"""Compare two models' answers on the same labelled samples: drop, interval and differences."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..core.contract import Array
from ..core.errors import ErrorCode, UsageError, unknown_name_error
from .confidence_intervals import (
    ConfidenceInterval,
    bootstrap_interval,
    difference_interval,
    percentile_interval,
    wilson_interval,
)
from .task_metrics import (
    BUILT_IN,
    Metric,
    SampleMetric,
    SquaredError,
    TopK,
    UserSetMetric,
    make_user_metric,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class ModelAnswers:
    """One model's answers on the labelled samples so far."""

    def __init__(self, metric: SampleMetric | UserSetMetric) -> None:
        self.metric = metric
        self.classes = 0
        self._scores = array("d")
        self._top = array("q")
        self._width = 0
        self._nonfinite = array("q")
        self._predictions: list[Array] = []  # for whole-set metrics only
        self._labels: list[Array] = []
        self._value: float | None = None

    def __len__(self) -> int:
        return len(self._nonfinite)

    def add(self, predictions: Array, labels: Array) -> None:
        """Add a batch; both arrays have one row per sample.

        Raises:
            LabelFaultError: a label cannot be scored.
            UsageError: the user's own metric raised.
        """
        import numpy as np

        rows = len(labels)
        flat = predictions.reshape(rows, -1)
        bad = ~np.isfinite(flat) if flat.dtype.kind in "fc" else np.zeros(flat.shape, dtype=bool)
        self._nonfinite.extend(bad.sum(axis=1).tolist())
        self._value = None
        if isinstance(self.metric, UserSetMetric):
            self._predictions += [np.array(row) for row in predictions]
            self._labels += [np.array(row) for row in labels]
            return
        scored = self.metric.score(predictions, labels)
        self._scores.extend(scored.scores.tolist())
        if scored.top is not None:
            self._width, self.classes = scored.top.shape[1], scored.classes
            self._top.extend(scored.top.reshape(-1).tolist())

    @property
    def value(self) -> float:
        """The metric over all samples.

        Raises:
            UsageError: the user's own metric raised, or did not return a number.
        """
        if self._value is None:
            if isinstance(self.metric, UserSetMetric):
                self._value = self.metric.value(self._predictions, self._labels)
            else:
                self._value = float(self.scores.mean())
        return self._value

    @property
    def scores(self) -> NDArray[np.float64]:
        """One score per sample; empty for whole-set metrics."""
        return self.scores_of(0, len(self))

    def scores_of(self, start: int, stop: int) -> NDArray[np.float64]:
        """Return the scores of samples `start` to `stop`, `stop` excluded."""
        import numpy as np

        return np.array(self._scores[start:stop], dtype=np.float64)

    def count_nonfinite(self, start: int, stop: int) -> NDArray[np.int64]:
        """Count the NaN and Inf in the answer to each of these samples."""
        import numpy as np

        return np.array(self._nonfinite[start:stop], dtype=np.int64)

    def top_of(self, start: int, stop: int) -> NDArray[np.int64] | None:
        """Return the predicted classes, best first, of shape (samples, k); None without classes."""
        import numpy as np

        if not self._width:
            return None
        part = self._top[start * self._width : stop * self._width]
        return np.array(part, dtype=np.int64).reshape(-1, self._width)

    def at(self, metric: UserSetMetric, places: Sequence[int]) -> float:
        """Compute the metric over a resample."""
        chosen = [self._predictions[place] for place in places]
        return metric.value(chosen, [self._labels[place] for place in places])


def find_metric(name: str, load: Callable[[str], object]) -> SampleMetric | UserSetMetric:
    """Return the built-in metric of that name, or the user's `package.module:function`.

    Raises:
        UsageError: the metric is unknown, or the user's function is invalid.
    """
    if name == "mse":
        return SquaredError()
    if name in BUILT_IN:
        return TopK(name=name, k=int(name.removeprefix("top")))
    if ":" not in name:
        raise unknown_name_error("metric", name, [*BUILT_IN, "PKG.MOD:FUNCTION"])
    found = load(name)
    if not callable(found):
        raise UsageError(
            f"--metric {name} is a {type(found).__name__}, which cannot be called",
            hint="name a function of predictions and labels",
            option="metric",
            code=ErrorCode.NOT_CALLABLE,
        )
    return make_user_metric(name, found)


# The comparison of two models.


# Limits of the number of resamples for a user's metric, and the number of samples to evaluate it on
# in total.
_FEWEST, _MOST, _SAMPLES = 100, 2000, 2_000_000
_MANY_CLASSES = 10
_TIMES_CHANCE = 3  # below this multiple of chance, the labels are more likely wrong than the model


@dataclass(frozen=True, kw_only=True)
class PairedComparison:
    """Result of a comparison; a positive `drop` is a loss, and its interval is in the same unit."""

    drop: float
    interval: ConfidenceInterval
    differing: int = 0  # samples with different answers


def compare_answers(eager: ModelAnswers, artifact: ModelAnswers) -> PairedComparison:
    """Compare two models on the same samples in the same order.

    Raises:
        UsageError: the user's own metric raised, or a relative drop is undefined.
    """
    metric = eager.metric
    check_defined(eager)
    if isinstance(metric, TopK):
        return _compare_hits(eager, artifact)
    drop = compute_drop(metric, eager.value, artifact.value)
    if isinstance(metric, UserSetMetric):
        return PairedComparison(drop=drop, interval=_resample_interval(eager, artifact, metric))
    interval = bootstrap_interval(
        eager.scores, artifact.scores, lambda one, other: compute_drop(metric, one, other)
    )
    return PairedComparison(drop=drop, interval=interval)


def check_defined(eager: ModelAnswers) -> None:
    """Check that a drop from eager's value is defined.

    Raises:
        UsageError: the metric is relative and eager's value is 0.
    """
    if eager.metric.relative and eager.value == 0:
        raise UsageError(
            f"eager's {eager.metric.name} is 0, so a drop relative to it is not defined",
            hint="give labels that are not eager's own answers, or a metric without `relative`",
            code=ErrorCode.METRIC_UNDEFINED,
            option="max-drop",
        )


def compute_drop(metric: Metric, eager: float, artifact: float) -> float:
    """Return what the artifact loses; for a relative metric, as a share of eager's value."""
    drop = eager - artifact if metric.higher_is_better else artifact - eager
    if not metric.relative:
        return drop
    return drop / abs(eager) if eager else float("inf") if drop > 0 else 0.0


def _compare_hits(eager: ModelAnswers, artifact: ModelAnswers) -> PairedComparison:
    one, other = eager.scores > 0, artifact.scores > 0
    counts = [int(x.sum()) for x in (one & other, one & ~other, ~one & other, ~one & ~other)]
    return PairedComparison(
        drop=(counts[1] - counts[2]) / len(one),
        interval=difference_interval(*counts),
        differing=len(find_differing_samples(eager, artifact, 0, len(one))),
    )


def find_differing_samples(
    eager: ModelAnswers, artifact: ModelAnswers, start: int, stop: int
) -> list[int]:
    """Return the samples from `start` to `stop`, `stop` excluded, with different answers.

    With one class per answer, the class differs; with several, only one model has a hit. Metrics
    without classes give an empty list.
    """
    import numpy as np

    one, other = eager.top_of(start, stop), artifact.top_of(start, stop)
    if one is None or other is None:
        return []
    if one.shape[1] == 1:
        differ = (one != other)[:, 0]
    else:
        differ = eager.scores_of(start, stop) != artifact.scores_of(start, stop)
    return [start + int(place) for place in np.flatnonzero(differ)]


def find_newly_broken(
    eager: ModelAnswers, artifact: ModelAnswers, start: int, stop: int
) -> list[int]:
    """Return the samples whose answer has more NaN or Inf than eager's."""
    import numpy as np

    more = artifact.count_nonfinite(start, stop) > eager.count_nonfinite(start, stop)
    return [start + int(place) for place in np.flatnonzero(more)]


def _resample_interval(
    eager: ModelAnswers, artifact: ModelAnswers, metric: UserSetMetric
) -> ConfidenceInterval:
    """Bootstrap a whole-set metric, with fewer resamples the more samples there are.

    The number is fixed by count, not by time, so the interval is the same on every machine. A
    metric may be undefined on a resample, such as a recall whose class was not drawn; these
    resamples are ignored.

    Raises:
        UsageError: the metric is undefined on most resamples.
    """
    import numpy as np

    chance, count = np.random.default_rng(0), len(eager)
    drops: list[float] = []
    tried, last = max(_FEWEST, min(_MOST, _SAMPLES // max(count, 1))), ""
    for _ in range(tried):
        places: Sequence[int] = chance.integers(count, size=count).tolist()
        try:
            drops.append(
                compute_drop(metric, eager.at(metric, places), artifact.at(metric, places))
            )
        except UsageError as error:
            last = error.message
    if 2 * len(drops) < tried:
        raise UsageError(
            f"no interval: on {tried - len(drops):,} of {tried:,} resamples {last}",
            hint="give more samples, or make it a metric of one sample: fn.per_sample = True",
        )
    return percentile_interval(drops)


def explain_near_chance(answers: ModelAnswers) -> str:
    """Return why eager's accuracy suggests wrong labels or preprocessing; empty otherwise."""
    metric = answers.metric
    if not isinstance(metric, TopK) or not answers.classes:
        return ""
    chance = metric.k / answers.classes
    hits, count = int(answers.scores.sum()), len(answers)
    many = answers.classes >= _MANY_CLASSES * metric.k
    low = wilson_interval(hits, count).low <= chance or (
        many and hits / count < _TIMES_CHANCE * chance
    )
    if not low:
        return ""
    return (
        f"eager's own {metric.name} is {hits / count:.2%} of {count:,} samples, chance is "
        f"{chance:.2%}: another order of classes, or another preprocessing?"
    )
