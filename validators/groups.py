"""Channels of one output by groups of one scale, for INT8: boxes in pixels beside scores in 0..1.

8-bit noise is one for all channels of a tensor, and a single quiet channel drowns in it by design.
A kind of channels that is of another scale throughout is an answer of its own, which must not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..core.contract import Array
from ..core.verdict import GroupVerdict
from .channels import channel_axes
from .fill import fill_limit
from .metrics import CLASSES, iter_blocks, to_decibel

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .evidence import OutputPair

# Channels of one output by groups of one scale, for INT8: boxes in pixels beside scores in 0..1.
#
# 8-bit noise is one for all channels of a tensor, and a single quiet channel drowns in it by
# design. A kind of channels that is of another scale throughout is an answer of its own, which must
# not.


# 20 dB: what is ten times as quiet still has half of the 8 bits of the whole.
_APART = 10.0
# 120 dB below the loudest channel, which is below one unit in the last place of its float32: what
# lies there is a remainder, as of a pruned channel, and nobody's answer.
_LEAST = 1e-6
# A few quiet channels among many are of one kind with them; at an eighth they are one of their own.
_SHARE = 1 / 8
# One number in a row of others is a quiet logit; one number at each of many places is a map.
_ALONE, _PLACES = 1, 32
# A channel that spans a sixteenth of its group's range spans 16 of the 256 steps of 8 bits.
_SPAN = 1 / 16
_STILL = 1e-3  # of eager's span: what moves less is constant
_TAKEN = 1 << 20  # elements over all feeds that medians are taken over
_MATRIX = 2  # dims: axis 0 may hold channels where nothing is a batch


@dataclass(frozen=True, kw_only=True)
class _ChannelStatistics:
    """Per channel of one axis over all feeds: sums, ends, and the usual magnitude where not 0."""

    count: Array
    signal: Array
    noise: Array
    low: Array
    high: Array
    answered: Array  # the span of the artifact's
    usual: Array

    @property
    def rms(self) -> Array:
        import numpy as np

        return np.asarray(np.sqrt(self.signal / np.maximum(self.count, 1)))

    @property
    def span(self) -> Array:
        return _zero_invalid(self.high - self.low)


def _zero_invalid(values: Array) -> Array:
    """The values, 0 where they are negative or not finite: of channels without any element."""
    import numpy as np

    return np.where(np.isfinite(values), np.maximum(values, 0), 0)


def measure_groups(name: str, pairs: Sequence[OutputPair]) -> Iterator[GroupVerdict]:
    """The kinds of channels of each axis that has several, and what is dead in any.

    **Groups.** The channels of an axis are sorted by their RMS in eager over all feeds. Between two
    of them lies a border where the louder is at least 20 dB above the quieter and most of those
    beyond it are that loud *usually* (by their median over elements that are not zero): a class
    that is large in one sample of many is no other kind. Where all of eager's values lie in 0..1
    (probabilities, normalised coordinates) the scale is a common one and there are no borders.

    **Kinds.** A group is one where it has at least an eighth of the axis's channels, and two of
    them, or one that holds 32 elements on a feed. Each is measured at its own scale; see
    `group_fault` for its limit. Smaller groups are quiet channels that drown by design.

    **Dead channels.** A channel of any group, 120 dB below the loudest at most, is dead where
    eager's spans at least a sixteenth of its group's range, zero included, which 8 bits at the
    group's own scale would show in 16 steps, and the artifact's is one constant over all feeds and
    places.

    Args:
        name: a float output, of eager's shape and dtype on every feed.
        pairs: the feeds that were answered and count.
    """
    for axis in _group_axes([pair.eager[name] for pair in pairs]):
        found = _pool_statistics(name, pairs, axis)
        places = max(pair.eager[name].size // pair.eager[name].shape[axis] for pair in pairs)
        groups = _find_groups(found)
        many = len(groups) > 1
        for group in groups:
            kind = many and _is_group_kind(len(group), sum(map(len, groups)), places)
            dead = _find_dead(found, group)
            if kind or len(dead):
                yield _make_group_verdict(name, axis, found, group, dead=dead, kind=kind)


def _group_axes(arrays: Sequence[Array]) -> Iterator[int]:
    """The axes with channels, and the first of a matrix that is no batch."""
    yield from channel_axes(arrays)
    if all(array.ndim == _MATRIX for array in arrays):
        sizes = {len(array) for array in arrays}
        if len(sizes) == 1 and sizes.pop() in CLASSES:
            yield 0


def _is_group_kind(size: int, total: int, places: int) -> bool:
    return size >= _SHARE * total and (size > _ALONE or places >= _PLACES)


def _find_groups(found: _ChannelStatistics) -> list[Array]:
    """The indices of channels in groups, the quietest group first; those without signal in none."""
    import numpy as np

    rms = found.rms
    live = np.flatnonzero(rms > _LEAST * rms.max(initial=0))
    if not len(live):
        return []
    order = live[np.argsort(rms[live], kind="stable")]
    if found.low[order].min() >= 0 and found.high[order].max() <= 1:
        return [order]
    levels, usual = rms[order], found.usual[order]
    # Only where the next is so much louder is there anything to count.
    steps = np.flatnonzero(levels[1:] >= _APART * levels[:-1])
    borders = [
        step + 1 for step in steps if np.mean(usual[step + 1 :] >= _APART * levels[step]) > 1 / 2
    ]
    return np.split(order, borders)


def _find_dead(found: _ChannelStatistics, group: Array) -> Array:
    """The channels of a group that vary in eager and not in the artifact."""
    reach = max(found.high[group].max(), 0.0) - min(found.low[group].min(), 0.0)
    span = found.span[group]
    dead: Array = group[(span >= _SPAN * reach) & (found.answered[group] <= _STILL * span)]
    return dead


def _make_group_verdict(  # noqa: PLR0913 - the parts of one record
    name: str, axis: int, found: _ChannelStatistics, group: Array, *, dead: Array, kind: bool
) -> GroupVerdict:
    signal, noise = float(found.signal[group].sum()), float(found.noise[group].sum())
    count = float(found.count[group].sum())
    return GroupVerdict(
        output=name,
        axis=axis,
        channels=index_ranges(group),
        count=len(group),
        kind=kind,
        rms=(signal / max(count, 1.0)) ** 0.5,
        sqnr=to_decibel(signal, noise),
        dead=index_ranges(dead),
        dead_count=len(dead),
    )


def index_ranges(indices: Array) -> tuple[tuple[int, int], ...]:
    """The first and the last of each run of neighbours, ascending."""
    import numpy as np

    if not len(indices):
        return ()
    runs = np.split(np.sort(indices), np.flatnonzero(np.diff(np.sort(indices)) > 1) + 1)
    return tuple((int(run[0]), int(run[-1])) for run in runs)


def _pool_statistics(name: str, pairs: Sequence[OutputPair], axis: int) -> _ChannelStatistics:
    """The measures over all feeds, in float64 and block by block; NaN, Inf and fill left out."""
    import numpy as np

    channels = pairs[0].eager[name].shape[axis]
    count, signal, noise = np.zeros((3, channels))
    low, low_answer = np.full((2, channels), np.inf)
    high, high_answer = np.full((2, channels), -np.inf)
    for pair in pairs:
        limit = fill_limit(pair.eager[name])
        both = (np.moveaxis(side[name], axis, -1) for side in (pair.eager, pair.artifact))
        for pieces in iter_blocks(*both):
            truth, answer = (p.astype(np.float64).reshape(-1, channels) for p in pieces)
            kept = np.isfinite(truth) & np.isfinite(answer) & (np.abs(truth) <= limit)
            error = np.where(kept, answer - truth, 0.0)
            count += kept.sum(axis=0)
            signal += np.einsum("rc,rc->c", np.where(kept, truth, 0), np.where(kept, truth, 0))
            noise += np.einsum("rc,rc->c", error, error)
            np.minimum(low, np.where(kept, truth, np.inf).min(axis=0, initial=np.inf), out=low)
            np.maximum(high, np.where(kept, truth, -np.inf).max(axis=0, initial=-np.inf), out=high)
            answer_low = np.where(kept, answer, np.inf).min(axis=0, initial=np.inf)
            answer_high = np.where(kept, answer, -np.inf).max(axis=0, initial=-np.inf)
            np.minimum(low_answer, answer_low, out=low_answer)
            np.maximum(high_answer, answer_high, out=high_answer)
    return _ChannelStatistics(
        count=count,
        signal=signal,
        noise=noise,
        low=low,
        high=high,
        answered=_zero_invalid(high_answer - low_answer),
        usual=_usual_magnitudes([pair.eager[name] for pair in pairs], axis),
    )


def _usual_magnitudes(arrays: Sequence[Array], axis: int) -> Array:
    """The median magnitude of each channel over elements that are finite and not zero."""
    import numpy as np

    most = max(1, _TAKEN // (len(arrays) * arrays[0].shape[axis]))
    taken = []
    for array in arrays:
        rows = np.moveaxis(array, axis, -1).reshape(-1, array.shape[axis])
        step = -(-len(rows) // most) or 1
        taken.append(np.abs(rows[::step].astype(np.float64)))
    found = np.concatenate(taken)
    found[~np.isfinite(found) | (found == 0)] = np.nan
    filled = ~np.isnan(found).all(axis=0)
    usual = np.zeros(found.shape[1])
    usual[filled] = np.nanmedian(found[:, filled], axis=0)
    return usual
