"""How far an artifact is from float64, in units of how far eager itself is: the noise floor.

With r = eager in float64, e = eager, a = the artifact: e - r is eager's own roundoff, and a good
conversion, which sums the same numbers in another order, errs by about as much: over more than a
hundred good fp32 conversions (docs/validation.md) |a - r| was 0.3 to 2.5 times |e - r|.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..core.contract import Array
from ..core.verdict import ChannelVerdict
from .channels import channel_axes
from .fill import fill_limit
from .metrics import blocks

if TYPE_CHECKING:
    from .evidence import Pair

# One unit in the last place of float32 (2^-23), of the RMS: eager may be exact by chance, as a copy
# is, and another way of dividing or of taking a root is not.
_ULP = 2.0**-23
# Up to so many elements their own noise says little, and what is usual around them counts as well.
# Beyond, that fades out with the fourth power, and from 32 on their own is within a factor of two.
_FEW, _FADE, _ENOUGH = 8, 4, 32
# An average over m elements scatters: 1 + 4 / sqrt(m) is allowed for chance.
_CHANCE = 4.0
_CREST = 4.0  # the largest of some ten thousand normal errors lies at 4 sigma
# Eager this far from float64 (40 dB) on most feeds is another function than float64's eager, not
# the same one with roundoff: a branch on the dtype, or numbers that are chaotic.
OTHER_FUNCTION = 1e-2
_TINY = 1e-300  # where there is neither signal nor noise, any error at all is too much
_ROWS = 2  # rows are told apart from two on


@dataclass(frozen=True, kw_only=True)
class FeedFloor:
    """One output on one feed: eager's own relative L2 distance from float64, and the ratio."""

    floor: float
    times: float


@dataclass(frozen=True, kw_only=True)
class ChannelFloor:
    """The worst channel of one axis by its ratio; `max_abs` is its largest |a - r|."""

    axis: int
    channel: int
    times: float
    max_abs: float
    allowed: float


@dataclass(frozen=True, kw_only=True)
class Floors:
    """One output over all feeds: by the feed's name, and its worst channels."""

    feeds: dict[str, FeedFloor]
    channels: tuple[ChannelFloor, ...]
    note: str = ""


def measure_floors(name: str, pairs: Sequence[Pair]) -> Floors | None:
    """The ratios of one float output; None where there is no float64 to measure against.

    A ratio is |a - r| over what is allowed for one: the largest of eager's own |e - r| on the feed,
    its usual share of the signal (the median over feeds), one unit in the last place, and, for few
    elements, the average of the output. Where a pair has more draws of eager's noise (`again`), its
    own is their root mean square, or what eager errs by where it sums one element after the other
    (`in_turn`), if that is more. The ratio of a feed is the largest of three: L2 over all
    elements, the largest element, and L2 in each row of the first axis.
    """
    known = [pair for pair in pairs if _measurable(name, pair)]
    sums = {pair.feed.name: _sums(name, pair) for pair in known}
    sums = {
        feed: found for feed, found in sums.items() if found.count and 0 < found.signal < math.inf
    }
    if not sums:
        return _unusable(name, pairs)
    usual = statistics.median(found.own / found.signal for found in sums.values())
    if usual > OTHER_FUNCTION**2:
        level = -10 * math.log10(usual)
        note = (
            f"output {name!r}: float64 is {level:.0f} dB from eager's own float32 on most feeds, "
            "so it says nothing of roundoff: judged by the table"
        )
        return Floors(feeds={}, channels=(), note=note)
    held = _Held.of(list(sums.values()), usual)
    return Floors(
        feeds={feed: held.feed(found) for feed, found in sums.items()},
        channels=tuple(held.channels(name, known, sums)),
    )


def _unusable(name: str, pairs: Sequence[Pair]) -> Floors | None:
    """No floor; with a note where there is a float64 answer that could not be used."""
    if not any(pair.exact and pair.eager[name].any() for pair in pairs):
        return None  # or zero throughout: nothing to be relative to
    note = (
        f"output {name!r}: float64 cannot be set beside eager's (another shape, NaN or Inf, or "
        "complex numbers): judged by the table"
    )
    return Floors(feeds={}, channels=(), note=note)


