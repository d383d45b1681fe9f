"""How large an output usually is over the feeds, and what error is roundoff at that scale."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .metrics import to_decibel

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..core.verdict import OutputVerdict, Tolerance

# An error of this share of `rtol` of the usual peak is roundoff: 2e-6 of it in fp32 (some thirty
# units of roundoff, 110 dB), 6e-4 in fp16 (one rounding to 11 bits, 64 dB). Sums that cancel on one
# feed leave such errors; a wrong branch that is merely small there leaves larger ones.
ROUNDOFF_SHARE = 1 / 50


@dataclass(frozen=True, kw_only=True)
class OutputScale:
    """The median peak and the median mean square of one output over the feeds."""

    peak: float = 0.0
    signal: float = 0.0

    @classmethod
    def of(cls, measures: Iterable[OutputVerdict]) -> OutputScale:
        """The scale of these measures; 0 where none has an element to measure."""
        known = [m for m in measures if m.peak is not None]
        if not known:
            return cls()
        return cls(
            peak=statistics.median_low(m.peak or 0.0 for m in known),
            signal=statistics.median_low(m.signal for m in known),
        )

    def floor(self, tolerance: Tolerance) -> float:
        """The error that is roundoff: `rtol / 50 * peak`.

        `atol` is no part of it: it would pass anything at all on outputs that are small on every
        feed, such as the probabilities of many classes.
        """
        return ROUNDOFF_SHARE * tolerance.rtol * self.peak

    def excuses(self, found: OutputVerdict, tolerance: Tolerance) -> bool:
        """Whether the errors are roundoff: within the floor, with enough SQNR at the usual power.

        The second keeps sparse outputs, whose peak is far above their power, as strict as ever.
        """
        if found.max_abs is None or found.max_abs > self.floor(tolerance):
            return False
        sqnr = to_decibel(self.signal, found.noise)
        return found.noise == 0 or (sqnr is not None and sqnr >= tolerance.min_sqnr)
