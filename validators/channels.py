"""Each channel of an output at its own scale: a large one must not hide what a small one holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..core.contract import Array
from ..core.verdict import ChannelVerdict
from .fill import fill_limit
from .metrics import CLASSES, iter_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from ..core.verdict import Tolerance
    from .evidence import OutputPair

# A channel has fewer elements and may be far smaller than the whole that `min_sqnr` is for: it may
# lie this many dB below.
CHANNEL_MARGIN = 20.0
_IMAGE_RANK = 3  # dims from which axis 1 holds channels too


@dataclass(frozen=True, kw_only=True)
class ChannelSums:
    """Sums over all feeds for each channel of one axis: of e^2, of (a - e)^2, and max |a - e|."""

    signal: Array
    noise: Array
    max_abs: Array

    def sqnr(self) -> Array:
        """10 log10(signal / noise) in dB; Inf without noise, -Inf with noise and no signal."""
        import numpy as np

        with np.errstate(all="ignore"):  # 0 / 0 is replaced, log10(0) is -Inf as it should be
            found = 10 * np.log10(self.signal / self.noise)
        return np.where(self.noise > 0, found, np.inf)


def measure_channels(
    name: str, pairs: Sequence[OutputPair], *, floor: float, tolerance: Tolerance
) -> Iterator[ChannelVerdict]:
    """The worst channel of each axis, at its own scale and over all feeds.

    Channels lie along the last axis and, from three dims on, along axis 1, where that axis has one
    size on all feeds. The worst is that of the lowest SQNR among those whose max |a - e| is above
    `floor` (and above `atol`, where eager is zero throughout). NaN, Inf and fill are left out.

    Args:
        name: a float output, of eager's shape and dtype on every feed.
        pairs: the feeds that were answered.
        floor: the error that is roundoff at the usual scale of the whole output.
        tolerance: the `atol` and the `min_sqnr` of the whole output.
    """
    import numpy as np

    for axis in channel_axes([pair.eager[name] for pair in pairs]):
        found = pool_channels(name, pairs, axis)
        sqnr = found.sqnr()
        # Where eager is zero there is no SQNR to ask for, and `atol` is what is allowed.
        allowed = np.where(found.signal > 0, floor, max(floor, tolerance.atol))
        loud = found.max_abs > allowed
        if not loud.any():
            continue
        worst = _argmin_among(sqnr, loud)
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
    """The axes with channels: of one size on all feeds, which is at least 2."""
    ranks = {array.ndim for array in arrays}
    if len(ranks) != 1 or ranks == {0}:
        return
    for axis in (-1, 1) if ranks.pop() >= _IMAGE_RANK else (-1,):
        sizes = {array.shape[axis] for array in arrays}
        if len(sizes) == 1 and sizes.pop() in CLASSES:
            yield axis


def pool_channels(name: str, pairs: Sequence[OutputPair], axis: int) -> ChannelSums:
    """The sums over all feeds, in float64; temporaries are of one block, whatever the arrays."""
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


def _argmin_among(values: Array, chosen: Array) -> int:
    """The place of the least value among the chosen."""
    import numpy as np

    return int(np.where(chosen, values, np.inf).argmin())


def _channel_rows(
    eager: Array, artifact: Array, limit: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Eager and the error as rows of channels; 0 where there is NaN, Inf or fill.

    Of complex numbers the magnitudes of both.
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
