"""Confidence intervals of the difference between two models on the same samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

from ..core.records import Interval

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CONFIDENCE = 0.95
RESAMPLES = 2000  # the percentile's own noise is then a few hundredths of the interval's width
_PART = 1 << 20  # maximum number of drawn indices in memory


@dataclass(frozen=True, kw_only=True)
class ConfidenceInterval(Interval):
    """An interval at `CONFIDENCE`, and the method used."""

    method: str


def wilson_interval(hits: int, count: int) -> ConfidenceInterval:
    """Compute the score interval of one proportion, without continuity correction.

    Wilson (1927), Journal of the American Statistical Association 22, 209-212.
    """
    z, share = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2), hits / count
    centre = share + z * z / (2 * count)
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    scale = 1 + z * z / count
    low, high = (centre - half) / scale, (centre + half) / scale
    return ConfidenceInterval(
        low=0.0 if hits == 0 else low, high=1.0 if hits == count else high, method="Wilson"
    )


def difference_interval(both: int, first: int, second: int, neither: int) -> ConfidenceInterval:
    """Compute the interval of `(first - second) / n`, the difference of two hit rates.

    Method 10 of Newcombe (1998), "Improved confidence intervals for the difference between binomial
    proportions based on paired data", Statistics in Medicine 17, 2635-2650: combines the Wilson
    intervals of the two rates by the continuity-corrected correlation of their hits. The interval
    has a width even if the two never differ.

    Args:
        both: number of samples that both models get right.
        first: number that only the first gets right.
        second: number that only the second gets right.
        neither: number that both get wrong.
    """
    count = both + first + second + neither
    one, other = wilson_interval(both + first, count), wilson_interval(both + second, count)
    p, q = (both + first) / count, (both + second) / count
    phi = _phi_correlation(both, first, second, neither)
    below = _combine_distances(p - one.low, other.high - q, phi)
    above = _combine_distances(one.high - p, q - other.low, phi)
    theta = (first - second) / count
    return ConfidenceInterval(
        low=max(theta - below, -1.0), high=min(theta + above, 1.0), method="Newcombe paired score"
    )


def _combine_distances(mine: float, theirs: float, phi: float) -> float:
    return math.sqrt(max(mine * mine - 2 * phi * mine * theirs + theirs * theirs, 0.0))


def _phi_correlation(both: int, first: int, second: int, neither: int) -> float:
    """Return phi of the two models' hits; 0 if either is always right or always wrong."""
    count = both + first + second + neither
    margins = (both + first) * (second + neither) * (both + second) * (first + neither)
    if not margins:
        return 0.0
    product = both * neither - first * second
    corrected = max(product - count / 2, 0.0) if product > 0 else product
    return corrected / math.sqrt(margins)


def bootstrap_interval(
    eager: NDArray[np.float64],
    artifact: NDArray[np.float64],
    drop: Callable[[float, float], float],
) -> ConfidenceInterval:
    """Compute the percentile interval of `drop(mean eager, mean artifact)` by paired resampling.

    Args:
        eager: one score per sample.
        artifact: the other model's scores on the same samples.
        drop: the drop as a function of the two means.
    """
    return percentile_interval(
        draw_resamples(
            len(eager),
            lambda places: [
                drop(float(one), float(other))
                for one, other in zip(
                    eager[places].mean(axis=1), artifact[places].mean(axis=1), strict=True
                )
            ],
        )
    )


def draw_resamples(
    count: int, statistics: Callable[[NDArray[np.int64]], Sequence[float]]
) -> list[float]:
    """Return the statistic of `RESAMPLES` resamples with replacement.

    Efron and Tibshirani (1993), An Introduction to the Bootstrap, chapter 13. The seed is fixed, so
    equal values give equal intervals.

    Args:
        count: the number of values.
        statistics: computes one figure of each row of places, of `count` columns.
    """
    import numpy as np

    chance, at_once = np.random.default_rng(0), max(_PART // count, 1)
    found: list[float] = []
    while len(found) < RESAMPLES:
        rows = min(at_once, RESAMPLES - len(found))
        found += statistics(chance.integers(count, size=(rows, count)))
    return found


def percentile_interval(
    figures: Sequence[float], confidence: float = CONFIDENCE
) -> ConfidenceInterval:
    """Return the middle part of resampled figures, ignoring undefined (infinite) ones.

    Raises:
        ValueError: no figure is defined.
    """
    import numpy as np

    found = [one for one in figures if math.isfinite(one)]
    if not found:
        raise ValueError("no resample has a defined figure")
    tail = (1 - confidence) / 2
    low, high = np.quantile(found, [tail, 1 - tail])
    method = f"paired bootstrap, {len(found):,} resamples"
    return ConfidenceInterval(low=float(low), high=float(high), method=method)