def floor_channels(name: str, floors: Floors) -> Iterator[ChannelVerdict]:
    """The worst channels as records."""
    for found in floors.channels:
        yield ChannelVerdict(
            output=name,
            axis=found.axis,
            channel=found.channel,
            sqnr=None,
            max_abs=found.max_abs,
            allowed=found.allowed,
            times_floor=found.times,
        )


@dataclass(frozen=True, kw_only=True)
class _Sums:
    """Sums of squares over elements, or over groups of them: of r, of e - r and of a - r."""

    count: float
    signal: float
    own: float
    theirs: float
    own_max: float
    theirs_max: float
    rows: Array | None = None  # 4 x rows: count, signal, own, theirs


@dataclass(frozen=True, kw_only=True)
class _Held:
    """What eager's own noise usually is: as a share of the signal, by element, at its peak."""

    usual: float  # of the signal's square
    element: float  # the square of an element's noise
    crest: float
    total: float

    @classmethod
    def of(cls, sums: Sequence[_Sums], usual: float) -> _Held:
        crests = [f.own_max / math.sqrt(f.own / f.count) for f in sums if f.own > 0]
        return cls(
            usual=max(usual, _ULP**2),
            element=statistics.median(found.own / found.count for found in sums),
            crest=max([_CREST, *crests]),
            total=sum(found.count for found in sums),
        )

    def allowed(self, sums: Array, element: float) -> Array:
        """The square of what is allowed for one time the floor, of groups of elements.

        Args:
            sums: count, signal and own of each group, in the first axis.
            element: the square of the noise of one element around it.
        """
        import numpy as np

        count, signal, own = sums[:3]
        weight = np.minimum(1.0, (_FEW / np.maximum(count, 1)) ** _FADE) * (count < _ENOUGH)
        return np.asarray(np.maximum.reduce([own, self.usual * signal, weight * count * element]))

    def feed(self, found: _Sums) -> FeedFloor:
        import numpy as np

        allowed = self.of_feed(found)
        slack = float(_slack(self.total))
        whole = math.sqrt(found.theirs / allowed)
        largest = found.theirs_max / (math.sqrt(allowed / found.count) * self.crest)
        times = max(whole, largest) / slack
        if found.rows is not None:
            held = np.maximum(self.allowed(found.rows, allowed / found.count), _TINY)
            rows = np.sqrt(found.rows[3] / held) / _slack(found.rows[0])
            times = max(times, float(rows.max(initial=0.0)))
        return FeedFloor(floor=math.sqrt(found.own / found.signal), times=times)

    def of_feed(self, found: _Sums) -> float:
        """The square of what is allowed on one feed."""
        import numpy as np

        whole = np.array([found.count, found.signal, found.own])
        return max(float(self.allowed(whole, self.element)), _TINY)

    def channels(
        self, name: str, pairs: Sequence[Pair], sums: Mapping[str, _Sums]
    ) -> Iterator[ChannelFloor]:
        """The worst channel of each axis that has any, pooled over the feeds.

        Each feed counts by its own noise: a large one would drown the others.
        """
        import numpy as np

        levels = {feed: self.of_feed(found) / found.count for feed, found in sums.items()}
        pairs = [pair for pair in pairs if pair.feed.name in levels]
        for axis in channel_axes([pair.eager[name] for pair in pairs]):
            groups = [(_grouped(name, pair, axis), levels[pair.feed.name]) for pair in pairs]
            pooled = np.sum([_levelled(found[:4], level) for found, level in groups], axis=0)
            if pooled[0].max(initial=0) < _FEW:
                continue
            held = np.maximum(self.allowed(pooled, 1.0), _TINY)
            times = np.sqrt(pooled[3] / held) / _slack(pooled[0])
            worst = int(times.argmax())
            yield ChannelFloor(
                axis=axis,
                channel=worst,
                times=float(times[worst]),
                max_abs=max(float(found[5][worst]) for found, _ in groups),
                allowed=max(math.sqrt(level) for _, level in groups),
            )


