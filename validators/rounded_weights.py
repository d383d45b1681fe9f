"""Check that integer weights of an artifact are the checkpoint's, rounded to nearest.

A limit on outputs cannot find one wrong block among many: rounding to 4 bits itself moves outputs
by a tenth. The weights can: rounding moves none by more than half a step of its block, and a block
whose scale, zero point or order is wrong moves many of its weights further.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from ..core.contract import Array
from ..core.weights import IntegerMatrix, IntegerWeights
from .model_identity import ComputedTest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Times the radius of rounding: scales in FP16 move the largest of 8 bits by another 0.06 steps.
_SLACK = 1.2
_ALIKE = 0.6  # share of weights within radius; of another matrix, normally distributed, 0.09 are
# Share of blocks with a weight beyond radius, or with all weights shifted to one side. A fold (of a
# batch norm) moves weights beyond radius in most blocks, and to both sides.
_FEW, _MANY = 0.25, 0.25
_SHIFTED = 0.8  # times the radius, which is less than a zero point off by one moves any weight
_FEW_LINES, _SMALL_FACTOR = 0.1, 0.1  # share of rows or columns; less a factor of 1
_FOLD_SLACK = 1.5  # as `_SLACK`, and the error of a factor that is estimated from rounded weights
_PORTION = 1 << 22  # weights that are compared at once
_GLANCE = 8  # rows of a matrix that tell which weights are unrelated
_MATRIX = 2


def find_misrounded_weights(
    weights: Mapping[str, Array],
    rounded: Iterable[IntegerMatrix],
    *,
    computed: ComputedTest = lambda _: False,
) -> tuple[str, ...]:
    """Describe matrices that are a weight of the checkpoint but for some elements.

    A matrix that is like none (folded, joined, or scaled by the activations) is not reported:
    comparing outputs covers it. A matrix that is a weight rounded is read in portions; another one
    is read whole, to find out why.

    Args:
        weights: float32 arrays of the checkpoint by name.
        rounded: the artifact's integer weights, read once.
        computed: tests whether eager itself computes such a matrix from its weights.
    """
    found = []
    for matrix, alike in match_sizes(weights, rounded):
        if any(is_rounded(weight, matrix) for weight in alike.values()):
            continue
        text = _describe_misrounded(alike, matrix.read_all())
        if text and not computed(lambda other, own=matrix: is_rounded(other, own)):  # type: ignore[misc]
            found.append(text)
    return tuple(found)


def _describe_misrounded(weights: Mapping[str, Array], matrix: IntegerWeights) -> str:
    """Describe how a matrix differs from the weight that it is like; empty if it is like none."""
    for name, array in weights.items():
        for meant, _ in list_orientations(array, matrix.values.shape):
            found = _find_fault(meant, matrix)
            if found is not None:
                return f"the weight {name} is not the checkpoint's: {found}"
    return ""


def match_sizes(
    weights: Mapping[str, Array], rounded: Iterable[IntegerMatrix]
) -> Iterator[tuple[IntegerMatrix, dict[str, Array]]]:
    """Yield each matrix with the weights of as many elements; those without any are left out."""
    by_size: dict[int, list[str]] = {}
    for name, array in weights.items():
        by_size.setdefault(array.size, []).append(name)
    for matrix in rounded:
        names = by_size.get(math.prod(matrix.shape), ())
        if names:
            yield matrix, {name: weights[name] for name in names}


def list_orientations(weight: Array, shape: tuple[int, ...]) -> Iterator[tuple[Array, bool]]:
    """Yield the weight, and a matrix also transposed (true), where they have the shape.

    Dims of 1 do not count: runtimes add some to the weights of convolutions.
    """
    if [size for size in weight.shape if size != 1] == [size for size in shape if size != 1]:
        yield weight.reshape(shape), False
    if weight.ndim == _MATRIX and weight.T.shape == shape:
        yield weight.T, True


def split_rows(shape: tuple[int, ...], most: int) -> Iterator[tuple[int, int]]:
    """Yield the first row and the end of portions with at most so many elements, or of one row."""
    rows = shape[0]
    step = max(most * rows // max(math.prod(shape), 1), 1)
    for first in range(0, rows, step):
        yield first, min(first + step, rows)


def is_rounded(weight: Array, matrix: IntegerMatrix) -> bool:
    """Whether the matrix is this tensor, rounded to nearest."""
    return any(is_near(meant, matrix) for meant, _ in list_orientations(weight, matrix.shape))


def is_near(meant: Array, matrix: IntegerMatrix) -> bool:
    """Whether rounding to nearest explains all differences; reads the matrix in portions."""
    import numpy as np

    rows = matrix.shape[0]
    few = map(int, np.linspace(0, rows - 1, _GLANCE))
    parts = [*((row, row + 1) for row in few), *split_rows(matrix.shape, _PORTION)]
    return all(
        not _is_beyond(meant[first:last], matrix.read_rows(first, last)).any()
        for first, last in parts
    )


def _find_fault(meant: Array, matrix: IntegerWeights) -> str | None:
    """Describe what rounding of a weight does not explain; None if the matrix is another weight."""
    import numpy as np

    few = np.unique(np.linspace(0, len(meant) - 1, _GLANCE).astype(int))
    like = _is_beyond(meant, matrix, few).mean() <= 1 - _ALIKE
    off = _is_beyond(meant, matrix) if like else np.ones(meant.shape, bool)
    wrong = _count_in_blocks(off, matrix) > 0
    if _is_folded(meant, matrix, off):
        return None
    if like and wrong.mean() <= _FEW:
        return _difference_text(meant, matrix, off, wrong)
    moved = (matrix.values - meant) / np.maximum(matrix.radius, np.finfo(np.float32).tiny)
    near = np.abs(moved) < 3 * _SLACK  # half a step, and the step of a zero point off by one
    aside = (
        _count_in_blocks(~near | (moved < _SHIFTED), matrix) == 0,
        _count_in_blocks(~near | (moved > -_SHIFTED), matrix) == 0,
    )
    if np.logical_or(*aside).mean() > _MANY:
        return f"the zero points of {int(np.logical_or(*aside).sum())} blocks are off"
    if _is_reordered(meant, matrix):
        return f"its elements stand in another order within {wrong.size} blocks"
    return None


def _is_folded(meant: Array, matrix: IntegerWeights, off: NDArray[np.bool_]) -> bool:
    """Whether a factor for each row or column explains all, in more than a few of them.

    A batch norm multiplies all; few with a large factor are scales of channels that are wrong.
    """
    import numpy as np

    shape = len(meant), -1
    plain, values, radius, wrong = (
        one.reshape(shape) for one in (meant, matrix.values, matrix.radius, off)
    )
    for axis in (0, 1):
        power = np.maximum((plain**2).sum(axis, keepdims=True), np.finfo(np.float32).tiny)
        times = (values * plain).sum(axis, keepdims=True) / power
        if (np.abs(values - times * plain) <= _FOLD_SLACK * radius).all():
            lines = wrong.any(axis)
            small = np.abs(times.reshape(-1)[lines] - 1) < _SMALL_FACTOR
            return bool(lines.sum() > max(2, _FEW_LINES * lines.size) or small.all())
    return False


def _is_beyond(
    meant: Array, matrix: IntegerWeights, rows: Array | slice = slice(None)
) -> NDArray[np.bool_]:
    """Return which elements are off by more than rounding to nearest explains."""
    import numpy as np

    moved = np.abs(matrix.values[rows] - meant[rows])
    return np.asarray(~(moved <= _SLACK * matrix.radius[rows]))


def _count_in_blocks(found: NDArray[np.bool_], matrix: IntegerWeights) -> NDArray[np.float64]:
    import numpy as np

    return np.asarray(np.bincount(matrix.blocks.reshape(-1), weights=found.reshape(-1)), np.float64)


def _is_reordered(meant: Array, matrix: IntegerWeights) -> bool:
    """Whether each block holds the weight's elements in another order; the first block decides."""
    import numpy as np

    first = matrix.blocks == matrix.blocks.reshape(-1)[0]
    for part in (first, np.ones_like(first)):
        blocks, radius = matrix.blocks[part], matrix.radius[part]
        ours, theirs = (np.lexsort((one, blocks)) for one in (matrix.values[part], meant[part]))
        moved = np.abs(matrix.values[part][ours] - meant[part][theirs])
        if not (moved <= _SLACK * radius[ours]).all():
            return False
    return True


def _difference_text(
    meant: Array, matrix: IntegerWeights, off: NDArray[np.bool_], wrong: NDArray[np.bool_]
) -> str:
    import numpy as np

    gap = np.where(off, np.abs(matrix.values - meant), 0)
    where = np.unravel_index(int(np.nan_to_num(gap, nan=np.inf).argmax()), gap.shape)
    return (
        f"{int(wrong.sum())} of {wrong.size} blocks hold elements that rounding does not explain, "
        f"off by up to {float(gap[where]):.3g} ({float(matrix.values[where]):.4g} instead of "
        f"{float(meant[where]):.4g}, rounding moves it by {float(matrix.radius[where]):.2g})"
    )
