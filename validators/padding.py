"""Whether two of eager's own paths differ in padded positions alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..core.contract import Array, Outputs

# Whether two of eager's own paths differ in padded positions alone.


_PADDING_TOLERANCE = 1e-5  # of the peak: the order of sums alone
_FILL_TOLERANCE = 1e-6  # of the peak: positions of fill are one another's equal
_SEVERAL = 2  # positions: of one alone nobody can say that it is fill


def count_padded_positions(paths: Sequence[tuple[Outputs, Outputs]]) -> int | None:
    """How many positions the two paths give otherwise; None where not all of them are padding.

    A position is padding where the first path gives fill: one and the same row of the last axis
    (or one and the same element) in all positions that differ, on all feeds, zeros or at least
    two of them. What a padded position leaks into (a mean over all of them) is no fill.

    Args:
        paths: by feed, the outputs of the path with fill and those of the other.
    """
    total = 0
    for name in paths[0][0] if paths else ():
        found = _count_padded([(one[name], other[name]) for one, other in paths])
        if found is None:
            return None
        total += found
    return total


def _count_padded(arrays: Sequence[tuple[Array, Array]]) -> int | None:
    """As `count_padded_positions`, for one output."""
    import numpy as np

    rows, elements, peak = [], [], 0.0
    for one, other in arrays:
        left, differs = _find_differences(one, other)
        if differs is None:
            return None
        if differs.any():
            peak = max(peak, float(np.abs(left).max()))
            elements.append(left[differs].reshape(-1, 1))
            rows.append(left[differs.any(axis=-1)] if left.ndim > 1 else left[None])
    for found in (rows, elements):
        alike = len({part.shape[-1] for part in found}) == 1
        if alike and _is_fill_value(np.concatenate(found), _FILL_TOLERANCE * peak):
            return sum(len(part) for part in found)
    return None if elements else 0


def _find_differences(one: Array, other: Array) -> tuple[Array, Array | None]:
    """The first, and where the two differ; None where that cannot be padding."""
    import numpy as np

    if one.dtype.kind != "f" or one.ndim == 0:
        return one, np.zeros(one.shape, bool) if np.array_equal(one, other) else None
    if not (np.isfinite(one) == np.isfinite(other)).all():
        return one, None
    left, right = (np.nan_to_num(array.astype(np.float64)) for array in (one, other))
    peak = float(np.abs(left).max(initial=0.0))
    return left, np.abs(left - right) > _PADDING_TOLERANCE * peak


def _is_fill_value(rows: Array, tolerance: float) -> bool:
    import numpy as np

    if not rows.any():
        return True
    alike = bool((np.abs(rows - rows[0]) <= tolerance).all())
    return alike and len(rows) >= _SEVERAL
