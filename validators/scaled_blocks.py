"""Find blocks of integer weights whose scale or zero point is wrong, in files of any tool.

Rounding to nearest moves no weight by more than half a step, but GPTQ moves some by several steps,
AWQ scales whole channels, and a search for scales clips the largest weights. None of them makes one
block a multiple of the checkpoint's. A fit of each block shows that multiple, its factor:

* Errors of at most half a step move a factor by at most `half * sum(|w|) / sum(w^2)`: 0.12 with 4
  bits and blocks of 32. Larger independent errors `s` move it by `s / |w|` (one sigma). The best
  scale for given integers shrinks a block by its squared relative error, 1 % there. A factor
  beyond these bounds, with six sigmas of the block's own errors, and beyond `_LEAST` is a fault.
  Weights at the ends of the grid do not count, as clipping moves these alone.
* A zero point that is rounded to an integer moves a block by half a step at most, one that is off
  by one by a whole step: the limit of the median is between them, and beyond six sigmas.

What whole rows or columns have in common is the fold of a norm, or channels that AWQ scaled.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ..core.contract import Array
from ..core.weights import IntegerMatrix, IntegerWeights
from .model_identity import ComputedTest
from .rounded_weights import list_orientations, match_sizes, split_rows

_LEAST, _SIGMAS = 0.15, 6.0  # of a factor; see above
_LEAST_BESIDE_LINES = 0.25  # where factors of rows and columns are estimated too
_COMMON = 0.05  # of a factor that its row or column does not explain
_SHIFT, _GLANCED_SHIFT = 1.5, 1.2  # half steps, of the median and the mean of a block's errors
_MEDIAN_SIGMAS, _NORMAL = 1.25, 1.48  # sigma of a median in those of a mean; in median errors
_ALIKE = 0.8  # correlation of most blocks with the weight's; with another weight's it is about 0
_GLANCE, _GLANCED_ALIKE = 8, 0.3  # rows; a wrong scale lowers the correlation of few rows
_MANY = 0.25  # share of blocks that are off: the matrix is another one
_LEAST_BLOCKS = 4
_CROSSED, _FEW_LINES = 3, 0.1  # blocks of a line; share of lines that a fold changes at least
_LINES = (
    (0,),
    (1,),
    (0, 1) * 5,
)  # axes across which lines have factors; the last beside each other
_PORTION = 1 << 23  # weights that are compared at once
_TINY = 1e-30


def find_scaled_blocks(
    weights: Mapping[str, Array],
    rounded: Iterable[IntegerMatrix],
    *,
    computed: ComputedTest = lambda _: False,
) -> tuple[str, ...]:
    """Describe matrices that are a weight of the checkpoint but for the scales of some blocks.

    A matrix that is like none (joined, reordered) is not reported: comparing outputs covers it.

    Args:
        weights: float32 arrays of the checkpoint by name.
        rounded: the artifact's integer weights, read once.
        computed: tests whether eager itself computes such a matrix from its weights.
    """
    found = []
    for matrix, alike in match_sizes(weights, rounded):
        text = _describe_matrix(alike, matrix)
        if text and not computed(lambda other, own=matrix: _is_rounded(other, own)):  # type: ignore[misc]
            found.append(text)
    return tuple(found)


def is_alike(meant: Array, matrix: IntegerMatrix) -> bool:
    """Whether a matrix is this weight but for its scales, by the correlation of most blocks."""
    import numpy as np

    rows = np.unique(np.linspace(0, len(meant) - 1, _GLANCE).astype(int))
    glance = np.concatenate([matrix.read_rows(row, row + 1).values for row in rows.tolist()])
    if _correlate(meant[rows], glance) < _GLANCED_ALIKE:
        return False
    return all(
        np.median(_fit_whole(meant[first : first + len(part.values)], part).like) >= _ALIKE
        for first, part in read_portions(matrix)
    )


def read_portions(matrix: IntegerMatrix) -> Iterator[tuple[int, IntegerWeights]]:
    """Yield portions of the rows, with the first row of each."""
    for first, last in split_rows(matrix.shape, _PORTION):
        yield first, matrix.read_rows(first, last)


def _describe_block(number: int, blocks: Array, first: int, *, turned: bool) -> str:
    """Return a block's number and its place in a weight, `turned` if that is transposed.

    `first` is the row of the matrix at which these blocks start.
    """
    import numpy as np

    places = [(int(one.min()), int(one.max())) for one in np.nonzero(blocks == number)]
    places[0] = places[0][0] + first, places[0][1] + first
    places = places[::-1] if turned else places
    spans = (str(low) if low == high else f"{low}:{high + 1}" for low, high in places)
    before = first * (int(blocks.max()) + 1) // len(blocks)
    return f"block {number + before} ([{', '.join(spans)}])"


def _describe_matrix(weights: Mapping[str, Array], matrix: IntegerMatrix) -> str:
    """Describe the blocks that are off in the weight that a matrix is like; empty without any."""
    for first, part in read_portions(matrix):
        faults = []
        for name, array in weights.items():
            for meant, turned in list_orientations(array, matrix.shape):
                found = _fit_blocks(meant[first : first + len(part.values)], part)
                if found is not None:
                    text = _describe_off(found, part.blocks, first, turned=turned)
                    faults.append(text and f"the weight {name} is not the checkpoint's: {text}")
        if faults and all(faults):
            return faults[0]
    return ""


def _is_rounded(computed: Array, matrix: IntegerMatrix) -> bool:
    """Whether the matrix is this tensor, rounded by any method."""
    for meant, _ in list_orientations(computed, matrix.shape):
        parts = (
            _fit_blocks(meant[first : first + len(part.values)], part)
            for first, part in read_portions(matrix)
        )
        if all(one is not None and not one.off.any() for one in parts):
            return True
    return False


@dataclass(frozen=True, kw_only=True)
class _BlockFit:
    """What blocks are of a weight, by number: factors, and shifts in half steps.

    `bound` is how far rounding errors move a factor from 1 at most, `like` the correlation of each
    block with the weight's, `least` the smallest error of a factor that counts.
    """

    factors: Array
    bound: Array
    shifts: Array
    like: Array
    least: float

    @property
    def off(self) -> Array:
        """Which blocks are scaled or shifted."""
        return self.find_scaled(self.least) | (abs(self.shifts) > _SHIFT)

    def find_scaled(self, least: float) -> Array:
        """Which blocks have a factor that is off by more than this, and than errors explain."""
        gap = abs(self.factors - 1)
        found: Array = (gap > least) & (gap > self.bound)
        return found


def _fit_blocks(meant: Array, matrix: IntegerWeights) -> _BlockFit | None:
    """Fit the blocks to a weight but for what rows and columns share; None if it is another."""
    import numpy as np

    rows = np.unique(np.linspace(0, len(meant) - 1, _GLANCE).astype(int))
    if _correlate(meant[rows], matrix.values[rows]) < _GLANCED_ALIKE:
        return None
    fits = [_fit_whole(meant, matrix)]
    if fits[0].off.any():
        plain, values, half, blocks = _flatten_parts(meant, matrix)
        fits += [_fit_lines(plain, values, half, blocks, axes) for axes in _LINES]
    best = min(fits, key=lambda one: int(one.find_scaled(_COMMON).sum()))
    unlike = (
        np.median(best.like) < _ALIKE or best.off.mean() > _MANY or len(best.off) < _LEAST_BLOCKS
    )
    return None if unlike else best


def _flatten_parts(meant: Array, matrix: IntegerWeights) -> tuple[Array, Array, Array, Array]:
    """Return weight, values, half steps and blocks as matrices."""
    shape = len(meant), -1
    parts = (meant, matrix.values, matrix.half_steps, matrix.blocks)
    plain, values, half, blocks = (one.reshape(shape) for one in parts)
    return plain, values, half, blocks


def _fit_whole(meant: Array, matrix: IntegerWeights) -> _BlockFit:
    """Fit the blocks to a weight as it is."""
    return _fit_plain(*_flatten_parts(meant, matrix))


def _correlate(one: Array, other: Array) -> float:
    import numpy as np

    size = float(np.linalg.norm(one)) * float(np.linalg.norm(other))
    return float(np.vdot(one, other)) / size if size else 0.0


def _fit_lines(
    plain: Array, values: Array, half: Array, blocks: Array, axes: tuple[int, ...]
) -> _BlockFit:
    """Fit the blocks beside factors of rows and columns, estimated without blocks that are off."""
    import numpy as np

    def fit(keep: Array) -> _BlockFit:
        scaled = plain
        for axis in axes:
            scaled = scaled * _factors_of_lines(scaled * keep, values * keep, blocks, axis)
        return _fit_plain(scaled, values, half, blocks, least=_LEAST_BESIDE_LINES)

    return fit(~fit(np.ones(plain.shape, bool)).find_scaled(_LEAST)[blocks])


def _factors_of_lines(plain: Array, values: Array, blocks: Array, axis: int) -> Array:
    """Return a factor for each line across an axis; all 1 where only scales may have changed it.

    A line of few blocks takes the factor of a wrong scale for its own, so most lines have to have
    one.
    """
    import numpy as np

    power = (plain.astype(np.float64) ** 2).sum(axis, keepdims=True)
    both = (values * plain).sum(axis, keepdims=True, dtype=np.float64)
    times = np.where(power > _TINY, both / np.maximum(power, _TINY), 1.0)
    crossed = len(np.unique(blocks.take(0, 1 - axis)))
    changed = int((np.abs(times - 1) > _COMMON).sum())
    if crossed < _CROSSED and changed <= max(2, _FEW_LINES * times.size):
        return np.ones_like(times)
    return np.asarray(times)


def _fit_plain(
    plain: Array, values: Array, half_steps: Array, blocks: Array, least: float = _LEAST
) -> _BlockFit:
    """Fit a factor and a shift to each block; robustly where the plain fit finds one."""
    import numpy as np

    flat = blocks.reshape(-1)

    def total(array: Array) -> Array:
        return np.bincount(flat, weights=array.reshape(-1))

    count, power, size = total(np.ones(flat.shape)), total(plain**2), total(values**2)
    both, half = total(values * plain), np.maximum(total(half_steps), _TINY) / count
    alive = np.where(power > _TINY, power, 1)
    factors = np.where(power > _TINY, both / alive, 1.0)
    noise = np.sqrt(np.maximum(size - factors**2 * power, 0) / count)
    fit = _BlockFit(
        factors=factors,
        bound=np.maximum(_SIGMAS * noise * np.sqrt(alive), half * total(np.abs(plain))) / alive,
        shifts=total(values - plain) / count / half,
        like=np.where(power > _TINY, both / np.sqrt(np.maximum(power * size, _TINY)), 1.0),
        least=least,
    )
    doubtful = (np.abs(factors - 1) > _LEAST) | (np.abs(fit.shifts) > _GLANCED_SHIFT)
    fit.shifts[~doubtful] = 0
    if np.median(fit.like) >= _ALIKE:
        order = np.argsort(flat, kind="stable")
        starts = np.concatenate([[0], np.cumsum(count)]).astype(int)
        for block in np.flatnonzero(doubtful):
            own = order[starts[block] : starts[block + 1]]
            found = _fit_robustly(plain.reshape(-1)[own], values.reshape(-1)[own], half[block])
            fit.factors[block], fit.bound[block], fit.shifts[block] = found
    return fit


def _fit_robustly(plain: Array, values: Array, half: float) -> tuple[float, float, float]:
    """Return the factor of one block, its bound, and the shift (0 if errors explain it).

    Weights at the ends of the grid do not count: they may be clipped.
    """
    import numpy as np

    inner = (values > values.min()) & (values < values.max())
    plain, values = plain[inner], values[inner]
    power = float((plain**2).sum())
    if power <= _TINY:
        return 1.0, 0.0, 0.0
    factor = float((plain * values).sum()) / power
    noise = float(np.sqrt(np.mean((values - factor * plain) ** 2)))
    bound = max(_SIGMAS * noise * math.sqrt(power), half * float(np.abs(plain).sum())) / power
    moved = (values - plain) / half
    shift = float(np.median(moved))
    spread = _NORMAL * float(np.median(np.abs(moved - shift)))
    sure = abs(shift) > _SIGMAS * _MEDIAN_SIGMAS * spread / math.sqrt(plain.size)
    return factor, bound, shift if sure else 0.0


def _describe_off(fit: _BlockFit, blocks: Array, row: int, *, turned: bool) -> str:
    """Describe the blocks that are off: their number, factors, and the place of the first."""
    import numpy as np

    if not fit.off.any():
        return ""
    scaled = fit.find_scaled(fit.least)
    numbers = np.flatnonzero(scaled if scaled.any() else fit.off)
    first = _describe_block(int(numbers[0]), blocks, row, turned=turned)
    what = "scale" if scaled.any() else "zero point"
    low, high = (float(one(fit.factors[numbers])) for one in (np.min, np.max))
    if not scaled.any():
        how = "is off"
    elif high - low <= _COMMON * high:
        how = f"is {high:.2g} times the right one"
    else:
        how = f"is {low:.2g} to {high:.2g} times the right one"
    if len(numbers) == 1:
        return f"the {what} of {first} {how}"
    return f"the {what} of {len(numbers)} of {len(fit.off)} blocks {how}, first of {first}"
