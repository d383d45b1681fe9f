"""Whether float64 says anything of eager's roundoff on a feed: only where eager itself moves so.

With r = eager in float64, e = eager: e - r is roundoff where e moves by about as much when inputs
and weights are off by one rounding (2^-24). Where e - r is far larger, float64 computes another
function than float32: a fast path that only one of them takes (nested tensors, fused attention on
rows that are masked whole), or a branch on the dtype.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .evidence import OutputPair
from .grouped import SquareSums, is_measurable, sum_output

if TYPE_CHECKING:
    from ..core.contract import Array, Outputs

# Eager's distance from float64 is roundoff up to so many times what it moves by under 2^-24 noise:
# over 49 models of benchmarks/zoo.py and all kinds of feeds it was 0.3 to 1.4 times as much. Sums
# of thousands of elements, which err by more than one rounding of a weight does, have room.
COMPARABLE = 10.0
# Of the RMS (120 dB, 8 units in the last place): a distance that small is roundoff, whatever moves.
_FEW_ULP = 2.0**-20
_ROUGH = 1e-3  # of the signal: sums in turn that are further from eager took another path


@dataclass(frozen=True, kw_only=True)
class JudgedOutput:
    """One output on one feed as it is judged: e stands for r where r is another function.

    `believed` says that r counts in all rows; `moved` is the square of eager's movement as a share
    of the signal, by draws of its noise or by another order of its sums; None without draws.
    """

    pair: OutputPair
    sums: SquareSums
    believed: bool
    moved: float | None = None


def drop_redraws(pair: OutputPair) -> OutputPair:
    """The pair without more draws of eager's noise."""
    return replace(pair, again=(), sequential=None) if pair.again or pair.sequential else pair


def make_judged_output(name: str, pair: OutputPair, usual: float) -> JudgedOutput | None:
    """How an output is judged on a feed; None where there is no signal to be relative to.

    Args:
        name: a float output.
        pair: a feed with its answers; without float64, e stands for r throughout.
        usual: the square of eager's usual distance from float64, as a share of the signal: what
            e - r is held to as long as no draw says what eager moves by.
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
    """The draws of eager's noise beside eager itself: `own` is the mean square of the movement."""
    still = replace(pair, exact={name: pair.eager[name]}, sequential=None)
    found = sum_output(name, still)
    more = (len(pair.again) + 1) / len(pair.again)  # its mean counts eager itself as a draw
    rows = None if found.rows is None else found.rows * [[1.0], [1.0], [more], [1.0]]
    return replace(found, own=found.own * more, rows=rows)


def _is_other_function(plain: SquareSums, still: SquareSums | None, usual: float) -> Array:
    """By row of the first axis, or once, whether e - r is more than roundoff."""
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
    """Float64, but eager where float64 is another function."""
    exact = (pair.exact or {})[name]
    if apart.all():
        return pair.eager[name]
    found = exact.copy()
    found[apart] = pair.eager[name][apart]
    return found


def _sequential_movement(name: str, pair: OutputPair, turned: Outputs) -> float:
    """The square of how far sums in turn move eager, as a share of the signal."""
    other = replace(
        pair, artifact=turned, exact={name: pair.eager[name]}, again=(), sequential=None
    )
    found = sum_output(name, other)
    return found.theirs / found.signal if found.usable else math.inf
