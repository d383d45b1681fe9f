"""Measure each channel of an output at its own scale; group channels by scale for INT8."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..core.contract import Array
from ..core.verdict import ChannelVerdict, GroupVerdict
from .metrics import CLASSES, fill_limit, iter_blocks, to_decibel

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from ..core.verdict import Tolerance
    from .output_pairs import OutputPair

# dB below `min_sqnr`, which applies to the whole output: a channel has fewer elements and may be
# far smaller.
CHANNEL_MARGIN = 20.0
_IMAGE_RANK = 3  # number of dims from which axis 1 holds channels too


@dataclass(frozen=True, kw_only=True)
class ChannelSums:
    """Sums of e^2 and (a - e)^2 and max |a - e| over all feeds, per channel of one axis."""

    signal: Array
    noise: Array
    max_abs: Array

    def sqnr(self) -> Array:
        """Return 10 log10(signal / noise) in dB; Inf without noise, -Inf without signal."""
        import numpy as np

        with np.errstate(all="ignore"):  # 0 / 0 is replaced below; log10(0) is -Inf as intended
            found = 10 * np.log10(self.signal / self.noise)
        return np.where(self.noise > 0, found, np.inf)


def measure_channels(
    name: str, pairs: Sequence[OutputPair], *, floor: float, tolerance: Tolerance
) -> Iterator[ChannelVerdict]:
    """Yield the worst channel of each axis, at its own scale and over all feeds.

    Channels lie along the last axis and, from three dims on, along axis 1, if that axis has the
    same size on all feeds. The worst channel has the lowest SQNR among those whose max |a - e|
    exceeds `floor` (or `atol`, where eager is zero throughout). NaN, Inf and fill are ignored.

    Args:
        name: a float output with eager's shape and dtype on every feed.
        pairs: the feeds on which the artifact ran.
        floor: the roundoff error at the usual scale of the whole output.
        tolerance: the `atol` and the `min_sqnr` of the whole output.
    """
    import numpy as np

    for axis in channel_axes([pair.eager[name] for pair in pairs]):
        found = pool_channels(name, pairs, axis)
        sqnr = found.sqnr()
        # Where eager is zero, SQNR is undefined and `atol` applies.
        allowed = np.where(found.signal > 0, floor, max(floor, tolerance.atol))
        loud = found.max_abs > allowed
        if not loud.any():
            continue
        worst = int(np.where(loud, sqnr, np.inf).argmin())
        wrong = loud & (sqnr < tolerance.min_sqnr - CHANNEL_MARGIN)
        yield ChannelVerdict(
            output=name,
            axis=axis,
            channel=worst,
            sqnr=float(sqnr[worst]) if np.isfinite(sqnr[worst]) else None,
            max_abs=float(found.max_abs[worst]),
            allowed=float(allowed[worst]),
            more=max(0, int(wrong.sum()) - 1),
        )


def channel_axes(arrays: Sequence[Array]) -> Iterator[int]:
    """Yield the axes with channels: the same size, at least 2, on all feeds."""
    ranks = {array.ndim for array in arrays}
    if len(ranks) != 1 or ranks == {0}:
        return
    for axis in (-1, 1) if ranks.pop() >= _IMAGE_RANK else (-1,):
        sizes = {array.shape[axis] for array in arrays}
        if len(sizes) == 1 and sizes.pop() in CLASSES:
            yield axis


def pool_channels(name: str, pairs: Sequence[OutputPair], axis: int) -> ChannelSums:
    """Compute the sums over all feeds in float64, block by block to bound memory."""
    import numpy as np

    signal, noise, max_abs = np.zeros((3, pairs[0].eager[name].shape[axis]))
    for pair in pairs:
        eager, artifact = (np.moveaxis(a[name], axis, -1) for a in (pair.eager, pair.artifact))
        limit = fill_limit(pair.eager[name])
        for left, right in iter_blocks(eager, artifact):
            truth, error = _channel_rows(left, right, limit)
            with np.errstate(over="ignore"):  # float64 near its end
                signal += np.einsum("rc,rc->c", truth, truth)
                noise += np.einsum("rc,rc->c", error, error)
            np.maximum(max_abs, np.abs(error).max(axis=0, initial=0), out=max_abs)
    return ChannelSums(signal=signal, noise=noise, max_abs=max_abs)


def _channel_rows(
    eager: Array, artifact: Array, limit: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return eager and the error as rows of channels, with 0 for NaN, Inf and fill.

    For complex numbers these are magnitudes.
    """
    import numpy as np

    if eager.dtype.kind == "c":
        wide = eager.astype(np.complex128)
        eager = np.abs(wide)
        artifact = eager + np.abs(artifact - wide)
    truth = eager.astype(np.float64).reshape(-1, eager.shape[-1])
    answer = artifact.astype(np.float64).reshape(truth.shape)
    left_out = ~(np.isfinite(truth) & np.isfinite(answer)) | (np.abs(truth) > limit)
    truth[left_out] = 0
    answer[left_out] = 0
    return truth, answer - truth


# INT8: groups of channels of one scale, for example boxes in pixels beside scores in 0..1. All
# channels of an 8-bit tensor share one quantization noise, so a single quiet channel is lost in it
# by design. A kind of channels with a scale of its own is a result of its own and must not be lost.


