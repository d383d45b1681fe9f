"""Whether two runs of one feed gave the same outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..core.contract import Array

# Whether two runs of one feed gave the same outputs.


# of the peak: threads and memory alignment may change the order of float sums, dropout does more
SAME_TOLERANCE = 1e-5


def find_unstable_outputs(
    first: Mapping[str, Array], second: Mapping[str, Array]
) -> tuple[str, ...]:
    """The names of outputs that are not in both runs, or differ by more than SAME of the peak."""
    names = dict.fromkeys([*first, *second])
    return tuple(
        name
        for name in names
        if name not in first or name not in second or not _is_same(first[name], second[name])
    )


def explain_instability(training: Sequence[str]) -> str:
    """What makes a model unstable, most likely."""
    if training:
        return f"in training mode: {', '.join(training)}"
    return "functional dropout, random numbers or kept state in forward?"


def _is_same(first: Array, second: Array) -> bool:
    import numpy as np

    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    if first.dtype.kind not in "fc":
        return bool(np.array_equal(first, second))
    finite = np.isfinite(first)
    peak = float(np.abs(first[finite]).max(initial=0.0))
    return bool(np.allclose(first, second, rtol=0.0, atol=SAME_TOLERANCE * peak, equal_nan=True))
