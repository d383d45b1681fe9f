"""Two models' answers on the same labelled samples: the drop, its interval, where they differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..core.errors import UsageError
from .answers import ModelAnswers
from .intervals import (
    ConfidenceInterval,
    bootstrap_interval,
    difference_interval,
    percentile_interval,
    wilson_interval,
)
from .own_metric import UserSetMetric
from .task_metrics import Metric, TopK

# Two models' answers on the same labelled samples: the drop, its interval, where they differ.


# Resamples of a metric of the user's own: as many as ask it of so many samples, within these ends.
_FEWEST, _MOST, _SAMPLES = 100, 2000, 2_000_000
_MANY_CLASSES = 10
_TIMES_CHANCE = 3  # below it, of many classes, labels are likelier wrong than the model


@dataclass(frozen=True, kw_only=True)
class PairedComparison:
    """`drop` is positive for worse; its interval is in the same unit."""

    drop: float
    interval: ConfidenceInterval
    differing: int = 0  # samples that are answered otherwise


def compare_answers(eager: ModelAnswers, artifact: ModelAnswers) -> PairedComparison:
    """Compare two models on the same samples in the same order.

    Raises:
        UsageError: the user's own metric raised, or a relative drop is not defined.
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
    """That a drop from eager's value is defined.

    Raises:
        UsageError: a drop relative to 0 is not.
    """
    if eager.metric.relative and eager.value == 0:
        raise UsageError(
            f"eager's {eager.metric.name} is 0, so a drop relative to it is not defined",
            hint="give labels that are not eager's own answers, or a metric without `relative`",
        )


def compute_drop(metric: Metric, eager: float, artifact: float) -> float:
    """What the artifact loses; of a relative metric as a part of eager's value."""
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
    """Places from `start` to before `stop` that are answered otherwise.

    With one class an answer, the class is another; with several, one model hits and the other
    does not. Metrics without classes have none.
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
    """Places of these samples whose answer holds more NaN or Inf than eager's."""
    import numpy as np

    more = artifact.count_nonfinite(start, stop) > eager.count_nonfinite(start, stop)
    return [start + int(place) for place in np.flatnonzero(more)]


def _resample_interval(
    eager: ModelAnswers, artifact: ModelAnswers, metric: UserSetMetric
) -> ConfidenceInterval:
    """The bootstrap of a metric of all samples: fewer resamples the more samples there are.

    They are counted, not timed: the interval is the same on every machine. A metric may be
    undefined on a resample, as a recall where its class was not drawn: such resamples are left out,
    as long as most are not.
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
    """Why eager's own accuracy looks as if labels or preprocessing were wrong; empty if not."""
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
