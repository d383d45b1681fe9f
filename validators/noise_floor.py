"""Noise floor: an artifact's distance from float64 in units of eager's own distance.

With r = eager in float64, e = eager and a = the artifact, e - r is eager's own roundoff. A good
conversion sums the same numbers in another order and errs by about as much: over more than a
hundred good fp32 conversions (docs/validation.md) |a - r| was 0.3 to 2.5 times |e - r|.

e - r is roundoff only if eager itself moves by about as much when its inputs and weights change by
one rounding. Otherwise float64 computes another function than float32 (see eager_noise.py), and the
artifact is compared with e, as on feeds that were not run in float64.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..core.contract import Array
from ..core.verdict import ChannelVerdict
from .channel_metrics import channel_axes
from .eager_noise import (
    COMPARABLE,
    drop_redraws,
    is_measurable,
    make_judged_output,
    sum_groups,
    sum_output,
)

if TYPE_CHECKING:
    from .eager_noise import JudgedOutput, SquareSums
    from .output_pairs import OutputPair

# One unit in the last place of float32 (2^-23), of the RMS. Eager may be exact by chance, as a copy
# is, while another algorithm for a division or a root is not.
_ULP = 2.0**-23
# Up to this many elements their own noise is a poor estimate, and the usual noise around them
# counts too. Its weight then fades with the fourth power; from 32 elements on, their own noise is
# within a factor of two.
_FEW, _FADE, _ENOUGH = 8, 4, 32
# Allowance for chance: an average over m elements scatters by up to 1 + 4 / sqrt(m).
_CHANCE = 4.0
_CREST = 4.0  # the largest of about ten thousand normal errors lies at 4 sigma
# If eager is this far from float64 (40 dB) on most feeds, float64 computes another function, not
# the same one with less roundoff: a branch on the dtype, or a chaotic model.
OTHER_FUNCTION = 1e-2
_TINY = 1e-300  # without signal and noise, any error exceeds the floor


@dataclass(frozen=True, kw_only=True)
class FeedFloor:
    """The ratio of one output on one feed, and eager's own error and movement in relative L2.

    `floor` is eager's distance from float64, None if float64 was not run or is another function.
    `moved` is how far noise of 2^-24 moves eager, None if that was not measured.
    """

    times: float
    floor: float | None = None
    moved: float | None = None


@dataclass(frozen=True, kw_only=True)
class NoiseFloors:
    """One output over all feeds: its floors by feed name, and its worst channels."""

    feeds: dict[str, FeedFloor]
    channels: tuple[ChannelVerdict, ...]
    note: str = ""


def measure_floors(name: str, pairs: Sequence[OutputPair]) -> NoiseFloors | None:
    """Compute the ratios of one float output; None if there is no float64 reference.

    A ratio is |a - r| over the allowance, which is the largest of eager's own |e - r| on the feed,
    its usual share of the signal (the median over feeds), one unit in the last place, and, for few
    elements, the average of the output. If a pair has redraws of eager's noise (`again`), its own
    noise is their root mean square, or eager's error under sequential summation (`sequential`) if
    that is larger. The ratio of a feed is the largest of three: L2 over all elements, the largest
    element, and L2 in each row of the first axis. On feeds without float64, and in rows where it is
    another function, e replaces r.
    """
    exact = [pair for pair in pairs if is_measurable(name, pair)]
    shares = [
        one.share for one in (sum_output(name, drop_redraws(pair)) for pair in exact) if one.usable
    ]
    if not shares:
        return _no_floor(name, pairs)
    usual = statistics.median(shares)
    if usual > OTHER_FUNCTION**2:
        level = -10 * math.log10(usual)
        note = (
            f"output {name!r}: float64 is {level:.0f} dB from eager's own float32 on most feeds, "
            "so it says nothing of roundoff: judged by the table"
        )
        return NoiseFloors(feeds={}, channels=(), note=note)
    known = [*exact, *(pair for pair in pairs if pair.exact is None)]
    sides = [
        side
        for side in (make_judged_output(name, pair, usual) for pair in known)
        if side is not None
    ]
    held = _UsualNoise.of(sides)
    return NoiseFloors(
        feeds={side.pair.feed.name: held.feed(side) for side in sides},
        channels=tuple(held.channels(name, sides)),
    )


def _no_floor(name: str, pairs: Sequence[OutputPair]) -> NoiseFloors | None:
    """Return empty floors, with a note if a float64 result exists but is unusable."""
    if not any(pair.exact and pair.eager[name].any() for pair in pairs):
        return None  # also if zero throughout: there is no signal to compare with
    note = (
        f"output {name!r}: float64 cannot be set beside eager's (another shape, NaN or Inf, or "
        "complex numbers): judged by the table"
    )
    return NoiseFloors(feeds={}, channels=(), note=note)


@dataclass(frozen=True, kw_only=True)
class _UsualNoise:
    """Eager's usual noise: as a share of the signal, per element, and at its peak."""

    usual: float  # of the signal's square
    element: float  # the square of an element's noise
    crest: float
    total: float

    @classmethod
    def of(cls, sides: Sequence[JudgedOutput]) -> _UsualNoise:
        """Estimate from feeds with usable float64, else from those with redraws, else from all."""
        usable = [side.sums for side in sides if side.believed]
        usable = usable or [side.sums for side in sides if side.moved is not None]
        usable = usable or [side.sums for side in sides]
        usual = statistics.median(one.share for one in usable)
        # The square of the largest usual share that redraws explain.
        moved = [side.moved for side in sides if side.moved is not None] or [math.inf]
        limit = COMPARABLE**2 * max(statistics.median(moved), _ULP**2)
        crests = [one.own_max / math.sqrt(one.own / one.count) for one in usable if one.own > 0]
        return cls(
            usual=max(min(usual, limit), _ULP**2),
            element=statistics.median(one.own / one.count for one in usable),
            crest=max([_CREST, *crests]),
            total=sum(side.sums.count for side in sides),
        )

    def allowance(self, sums: Array, element: float) -> Array:
        """Return the squared allowance, one time the floor, for groups of elements.

        Args:
            sums: count, signal and own of each group, along the first axis.
            element: the squared noise of one element around the group.
        """
        import numpy as np

        count, signal, own = sums[:3]
        weight = np.minimum(1.0, (_FEW / np.maximum(count, 1)) ** _FADE) * (count < _ENOUGH)
        return np.asarray(np.maximum.reduce([own, self.usual * signal, weight * count * element]))

    def feed(self, side: JudgedOutput) -> FeedFloor:
        import numpy as np

        found = side.sums
        allowed = self.of_feed(found)
        slack = float(_slack(self.total))
        whole = math.sqrt(found.theirs / allowed)
        largest = found.theirs_max / (math.sqrt(allowed / found.count) * self.crest)
        times = max(whole, largest) / slack
        if found.rows is not None:
            held = np.maximum(self.allowance(found.rows, allowed / found.count), _TINY)
            rows = np.sqrt(found.rows[3] / held) / _slack(found.rows[0])
            times = max(times, float(rows.max(initial=0.0)))
        return FeedFloor(
            times=times,
            floor=math.sqrt(found.share) if side.believed else None,
            moved=None if side.moved is None else math.sqrt(side.moved),
        )

    def of_feed(self, found: SquareSums) -> float:
        """Return the squared allowance on one feed."""
        import numpy as np

        whole = np.array([found.count, found.signal, found.own])
        return max(float(self.allowance(whole, self.element)), _TINY)

    def channels(self, name: str, sides: Sequence[JudgedOutput]) -> Iterator[ChannelVerdict]:
        """Yield the worst channel of each channel axis by its ratio, pooled over the feeds.

        Each feed is normalised by its own noise, as a feed with large noise would hide the others.
        Without float64, a channel's noise is taken from the feeds with float64, so that a channel
        of little signal is not limited by its signal alone.
        """
        import numpy as np

        levels = [self.of_feed(side.sums) / side.sums.count for side in sides]
        pairs = [side.pair for side in sides]
        for axis in channel_axes([pair.eager[name] for pair in pairs]):
            found = (sum_groups(name, pair, axis) for pair in pairs)
            groups = list(zip(found, levels, strict=True))
            # The sums, but not the count, in units of the squared noise of an element.
            levelled = [np.concatenate([s[:1], s[1:4] / level]) for s, level in groups]
            pooled = np.sum(_with_usual_noise(levelled, sides), axis=0)
            if pooled[0].max(initial=0) < _FEW:
                continue
            held = np.maximum(self.allowance(pooled, 1.0), _TINY)
            times = np.sqrt(pooled[3] / held) / _slack(pooled[0])
            worst = int(times.argmax())
            yield ChannelVerdict(
                output=name,
                axis=axis,
                channel=worst,
                sqnr=None,
                times_floor=float(times[worst]),
                max_abs=max(float(found[5][worst]) for found, _ in groups),
                allowed=max(math.sqrt(level) for _, level in groups),
            )


def _with_usual_noise(levelled: Sequence[Array], sides: Sequence[JudgedOutput]) -> list[Array]:
    """Fill in the channel noise on feeds without float64.

    The noise is the mean per element over the feeds on which float64 is valid in all rows.
    """
    import numpy as np

    known = [one for one, side in zip(levelled, sides, strict=True) if side.believed]
    if not known:
        return list(levelled)
    count, _, own, _ = np.sum(known, axis=0)
    noise = own / np.maximum(count, 1)
    return [
        one
        if side.believed or side.moved is not None
        else np.stack([one[0], one[1], np.maximum(one[2], noise * one[0]), one[3]])
        for one, side in zip(levelled, sides, strict=True)
    ]


def _slack(count: Array | float) -> Array:
    import numpy as np

    return np.asarray(1 + _CHANCE / np.sqrt(np.maximum(count, 1)))
