"""Eager's own noise: sums of squares of its error and of the artifact's, relative to float64.

With r = eager in float64 and e = eager, e - r is roundoff if e moves by about as much when inputs
and weights change by one rounding (2^-24). If e - r is far larger, float64 computes another
function than float32: a fast path that only one of them takes (nested tensors, fused attention on
fully masked rows), or a branch on the dtype.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..core.contract import Array
from .metrics import fill_limit, iter_blocks
from .output_pairs import OutputPair

if TYPE_CHECKING:
    from ..core.contract import Outputs

# Eager's distance from float64 counts as roundoff up to this multiple of its movement under 2^-24
# noise. Over 49 models of tests/nets/zoo.py and all kinds of feeds it was 0.3 to 1.4 times that
# movement; the limit leaves room for sums of thousands of elements, which err by more than one
# rounding of a weight.
COMPARABLE = 10.0
# Of the RMS (120 dB, 8 units in the last place): a distance this small is roundoff in any case.
_FEW_ULP = 2.0**-20
_ROUGH = 1e-3  # of the signal; sequential sums further from eager took another path


@dataclass(frozen=True, kw_only=True)
class JudgedOutput:
    """One output on one feed as it is judged, with e in place of r where r is another function.

    `believed` says whether r counts in all rows. `moved` is the square of eager's movement as a
    share of the signal, under redraws of its noise or another summation order; None without
    redraws.
    """

    pair: OutputPair
    sums: SquareSums
    believed: bool
    moved: float | None = None


def drop_redraws(pair: OutputPair) -> OutputPair:
    """Return the pair without the redraws of eager's noise."""
    return replace(pair, again=(), sequential=None) if pair.again or pair.sequential else pair


def make_judged_output(name: str, pair: OutputPair, usual: float) -> JudgedOutput | None:
    """Decide the reference for an output on a feed; None if there is no signal to compare with.

    Args:
        name: a float output.
        pair: a feed with its outputs; without float64, e replaces r throughout.
        usual: the square of eager's usual distance from float64, as a share of the signal. It
            limits e - r as long as no redraw measures eager's movement.
    """
    if pair.exact is None:
        pair = replace(pair, exact={name: pair.eager[name]})
        return (
            _build_judged_output(name, pair, believed=False) if is_measurable(name, pair) else None
        )
    plain = sum_output(name, drop_redraws(pair))
    if not plain.usable:
        return None
    still = None if not pair.again else _measure_movement(name, pair)
    apart = _is_other_function(plain, still, usual)
    if apart.any():
        pair = replace(pair, exact={name: _mix_references(name, pair, apart)})
    elif not pair.again and pair.sequential is None:
        return JudgedOutput(pair=pair, sums=plain, believed=True)
    moved = None if still is None or not still.usable else still.share
    return _build_judged_output(name, pair, believed=not apart.any(), moved=moved)


def _build_judged_output(
    name: str, pair: OutputPair, *, believed: bool, moved: float | None = None
) -> JudgedOutput | None:
    if pair.sequential is not None:
        turned = _sequential_movement(name, pair, pair.sequential)
        if turned > max(_ROUGH**2, COMPARABLE**2 * (moved or 0.0)):
            pair = replace(pair, sequential=None)
        elif moved is not None:
            moved = max(moved, turned)
    sums = sum_output(name, pair)
    return (
        JudgedOutput(pair=pair, sums=sums, believed=believed, moved=moved) if sums.usable else None
    )


def _measure_movement(name: str, pair: OutputPair) -> SquareSums:
    """Compare the redraws of eager's noise with eager; `own` is the mean square of the movement."""
    still = replace(pair, exact={name: pair.eager[name]}, sequential=None)
    found = sum_output(name, still)
    more = (len(pair.again) + 1) / len(pair.again)  # the mean counts eager itself as a draw
    rows = None if found.rows is None else found.rows * [[1.0], [1.0], [more], [1.0]]
    return replace(found, own=found.own * more, rows=rows)


