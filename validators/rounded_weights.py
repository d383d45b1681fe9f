"""Check that integer weights of an artifact are the checkpoint's, rounded to their own steps.

A limit on outputs cannot find one wrong block among many: rounding to 4 bits itself moves outputs
by a tenth. The weights can: rounding moves none by more than a step of its block, and a block whose
scale, zero point or order is wrong moves many of its weights further.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from ..core.contract import Array, RoundedWeights
from .model_identity import ComputedTest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Rounding errs by half a step, a rounded zero point by another half at the ends of a block, and
# scales in FP16 by 0.06 steps of 8 bits.
_STEPS = 1.1
_ALIKE = 0.6  # share of weights within their steps; of another normal matrix in 4 bits, 0.17 are
_GLANCE = 8  # rows of a matrix that tell which weights are unrelated
_MATRIX = 2


def find_misrounded_weights(
    weights: Mapping[str, Array],
    rounded: Iterable[RoundedWeights],
    *,
    computed: ComputedTest = lambda _: False,
) -> tuple[str, ...]:
    """Describe matrices that are a weight of the checkpoint but for some elements.

    A matrix that is like none (folded, joined, or scaled by the activations) is not reported:
    comparing outputs covers it.

    Args:
        weights: float32 arrays of the checkpoint by name.
        rounded: the artifact's integer weights, read once.
        computed: tests whether eager itself computes such a matrix from its weights.
    """
    by_size: dict[int, list[str]] = {}
    for name, array in weights.items():
        by_size.setdefault(array.size, []).append(name)
    found = []
    for matrix in rounded:
        names = by_size.get(matrix.values.size, ())
        text = _describe_misrounded({name: weights[name] for name in names}, matrix)
        if text and not computed(lambda other, own=matrix: _is_rounded(other, own)):  # type: ignore[misc]
            found.append(text)
    return tuple(found)


def _describe_misrounded(weights: Mapping[str, Array], matrix: RoundedWeights) -> str:
    """Describe how a matrix differs from the weight that it is like; empty without a fault."""
    best: tuple[int, str] | None = None
    for name, array in weights.items():
        for meant in _orientations(array, matrix.values):
            off = _find_off(meant, matrix)
            if off is None:
                continue
            count = int(off.sum())
            if not count:
                return ""
            if best is None or count < best[0]:
                best = count, _difference_text(name, meant, matrix, off)
    return "" if best is None else best[1]


def _orientations(weight: Array, values: Array) -> Iterator[Array]:
    """Yield the weight, and a matrix also transposed, where they have the shape of the values."""
    if weight.shape == values.shape:
        yield weight
    if weight.ndim == _MATRIX and weight.T.shape == values.shape:
        yield weight.T


def _find_off(meant: Array, matrix: RoundedWeights) -> NDArray[np.bool_] | None:
    """Return where the matrix is off by more than its steps; None if it is another weight."""
    import numpy as np

    rows = np.unique(np.linspace(0, len(meant) - 1, _GLANCE).astype(int))
    for part in (rows, slice(None)):
        moved = np.abs(matrix.values[part] - meant[part])
        off: NDArray[np.bool_] = ~(moved <= _STEPS * matrix.steps[part])
        if off.mean() > 1 - _ALIKE:
            return None
    return off


def _is_rounded(computed: Array, matrix: RoundedWeights) -> bool:
    """Whether the matrix is this tensor, rounded."""
    found = (_find_off(meant, matrix) for meant in _orientations(computed, matrix.values))
    return any(off is not None and not off.any() for off in found)


def _difference_text(
    name: str, meant: Array, matrix: RoundedWeights, off: NDArray[np.bool_]
) -> str:
    import numpy as np

    gap = np.where(off, np.abs(matrix.values - meant), 0)
    where = np.unravel_index(int(np.nan_to_num(gap, nan=np.inf).argmax()), gap.shape)
    return (
        f"the weight {name} is not the checkpoint's: {int(off.sum())} of {off.size} elements are "
        f"off by more than a step of their block, by up to {float(gap[where]):.3g} "
        f"({float(matrix.values[where]):.4g} instead of {float(meant[where]):.4g}, "
        f"step {float(matrix.steps[where]):.3g})"
    )
