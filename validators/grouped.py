"""Sums over an output, or over groups of its elements: signal, eager's error, the artifact's."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..core.contract import Array
from .fill import fill_limit
from .metrics import iter_blocks

if TYPE_CHECKING:
    from .evidence import OutputPair

# Sums over an output, or over groups of its elements: signal, eager's error, the artifact's.


_ROWS = 2  # rows are told apart from two on


@dataclass(frozen=True, kw_only=True)
class SquareSums:
    """Sums of squares over elements, or over groups of them: of r, of e - r and of a - r."""

    count: float
    signal: float
    own: float
    theirs: float
    own_max: float
    theirs_max: float
    rows: Array | None = None  # 4 x rows: count, signal, own, theirs

    @property
    def usable(self) -> bool:
        """Whether there is a signal to be relative to, and a finite one."""
        return bool(self.count) and 0 < self.signal < math.inf

    @property
    def share(self) -> float:
        """The square of eager's own error as a share of the signal."""
        return self.own / self.signal


def is_measurable(name: str, pair: OutputPair) -> bool:
    """Whether all three are float arrays of one shape, and float64 is finite where eager is."""
    import numpy as np

    exact, artifact = (pair.exact or {}).get(name), pair.artifact.get(name)
    if exact is None or artifact is None or pair.eager[name].dtype.kind != "f":
        return False
    if not (exact.shape == artifact.shape == pair.eager[name].shape) or exact.dtype.kind != "f":
        return False
    return all(
        bool((np.isfinite(truth) | ~np.isfinite(eager)).all())
        for truth, eager in iter_blocks(exact, pair.eager[name])
    )


def sum_output(name: str, pair: OutputPair) -> SquareSums:
    """The sums over one output on one feed, by row of the first axis too where it has several."""
    axis = 0 if pair.eager[name].ndim > 1 and len(pair.eager[name]) >= _ROWS else None
    found = sum_groups(name, pair, axis)
    count, signal, own, _, own_max, theirs_max, theirs = found
    return SquareSums(
        count=float(count.sum()),
        signal=float(signal.sum()),
        own=float(own.sum()),
        theirs=float(theirs.sum()),
        own_max=float(own_max.max(initial=0.0)),
        theirs_max=float(theirs_max.max(initial=0.0)),
        rows=None if axis is None else found[:4],
    )


def sum_groups(name: str, pair: OutputPair, axis: int | None) -> Array:
    """7 x groups along `axis` (None: one group): count, signal, own, theirs, the two maxima, all.

    Elements that are not finite in r, a and e, and fill, are left out. Those that are zero in eager
    and in float64 are left out of the groups too, having no noise of their own to be held to;
    `all` is theirs with these.
    """
    draws = [pair.eager[name], *(outputs[name] for outputs in pair.again)]
    turned = pair.eager if pair.sequential is None else pair.sequential
    arrays = ((pair.exact or {})[name], pair.artifact[name], turned[name], *draws)
    limit = fill_limit(pair.eager[name])
    if axis is None:
        return _sum_groups_along(tuple(array.reshape(-1, 1) for array in arrays), -1, limit)
    return _sum_groups_along(arrays, axis, limit)


def _sum_groups_along(arrays: tuple[Array, ...], axis: int, limit: float) -> Array:
    """`sum_groups` of r, a, e summed in turn, and the draws of e: its own answer, then others."""
    import numpy as np

    groups = arrays[0].shape[axis]
    found = np.zeros((7, groups))
    for pieces in iter_blocks(*(np.moveaxis(array, axis, -1) for array in arrays)):
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
