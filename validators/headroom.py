"""How near to its limits an artifact is on one feed: what a search makes as small as it can."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .metrics import to_decibel
from .scale import OutputScale

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..core.verdict import OutputVerdict, Tolerance, Verdict

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
