"""Confidence intervals of a difference between two models that answered the same samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CONFIDENCE = 0.95
RESAMPLES = 2000  # a percentile's own noise is then a few hundredths of the interval's width
_PART = 1 << 20  # drawn places held at once


@dataclass(frozen=True, kw_only=True)
class ConfidenceInterval:
    """Both ends at `CONFIDENCE`, in the unit of what they are of, and how they were found."""

    low: float
    high: float
    method: str


def _normal_quantile() -> float:
    return NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)


def wilson_interval(hits: int, count: int) -> ConfidenceInterval:
    """The score interval of one proportion, without continuity correction.

    Wilson (1927), Journal of the American Statistical Association 22, 209-212.
    """
    z, share = _normal_quantile(), hits / count
    centre = share + z * z / (2 * count)
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    scale = 1 + z * z / count
    low, high = (centre - half) / scale, (centre + half) / scale
    return ConfidenceInterval(
        low=0.0 if hits == 0 else low, high=1.0 if hits == count else high, method="Wilson"
    )


def difference_interval(both: int, first: int, second: int, neither: int) -> ConfidenceInterval:
    """The interval of `(first - second) / n`: how much oftener the first of two models is right.

    Method 10 of Newcombe (1998), "Improved confidence intervals for the difference between
    binomial proportions based on paired data", Statistics in Medicine 17, 2635-2650: Wilson's
    intervals of the two, joined by the correlation of their answers, which is corrected for
    continuity. It has a width where the two never differ, as fewer samples say less.

    Args:
        both: samples that both models answer rightly.
        first: those that only the first does.
        second: those that only the second does.
        neither: those that none does.
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
    """Phi of the two models' hits; 0 where one of them is always right or always wrong."""
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
    """The percentile interval of `drop(mean of eager, mean of artifact)`, samples drawn in pairs.

    Efron and Tibshirani (1993), An Introduction to the Bootstrap, chapter 13. Seeded, so that the
    same scores give the same interval.

    Args:
        eager: one score a sample.
        artifact: the other model's scores of the same samples.
        drop: of the two means.
    """
    import numpy as np

    chance, count = np.random.default_rng(0), len(eager)
    at_once = max(_PART // count, 1)
    drops: list[float] = []
    while len(drops) < RESAMPLES:
        rows = min(at_once, RESAMPLES - len(drops))
        places = chance.integers(count, size=(rows, count))
        means = zip(eager[places].mean(axis=1), artifact[places].mean(axis=1), strict=True)
        drops += [drop(float(one), float(other)) for one, other in means]
    return percentile_interval(drops)


def percentile_interval(drops: Sequence[float]) -> ConfidenceInterval:
    """The middle `CONFIDENCE` of resampled drops, without those that are not defined (infinite).

    Raises:
        ValueError: none is defined.
    """
    import numpy as np

    found = [one for one in drops if math.isfinite(one)]
    if not found:
        raise ValueError("no resample has a defined drop")
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(found, [tail, 1 - tail])
    method = f"paired bootstrap, {len(found):,} resamples"
    return ConfidenceInterval(low=float(low), high=float(high), method=method)
