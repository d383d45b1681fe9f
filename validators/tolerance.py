"""How much an artifact may differ from eager: one table, by precision."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from ..core.errors import UsageError
from ..core.kinds import Precision
from ..core.verdict import Limits, Tolerance

_LIMIT_RANGES = {
    "atol": (0.0, math.inf),
    "rtol": (0.0, math.inf),
    "min_sqnr": (-math.inf, math.inf),
    "floor_factor": (1.0, math.inf),
    "min_cosine": (-1.0, 1.0),
    "min_agreement": (0.0, 1.0),
}

TOLERANCES: dict[Precision, Tolerance] = {
    # By the noise floor: twice the largest ratio that a good conversion measured (2.5, see
    # docs/validation.md). Where float64 is not to be had, by the other numbers.
    # The same float32 weights, summed in another order: each sum errs by a few units of roundoff
    # (2^-24 = 6e-8), deep models reach about 1e-6 of the peak (110 dB and better). rtol is 100
    # times that, 90 dB is a noise of 3e-5 of the signal's RMS. A layer off by 1 % is far outside;
    # one weight in a million need not be, and no fixed limit tells that from roundoff.
    # atol is for outputs whose own scale is 1e-2 and below, where cancellation sets the error.
    Precision.FP32: Tolerance(atol=1e-6, rtol=1e-4, min_sqnr=90.0, floor_factor=5.0),
    # Each weight is rounded to 11 bits (2^-11 = 5e-4, 66 dB as one rounding); over the layers of
    # real models 55 to 75 dB remain. 40 dB (1 % of the RMS) leaves room for deep or badly scaled
    # models, and still refuses what is wrong rather than rounded: a swapped or lost layer gives
    # less than 20 dB. Single elements may err by a few times the RMS: rtol is three times 1 %.
    Precision.FP16: Tolerance(
        atol=1e-3, rtol=3e-2, min_sqnr=40.0, min_cosine=0.999, min_agreement=0.99
    ),
    # As FP16, with 8 bits (2^-8 = 4e-3, 48 dB as one rounding, 18 dB less than FP16).
    Precision.BF16: Tolerance(
        atol=1e-2, rtol=0.2, min_sqnr=24.0, min_cosine=0.99, min_agreement=0.95
    ),
    # 8-bit weights and activations: a layer alone keeps 35 to 40 dB, and the errors of fifty layers
    # add up to 17 dB more. 15 dB (a noise of 18 % of the RMS) is the least at which the ranking of
    # outputs still mostly holds; a layer whose scale is lost leaves less than 5 dB. Single elements
    # err by several times the RMS of the noise, so that a limit by the peak says little more than
    # that nothing is of another order. Judged on held-out samples (see `judge`).
    Precision.INT8: Tolerance(
        atol=1e-2, rtol=0.5, min_sqnr=15.0, min_cosine=0.97, min_agreement=0.9
    ),
}


def tolerance_for(
    precision: Precision,
    *,
    atol: float | None = None,
    rtol: float | None = None,
    min_sqnr: float | None = None,
) -> Tolerance:
    """The table's tolerance for `precision`, with what the user gave in its place.

    Raises:
        UsageError: as `override_limits` does.
    """
    return override_limits(TOLERANCES[precision], Limits(atol=atol, rtol=rtol, min_sqnr=min_sqnr))


def override_limits(
    usual: Tolerance, limits: Limits, by_output: Mapping[str, Limits] | None = None
) -> Tolerance:
    """The usual tolerance with what the user gave in its place, for all outputs and for some.

    A limit for all outputs puts aside those that single ones have on record.

    Raises:
        UsageError: a value is not a finite number, or outside what it can be.
    """
    for one in (limits, *(by_output or {}).values()):
        _check_limits(one, usual)
    kept = {} if limits != Limits() else usual.by_output
    return replace(usual.within(limits), by_output={**kept, **(by_output or {})})


def drop_floor(limits: Limits) -> Limits:
    """The limits of a precision whose errors are not float32's roundoff."""
    return replace(limits, floor_factor=None)


def _check_limits(limits: Limits, usual: Tolerance) -> None:
    for name, (least, most) in _LIMIT_RANGES.items():
        given: float | None = getattr(limits, name)
        if given is None or (math.isfinite(given) and least <= given <= most):
            continue
        low = "" if least == -math.inf else f", {least:g} or more"
        wanted = (
            f"a number from {least:g} to {most:g}" if most < math.inf else f"a finite number{low}"
        )
        table = getattr(usual, name)
        hint = (
            "leave it out" if table is None else f"leave it out for the precision's own {table:g}"
        )
        raise UsageError(f"{name} is {given}, expected {wanted}", hint=hint)