def _is_other_function(plain: SquareSums, still: SquareSums | None, usual: float) -> Array:
    """Whether e - r exceeds roundoff, per row of the first axis or for the whole output."""
    import numpy as np

    def groups(sums: SquareSums) -> Array:
        whole = [[sums.count], [sums.signal], [sums.own]]
        return np.array(whole) if sums.rows is None else sums.rows[:3]

    count, signal, own = groups(plain)
    mean = plain.signal / plain.count
    moved = usual * np.maximum(signal, mean * count) if still is None else groups(still)[2]
    allowed = COMPARABLE**2 * np.maximum(moved, _FEW_ULP**2 * signal)
    return np.asarray(own > allowed)


def _mix_references(name: str, pair: OutputPair, apart: Array) -> Array:
    """Return float64, with eager's values in the rows where float64 is another function."""
    exact = (pair.exact or {})[name]
    if apart.all():
        return pair.eager[name]
    found = exact.copy()
    found[apart] = pair.eager[name][apart]
    return found


def _sequential_movement(name: str, pair: OutputPair, turned: Outputs) -> float:
    """Return the square of the movement under sequential summation, as a share of the signal."""
    other = replace(
        pair, artifact=turned, exact={name: pair.eager[name]}, again=(), sequential=None
    )
    found = sum_output(name, other)
    return found.theirs / found.signal if found.usable else math.inf


# Sums over an output or over groups of its elements: signal, eager's error, artifact's error.


_ROWS = 2  # minimum number of rows to sum them separately


@dataclass(frozen=True, kw_only=True)
class SquareSums:
    """Sums of squares of r, e - r and a - r, over all elements or per group."""

    count: float
    signal: float
    own: float
    theirs: float
    own_max: float
    theirs_max: float
    rows: Array | None = None  # 4 x rows: count, signal, own, theirs

    @property
    def usable(self) -> bool:
        """Whether the signal is finite and not zero."""
        return bool(self.count) and 0 < self.signal < math.inf

    @property
    def share(self) -> float:
        """Return the square of eager's own error as a share of the signal."""
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
    """Sum over one output on one feed, and per row of the first axis if it has several."""
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
    """Return 7 x groups along `axis`; with None, all elements form one group.

    The rows are count, signal, own, theirs, the two maxima, and `all`. Fill and elements that are
    not finite in r, a and e are ignored. Elements that are zero in both eager and float64 have no
    noise of their own, so only `all`, which otherwise equals `theirs`, includes them.
    """
    draws = [pair.eager[name], *(outputs[name] for outputs in pair.again)]
    turned = pair.eager if pair.sequential is None else pair.sequential
    arrays = ((pair.exact or {})[name], pair.artifact[name], turned[name], *draws)
    limit = fill_limit(pair.eager[name])
    if axis is None:
        return _sum_groups_along(tuple(array.reshape(-1, 1) for array in arrays), -1, limit)
    return _sum_groups_along(arrays, axis, limit)


def _sum_groups_along(arrays: tuple[Array, ...], axis: int, limit: float) -> Array:
    """Compute `sum_groups` of r, a, e by sequential summation, e itself, then redraws of e."""
    import numpy as np

    groups = arrays[0].shape[axis]
    found = np.zeros((7, groups))
    for pieces in iter_blocks(*(np.moveaxis(array, axis, -1) for array in arrays)):
        rows = [piece.astype(np.float64).reshape(-1, groups) for piece in pieces]
        judged = [rows[0], rows[1], rows[3]]
        kept = np.logical_and.reduce([np.isfinite(row) for row in judged])
        kept &= np.abs(rows[3]) <= limit
        r, a, e = (np.where(kept, row, 0.0) for row in judged)
        # A draw that is NaN has no information about the noise, so eager's own value replaces it.
        turned, *more = (np.where(kept & np.isfinite(row), row, e) for row in (rows[2], *rows[4:]))
        with np.errstate(over="ignore", invalid="ignore"):  # float64 near its limits
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
