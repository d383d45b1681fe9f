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

from .evidence import Pair
from .grouped import Sums, measurable, sums_of

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
class Side:
    """One output on one feed as it is judged: e stands for r where r is another function.

    `believed` says that r counts in all rows; `moved` is the square of eager's movement as a share
    of the signal, by draws of its noise or by another order of its sums; None without draws.
    """

    pair: Pair
    sums: Sums
    believed: bool
    moved: float | None = None


def bare(pair: Pair) -> Pair:
    """The pair without more draws of eager's noise."""
    return replace(pair, again=(), in_turn=None) if pair.again or pair.in_turn else pair


def side_of(name: str, pair: Pair, usual: float) -> Side | None:
    """How an output is judged on a feed; None where there is no signal to be relative to.

    Args:
        name: a float output.
        pair: a feed with its answers; without float64, e stands for r throughout.
        usual: the square of eager's usual distance from float64, as a share of the signal: what
            e - r is held to as long as no draw says what eager moves by.
    """
    if pair.exact is None:
        pair = replace(pair, exact={name: pair.eager[name]})
        return _side(name, pair, believed=False) if measurable(name, pair) else None
    plain = sums_of(name, bare(pair))
    if not plain.usable:
        return None
    still = None if not pair.again else _movement(name, pair)
    apart = _is_another(plain, still, usual)
    if apart.any():
        pair = replace(pair, exact={name: _mixed(name, pair, apart)})
    elif not pair.again and pair.in_turn is None:
        return Side(pair=pair, sums=plain, believed=True)
    moved = None if still is None or not still.usable else still.share
    return _side(name, pair, believed=not apart.any(), moved=moved)


def _side(name: str, pair: Pair, *, believed: bool, moved: float | None = None) -> Side | None:
    if pair.in_turn is not None:
        turned = _turned(name, pair, pair.in_turn)
        if turned > max(_ROUGH**2, COMPARABLE**2 * (moved or 0.0)):
            pair = replace(pair, in_turn=None)
        elif moved is not None:
            moved = max(moved, turned)
    sums = sums_of(name, pair)
    return Side(pair=pair, sums=sums, believed=believed, moved=moved) if sums.usable else None


def _movement(name: str, pair: Pair) -> Sums:
    """The draws of eager's noise beside eager itself: `own` is the mean square of the movement."""
    still = replace(pair, exact={name: pair.eager[name]}, in_turn=None)
    found = sums_of(name, still)
    more = (len(pair.again) + 1) / len(pair.again)  # its mean counts eager itself as a draw
    rows = None if found.rows is None else found.rows * [[1.0], [1.0], [more], [1.0]]
    return replace(found, own=found.own * more, rows=rows)


def _is_another(plain: Sums, still: Sums | None, usual: float) -> Array:
    """By row of the first axis, or once, whether e - r is more than roundoff."""
    import numpy as np

    def groups(sums: Sums) -> Array:
        whole = [[sums.count], [sums.signal], [sums.own]]
        return np.array(whole) if sums.rows is None else sums.rows[:3]

    count, signal, own = groups(plain)
    mean = plain.signal / plain.count
    moved = usual * np.maximum(signal, mean * count) if still is None else groups(still)[2]
    allowed = COMPARABLE**2 * np.maximum(moved, _FEW_ULP**2 * signal)
    return np.asarray(own > allowed)


def _mixed(name: str, pair: Pair, apart: Array) -> Array:
    """Float64, but eager where float64 is another function."""
    exact = (pair.exact or {})[name]
    if apart.all():
        return pair.eager[name]
    found = exact.copy()
    found[apart] = pair.eager[name][apart]
    return found


def _turned(name: str, pair: Pair, turned: Outputs) -> float:
    """The square of how far sums in turn move eager, as a share of the signal."""
    other = replace(pair, artifact=turned, exact={name: pair.eager[name]}, again=(), in_turn=None)
    found = sums_of(name, other)
    return found.theirs / found.signal if found.usable else math.inf