def _levelled(sums: Array, level: float) -> Array:
    """Count, and the sums in units of the square of an element's noise."""
    import numpy as np

    return np.concatenate([sums[:1], sums[1:] / level])


def _slack(count: Array | float) -> Array:
    import numpy as np

    return np.asarray(1 + _CHANCE / np.sqrt(np.maximum(count, 1)))


def _measurable(name: str, pair: Pair) -> bool:
    """Whether all three are float arrays of one shape, and float64 is finite where eager is."""
    import numpy as np

    exact, artifact = (pair.exact or {}).get(name), pair.artifact.get(name)
    if exact is None or artifact is None or pair.eager[name].dtype.kind != "f":
        return False
    if not (exact.shape == artifact.shape == pair.eager[name].shape) or exact.dtype.kind != "f":
        return False
    return all(
        bool((np.isfinite(truth) | ~np.isfinite(eager)).all())
        for truth, eager in blocks(exact, pair.eager[name])
    )


def _sums(name: str, pair: Pair) -> _Sums:
    axis = 0 if pair.eager[name].ndim > 1 and len(pair.eager[name]) >= _ROWS else None
    found = _grouped(name, pair, axis)
    count, signal, own, _, own_max, theirs_max, theirs = found
    return _Sums(
        count=float(count.sum()),
        signal=float(signal.sum()),
        own=float(own.sum()),
        theirs=float(theirs.sum()),
        own_max=float(own_max.max(initial=0.0)),
        theirs_max=float(theirs_max.max(initial=0.0)),
        rows=None if axis is None else found[:4],
    )


def _grouped(name: str, pair: Pair, axis: int | None) -> Array:
    """7 x groups along `axis` (None: one group): count, signal, own, theirs, the two maxima, all.

    Elements that are not finite in r, a and e, and fill, are left out. Those that are zero in eager
    and in float64 are left out of the groups too, having no noise of their own to be held to;
    `all` is theirs with these.
    """
    draws = [pair.eager[name], *(outputs[name] for outputs in pair.again)]
    turned = pair.eager if pair.in_turn is None else pair.in_turn
    arrays = ((pair.exact or {})[name], pair.artifact[name], turned[name], *draws)
    limit = fill_limit(pair.eager[name])
    if axis is None:
        return _grouped_along(tuple(array.reshape(-1, 1) for array in arrays), -1, limit)
    return _grouped_along(arrays, axis, limit)


def _grouped_along(arrays: tuple[Array, ...], axis: int, limit: float) -> Array:
    """`_grouped` of r, a, e summed in turn, and the draws of e: its own answer, then others."""
    import numpy as np

    groups = arrays[0].shape[axis]
    found = np.zeros((7, groups))
    for pieces in blocks(*(np.moveaxis(array, axis, -1) for array in arrays)):
        rows = [piece.astype(np.float64).reshape(-1, groups) for piece in pieces]
        told = [rows[0], rows[1], rows[3]]
        kept = np.logical_and.reduce([np.isfinite(row) for row in told])
        kept &= np.abs(rows[3]) <= limit
        r, a, e = (np.where(kept, row, 0.0) for row in told)
        # A draw that is NaN says nothing of the noise there: eager's own stands in for it.
        turned, *more = (np.where(kept & np.isfinite(row), row, e) for row in (rows[2], *rows[4:]))
        with np.errstate(over="ignore", invalid="ignore"):  # float64 near its end
            own = np.sqrt(np.mean([(draw - r) ** 2 for draw in (e, *more)], axis=0))
            own = np.maximum(own, np.abs(turned - r))
            theirs = np.abs(a - r)
            alive = (r != 0) | (own != 0)
            found[0] += alive.sum(axis=0)
            for index, values in enumerate((r, own, theirs * alive), start=1):
                found[index] += np.einsum("rc,rc->c", values, values)
            np.maximum(found[4], own.max(axis=0, initial=0), out=found[4])
            np.maximum(found[5], theirs.max(axis=0, initial=0), out=found[5])
            found[6] += np.einsum("rc,rc->c", theirs, theirs)
    return found
