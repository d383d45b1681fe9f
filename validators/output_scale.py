"""How large an output usually is over the feeds, and how near an artifact is to its limits."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .metrics import to_decibel

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..core.verdict import OutputVerdict, Tolerance, Verdict

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


# How near to its limits an artifact is on one feed: what a search makes as small as it can.


def margin_on_feed(verdict: Verdict, feed: str) -> float:
    """The least headroom in dB on one feed: infinite where all is exact, negative beyond a limit.

    A float output is held to the table at the scale that it usually has, if that is larger than its
    own: an output that cancels on one feed leaves errors that are large beside it and say nothing.
    The noise floor knows that of itself. What is wrong by no figure (a shape, a NaN, another
    integer, a feed that was refused) is infinitely far beyond.
    """
    mine = [one for one in verdict.outputs if one.feed == feed]
    if not mine or any(one.form for one in mine):
        return -math.inf
    return min(_output_margin(one, verdict) for one in mine)


def _output_margin(output: OutputVerdict, verdict: Verdict) -> float:
    if output.headroom is None:  # exact, or integers, or nothing to measure
        return math.inf
    limits = verdict.tolerance.of(output.output)
    if limits.floor_factor is not None and output.times_floor is not None:
        return output.headroom
    usual = OutputScale.of(
        one
        for one in verdict.outputs
        if one.output == output.output and not one.loose and not one.apart
    )
    return min(_table_margins(output, limits, usual), default=math.inf)


def _table_margins(output: OutputVerdict, limits: Tolerance, usual: OutputScale) -> Iterable[float]:
    """The distances from `atol + rtol * peak` and from `min_sqnr`."""
    if output.max_abs:
        limit = limits.atol + limits.rtol * max(output.peak or 0.0, usual.peak)
        yield -math.inf if not limit else 20 * math.log10(limit / output.max_abs)
    sqnr = to_decibel(max(output.signal, usual.signal), output.noise)
    if sqnr is not None:
        yield sqnr - limits.min_sqnr
