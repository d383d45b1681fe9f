"""Fill values, such as the -1e4 that an additive mask puts on logits, apart from the answers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .metrics import Measures, iter_blocks, measure_arrays

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..core.contract import Array

# Fill values, such as the -1e4 that an additive mask puts on logits, apart from the answers.


# Magnitudes this large, and this many times what the others usually are, are fill: as a scale they
# would make every error among the others look small. Half of 1e4, since a mask's -1e4 is added to
# logits and may come out as -9998.
_FILL_FROM, _FILL_ABOVE = 5e3, 1e3
# A mask may cover most of an output, and large logits are no thousandth of -1e4. Where no magnitude
# at all lies between these shares of the peak, and some below, what is above is fill as well: the
# narrower the void, the more alike fill must be.
_VOID_RULES = (0.001, 0.4), (0.01, 0.9)


@dataclass(frozen=True, kw_only=True)
class FillSplit:
    """The measures of an output's answers, and of its fill values where it has any."""

    answers: Measures
    fill: Measures | None = None

    @property
    def parts(self) -> tuple[Measures, ...]:
        """Both, or the answers alone."""
        return (self.answers,) if self.fill is None else (self.answers, self.fill)


def measure_with_fill(eager: Array, artifact: Array) -> FillSplit:
    """Measure two numeric arrays of one shape, the elements where eager holds fill on their own.

    Counts of elements (`size`, `differing`, the non-finite ones) are over all in both.
    """
    limit = fill_limit(eager)
    if limit == math.inf:
        return FillSplit(answers=measure_arrays(eager, artifact))
    return FillSplit(
        answers=measure_arrays(eager, artifact, upto=limit),
        fill=measure_arrays(eager, artifact, above=limit),
    )


def fill_limit(eager: Array) -> float:
    """The magnitude above which elements are fill; Inf where there is none.

    If the peak is at least 5e3 it is 1e3 times the median of |e| over the nonzero elements, if the
    peak is above that; or else the upper end of a void in the magnitudes.
    """
    import numpy as np

    if eager.dtype.kind != "f":
        return math.inf
    peak = max((float(size.max()) for size in _magnitudes(eager)), default=0.0)
    if peak < _FILL_FROM:
        return math.inf
    sizes = np.concatenate([size[size > 0] for size in _magnitudes(eager)])
    with np.errstate(over="ignore"):  # float64 near its end: Inf, which is above any peak
        limit = _FILL_ABOVE * float(np.median(sizes))
    return limit if limit < peak else _find_void_end(sizes / peak) * peak


def _find_void_end(shares: Array) -> float:
    """The upper end of the first void, as a share of the peak; Inf where there is none."""
    for low, high in _VOID_RULES:
        below = shares < low
        if below.any() and (below | (shares >= high)).all():
            return high * (1 - 1e-6)  # just below what is at its very end
    return math.inf


def _magnitudes(eager: Array) -> Iterator[Array]:
    """The magnitudes of the finite elements, in their own dtype and block by block."""
    import numpy as np

    for block, _ in iter_blocks(eager, eager):
        size = np.abs(block)
        size = size[np.isfinite(size)]
        if size.size:
            yield size
