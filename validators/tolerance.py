"""How much an artifact may differ from eager: one table, by precision."""

from __future__ import annotations

import math

from ..core.errors import UsageError
from ..core.precision import Precision
from ..core.verdict import Tolerance

TOLERANCES: dict[Precision, Tolerance] = {
    # The same float32 weights, summed in another order: each sum errs by a few units of roundoff
    # (2^-24 = 6e-8), deep models reach about 1e-6 of the peak (110 dB and better). rtol is 100
    # times that, 90 dB is a noise of 3e-5 of the signal's RMS. A layer off by 1 % is far outside;
    # one weight in a million need not be, and no fixed limit tells that from roundoff.
    # atol is for outputs whose own scale is 1e-2 and below, where cancellation sets the error.
    Precision.FP32: Tolerance(atol=1e-6, rtol=1e-4, min_sqnr=90.0),
    # Each weight is rounded to 11 bits (2^-11 = 5e-4, 66 dB as one rounding); over the layers of
    # real models 55 to 75 dB remain. 40 dB (1 % of the RMS) leaves room for deep or badly scaled
    # models, and still refuses what is wrong rather than rounded: a swapped or lost layer gives
    # less than 20 dB. Single elements may err by a few times the RMS: rtol is three times 1 %.
    Precision.FP16: Tolerance(atol=1e-3, rtol=3e-2, min_sqnr=40.0),
    # As FP16, with 8 bits (2^-8 = 4e-3, 48 dB as one rounding, 18 dB less than FP16).
    Precision.BF16: Tolerance(atol=1e-2, rtol=0.2, min_sqnr=24.0),
    # 8-bit weights and activations: a layer alone keeps 35 to 40 dB, and the errors of fifty layers
    # add up to 17 dB more. 15 dB (a noise of 18 % of the RMS) is the least at which the ranking of
    # outputs still mostly holds; a layer whose scale is lost leaves less than 5 dB. Single elements
    # err by several times the RMS of the noise, so that a limit by the peak says little more than
    # that nothing is of another order. Judged on held-out samples (see `judge`).
    Precision.INT8: Tolerance(atol=1e-2, rtol=0.5, min_sqnr=15.0),
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
        UsageError: `atol` or `rtol` is negative, or a value is not a finite number.
    """
    table = TOLERANCES[precision]
    return Tolerance(
        atol=_checked("atol", atol, table.atol),
        rtol=_checked("rtol", rtol, table.rtol),
        min_sqnr=_checked("min_sqnr", min_sqnr, table.min_sqnr, least=-math.inf),
    )


def _checked(name: str, given: float | None, usual: float, *, least: float = 0.0) -> float:
    if given is None:
        return usual
    if not math.isfinite(given) or given < least:
        wanted = "a finite number" if least < 0 else "a finite number, 0 or more"
        raise UsageError(
            f"{name} is {given}, expected {wanted}",
            hint=f"leave it out for the precision's own {usual:g}",
        )
    return given