# 20 dB: a signal ten times as quiet still has half of the 8 bits of the whole.
_APART = 10.0
# 120 dB below the loudest channel, less than one unit in the last place of its float32: a residue,
# as of a pruned channel, not a result.
_LEAST = 1e-6
# A few quiet channels among many belong to the same kind; from an eighth on they form their own.
_SHARE = 1 / 8
# One number in a row of others is a quiet logit; one number at each of many positions is a map.
_ALONE, _PLACES = 1, 32
# A channel that spans a sixteenth of its group's range spans 16 of the 256 steps of 8 bits.
_SPAN = 1 / 16
_STILL = 1e-3  # of eager's span; a channel with a smaller span is constant
_TAKEN = 1 << 20  # maximum number of elements, over all feeds, that a median uses
_MATRIX = 2  # dims; axis 0 of a matrix may hold channels if the batch is not an axis


@dataclass(frozen=True, kw_only=True)
class _ChannelStatistics:
    """Sums, ranges and usual magnitudes over all feeds, per channel of one axis."""

    count: Array
    signal: Array
    noise: Array
    low: Array
    high: Array
    answered: Array  # span of the artifact's values
    usual: Array

    @property
    def rms(self) -> Array:
        import numpy as np

        return np.asarray(np.sqrt(self.signal / np.maximum(self.count, 1)))

    @property
    def span(self) -> Array:
        return _zero_invalid(self.high - self.low)


def _zero_invalid(values: Array) -> Array:
    """Replace negative and non-finite values, which channels without elements have, by 0."""
    import numpy as np

    return np.where(np.isfinite(values), np.maximum(values, 0), 0)


def measure_groups(name: str, pairs: Sequence[OutputPair]) -> Iterator[GroupVerdict]:
    """Yield the kinds of channels of each axis with several kinds, and the dead channels.

    **Groups.** The channels of an axis are sorted by their RMS in eager over all feeds. A border
    separates two neighbours if the louder is at least 20 dB above the quieter and most channels
    beyond it are that loud *usually* (by the median over nonzero elements): a class that is large
    in one sample of many is not another kind. If all of eager's values lie in 0..1 (probabilities,
    normalised coordinates), the channels share one scale and there are no borders.

    **Kinds.** A group is a kind if it has at least an eighth of the channels of the axis, and at
    least two channels or 32 elements on a feed. Each kind is measured at its own scale; see
    `group_fault` for the limit. Smaller groups are quiet channels, which 8-bit noise hides by
    design.

    **Dead channels.** A channel at most 120 dB below the loudest is dead if the artifact's values
    are one constant over all feeds and positions, while eager's span at least a sixteenth of its
    group's range (zero included), which is 16 steps of 8 bits at the group's own scale.

    Args:
        name: a float output with eager's shape and dtype on every feed.
        pairs: the feeds that count and on which the artifact ran.
    """
    for axis in _group_axes([pair.eager[name] for pair in pairs]):
        found = _pool_statistics(name, pairs, axis)
        places = max(pair.eager[name].size // pair.eager[name].shape[axis] for pair in pairs)
        groups = _find_groups(found)
        total = sum(map(len, groups))
        for group in groups:
            large = len(group) >= _SHARE * total and (len(group) > _ALONE or places >= _PLACES)
            kind = len(groups) > 1 and large
            dead = _find_dead(found, group)
            if kind or len(dead):
                yield _make_group_verdict(name, axis, found, group, dead=dead, kind=kind)


def _group_axes(arrays: Sequence[Array]) -> Iterator[int]:
    """Yield the channel axes, and axis 0 of a matrix if its size never varies."""
    yield from channel_axes(arrays)
    if all(array.ndim == _MATRIX for array in arrays):
        sizes = {len(array) for array in arrays}
        if len(sizes) == 1 and sizes.pop() in CLASSES:
            yield 0


def _find_groups(found: _ChannelStatistics) -> list[Array]:
    """Return the channel indices by group, quietest first; channels without signal are omitted."""
    import numpy as np

    rms = found.rms
    live = np.flatnonzero(rms > _LEAST * rms.max(initial=0))
    if not len(live):
        return []
    order = live[np.argsort(rms[live], kind="stable")]
    if found.low[order].min() >= 0 and found.high[order].max() <= 1:
        return [order]
    levels, usual = rms[order], found.usual[order]
    # Skip the count below unless the next level is loud enough.
    steps = np.flatnonzero(levels[1:] >= _APART * levels[:-1])
    borders = [
        step + 1 for step in steps if np.mean(usual[step + 1 :] >= _APART * levels[step]) > 1 / 2
    ]
    return np.split(order, borders)


def _find_dead(found: _ChannelStatistics, group: Array) -> Array:
    """Return the channels of a group that vary in eager but not in the artifact."""
    extent = max(found.high[group].max(), 0.0) - min(found.low[group].min(), 0.0)
    span = found.span[group]
    dead: Array = group[(span >= _SPAN * extent) & (found.answered[group] <= _STILL * span)]
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
    """Return the first and last index of each run of consecutive indices, ascending."""
    import numpy as np

    if not len(indices):
        return ()
    runs = np.split(np.sort(indices), np.flatnonzero(np.diff(np.sort(indices)) > 1) + 1)
    return tuple((int(run[0]), int(run[-1])) for run in runs)


def _pool_statistics(name: str, pairs: Sequence[OutputPair], axis: int) -> _ChannelStatistics:
    """Measure all feeds in float64, block by block, ignoring NaN, Inf and fill."""
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
    """Return the median magnitude of each channel over finite nonzero elements."""
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
