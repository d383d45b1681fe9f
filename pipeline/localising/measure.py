"""How far one array is from another, and how far its precision and its inputs let it be."""

from __future__ import annotations

from dataclasses import dataclass

from ...core.contract import Array
from ...core.precision import Precision
from ..undecided import SHARES

WORST_DB = -200.0  # dB, for what is not finite where eager is, or has another shape
_FILL = 1e4  # a value this large that both have is a mask's, and would drown the rest


@dataclass(frozen=True, kw_only=True)
class PrecisionScale:
    """What a precision explains, in dB.

    A layer whose own error leaves less than `plain` is looked at. It is wrong when it is also
    `margin` below what remains when its inputs are moved by `step`, a part of themselves: some
    layers magnify whatever comes in. `odd` is how far below its neighbours a layer may lie. Above
    `quiet` nothing is heard of an error in what comes before. `off` is by what share weights and
    inputs are moved to see which integers roundoff decides.
    """

    plain: float
    step: float
    margin: float
    odd: float
    quiet: float
    off: float


# `step` is the unit of rounding (of float32 2^-22: sums of many terms; of INT8 one step of 128).
# The others were set by hand. What FP32's find, and what they name of good conversions, is counted
# by benchmarks/debug.py (see docs/debug.md); FP16, BF16 and INT8 it does not measure.
PRECISION_SCALES = {
    Precision.FP32: PrecisionScale(
        plain=120.0,
        step=2.0**-22,
        margin=12.0,
        odd=25.0,
        quiet=120.0,
        off=SHARES[Precision.FP32],
    ),
    Precision.FP16: PrecisionScale(
        plain=45.0,
        step=2.0**-11,
        margin=12.0,
        odd=25.0,
        quiet=65.0,
        off=SHARES[Precision.FP16],
    ),
    Precision.BF16: PrecisionScale(
        plain=28.0,
        step=2.0**-8,
        margin=12.0,
        odd=20.0,
        quiet=48.0,
        off=SHARES[Precision.BF16],
    ),
    Precision.INT8: PrecisionScale(
        plain=15.0,
        step=2.0**-7,
        margin=6.0,
        odd=15.0,
        quiet=40.0,
        off=SHARES[Precision.INT8],
    ),
}


def finite_sqnr(reference: Array, other: Array) -> float | None:
    """Signal to noise in dB over what is finite in both; None where there is no difference.

    What is not finite in one alone, or another shape, is the worst there is. Large values that
    both have to the bit are masks, and left out.
    """
    import numpy as np

    if reference.shape != other.shape:
        return WORST_DB
    one, two = reference.astype(np.float64), other.astype(np.float64)
    finite = np.isfinite(one)
    if not np.array_equal(finite, np.isfinite(two)) and bool(np.any(finite & ~np.isfinite(two))):
        return WORST_DB
    mask = finite & np.isfinite(two) & ~((one == two) & (np.abs(one) >= _FILL))
    signal, noise = float(np.sum(one[mask] ** 2)), float(np.sum((one[mask] - two[mask]) ** 2))
    if noise == 0.0:
        return None
    if signal == 0.0:
        return 0.0
    return float(max(WORST_DB, 10.0 * np.log10(signal / noise)))


def worse_sqnr(one: float | None, two: float | None) -> float | None:
    """The worse of two ratios, None standing for no error."""
    known = [value for value in (one, two) if value is not None]
    return min(known, default=None)


def is_below(value: float | None, limit: float) -> bool:
    """Whether a ratio is worse than a limit."""
    return value is not None and value < limit
