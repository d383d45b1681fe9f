"""Tolerances by precision, and the usual scale of outputs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ..core.errors import ErrorCode, UsageError
from ..core.kinds import Precision
from ..core.verdict import Limits, OutputVerdict, Tolerance, Verdict
from .metrics import to_decibel

_LIMIT_RANGES = {
    "atol": (0.0, math.inf),
    "rtol": (0.0, math.inf),
    "min_sqnr": (-math.inf, math.inf),
    "floor_factor": (1.0, math.inf),
    "min_cosine": (-1.0, 1.0),
    "min_agreement": (0.0, 1.0),
    "max_kl": (0.0, math.inf),
    "max_ppl_increase": (0.0, math.inf),
}

TOLERANCES: dict[Precision, Tolerance] = {
    # Noise floor: twice the largest ratio of a good conversion (2.5, see docs/validation.md). The
    # other limits apply without float64. The same float32 weights are summed in another order: each
    # sum errs by a few units of roundoff (2^-24 = 6e-8), and deep models get to about 1e-6 of the
    # peak (110 dB and better). rtol is 100 times that; 90 dB is a noise of 3e-5 of the signal's
    # RMS. A layer off by 1 % is far outside. One weight in a million may not be, and no fixed limit
    # separates that from roundoff. atol is for outputs with a scale of 1e-2 and below, where
    # cancellation sets the error.
    # Tokens: 90 dB is 3e-5 of the logits' RMS, which is a KL divergence of 4e-8 nats at an RMS of
    # 10; measured 3e-13. Each choice must be eager's, ties aside, so no share is allowed.
    Precision.FP32: Tolerance(
        atol=1e-6, rtol=1e-4, min_sqnr=90.0, floor_factor=5.0, max_kl=1e-6, max_ppl_increase=1e-3
    ),
    # Each weight is rounded to 11 bits (2^-11 = 5e-4, 66 dB as one rounding); over the layers of
    # real models 55 to 75 dB remain. 40 dB (1 % of the RMS) leaves room for deep or badly scaled
    # models, and still rejects mistakes: a swapped or lost layer gives less than 20 dB. Single
    # elements may err by a few times the RMS: rtol is three times 1 %.
    # Tokens: 40 dB at an RMS of 5 is a KL divergence of 1e-3 nats; measured 3e-6.
    Precision.FP16: Tolerance(
        atol=1e-3,
        rtol=3e-2,
        min_sqnr=40.0,
        min_cosine=0.999,
        min_agreement=0.99,
        max_kl=1e-3,
        max_ppl_increase=5e-3,
    ),
    # As FP16, with 8 bits (2^-8 = 4e-3, 48 dB as one rounding, 18 dB less than FP16).
    # Tokens: FP16 measured 3e-6 nats; 18 dB are a factor of 63, and deep models add up more.
    Precision.BF16: Tolerance(
        atol=1e-2,
        rtol=0.2,
        min_sqnr=24.0,
        min_cosine=0.99,
        min_agreement=0.95,
        max_kl=1e-2,
        max_ppl_increase=1e-2,
    ),
    # 8-bit weights and activations: a single layer keeps 35 to 40 dB, and the errors of fifty
    # layers add up to 17 dB more. 15 dB (a noise of 18 % of the RMS) is the least at which the
    # ranking of outputs mostly holds; a layer that lost its scale leaves less than 5 dB. Single
    # elements err by several times the RMS of the noise, so a limit by the peak only excludes
    # errors of another order of magnitude. Judged on held-out samples (see `judge`).
    # Tokens: more than 8-bit weights and less than 4-bit ones; not measured on decoders.
    Precision.INT8: Tolerance(
        atol=1e-2,
        rtol=0.5,
        min_sqnr=15.0,
        min_cosine=0.97,
        min_agreement=0.9,
        max_kl=0.1,
        max_ppl_increase=0.1,
    ),
    # 8-bit weights, one scale per 128 or per channel, and float activations: a layer keeps 44 dB,
    # about one rounding to BF16 (48), and the errors of layers add up as there. Measured: 36 to 44
    # dB on transformers with random weights (docs/precision.md). The limits are those of BF16.
    # Tokens: q8_0 of llama.cpp has 0.0004 to 0.003 nats, 97.8 to 98.8 % equal choices and up to
    # 0.1 % more perplexity (Llama 2 and 3, 8B and 70B); measured here 3e-5, 99.6 %, 0.02 %.
    Precision.INT8_WEIGHTS: Tolerance(
        atol=1e-2,
        rtol=0.2,
        min_sqnr=24.0,
        min_cosine=0.99,
        min_agreement=0.95,
        max_kl=1e-2,
        max_ppl_increase=1e-2,
    ),
    # 8-bit weights as above, and activations that are rounded to 8 bits at run time, one scale per
    # row and block of 128: another 44 dB where they are normally distributed, 10 dB less where one
    # is three times as large as their peak. Measured: 37 to 45 dB on an MLP, a BERT and a trained
    # Llama, 3 to 7 dB less than INT8_WEIGHTS; the limits lie between those and INT8's.
    # Tokens: three times INT8_WEIGHTS; measured 2e-5 nats.
    Precision.INT8_DYNAMIC: Tolerance(
        atol=1e-2,
        rtol=0.3,
        min_sqnr=20.0,
        min_cosine=0.985,
        min_agreement=0.93,
        max_kl=3e-2,
        max_ppl_increase=3e-2,
    ),
    # E4M3 has 4 bits of significand: one rounding errs by 32 dB, a layer's weights and activations
    # by 29 dB, which is 6 to 11 dB more than in INT8, and adds up as there. Measured: 10 to 15 dB
    # in ten small transformers with random weights (benchmarks/tensorrt_rtx.py).
    Precision.FP8: Tolerance(
        atol=1e-2,
        rtol=0.5,
        min_sqnr=10.0,
        min_cosine=0.94,
        min_agreement=0.85,
        max_kl=0.15,
        max_ppl_increase=0.15,
    ),
    # 4-bit weights with one scale per 128: a layer keeps 19 dB where weights are normally
    # distributed, and residual sums hold the errors of a deep model at about half of that. 10 dB
    # (32 % of the RMS) still rejects a layer that lost its scale (below 5 dB).
    # Tokens: twice q4_0 and q4_1 of llama.cpp on Llama 3 8B, which round to nearest in blocks too
    # (0.073 nats, 7.8 % more perplexity); its 3 bits (q3_K_S) have 0.24 nats and 28 %. Small models
    # lose more: 4 bits leave 86 % equal choices in a model of 0.8B (q4_K_M) and 92 to 96 % in
    # larger ones, 2 bits 70 to 72 % in Llama 3.
    Precision.INT4: Tolerance(
        atol=1e-2,
        rtol=1.0,
        min_sqnr=10.0,
        min_cosine=0.94,
        min_agreement=0.85,
        max_kl=0.15,
        max_ppl_increase=0.15,
    ),
}


def tolerance_for(
    precision: Precision,
    *,
    atol: float | None = None,
    rtol: float | None = None,
    min_sqnr: float | None = None,
) -> Tolerance:
    """Return the table's tolerance for `precision`, with the user's limits applied.

    Raises:
        UsageError: see `override_limits`.
    """
    return override_limits(TOLERANCES[precision], Limits(atol=atol, rtol=rtol, min_sqnr=min_sqnr))


def override_limits(
    usual: Tolerance, limits: Limits, by_output: Mapping[str, Limits] | None = None
) -> Tolerance:
    """Apply the user's limits to a tolerance, for all outputs and for single ones.

    A limit for all outputs discards the recorded limits of single outputs.

    Raises:
        UsageError: a value is not finite or is out of range.
    """
    for one in (limits, *(by_output or {}).values()):
        _check_limits(one, usual)
    kept = {} if limits != Limits() else usual.by_output
    return replace(usual.within(limits), by_output={**kept, **(by_output or {})})


def drop_floor(limits: Limits) -> Limits:
    """Remove the noise floor, for precisions whose errors are not float32 roundoff."""
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
        raise UsageError(
            f"{name} is {given}, expected {wanted}", hint=hint, code=ErrorCode.INVALID_VALUE
        )


# The usual scale of an output over the feeds.


# An error of this share of `rtol` of the usual peak is roundoff: 2e-6 of it in fp32 (some thirty
# units of roundoff, 110 dB), 6e-4 in fp16 (one rounding to 11 bits, 64 dB). Sums that cancel on one
# feed leave such errors; a wrong branch that is merely small there leaves larger ones.
ROUNDOFF_SHARE = 1 / 50
# Or, where the output is at most a tenth of its usual peak, an error of three times the median over
# the feeds: on most of them it passes beside the signal.
_USUAL_ERRORS, _LEAST_MEASURED, _SMALL = 3.0, 6, 0.1


@dataclass(frozen=True, kw_only=True)
class OutputScale:
    """The median peak, mean square and largest error of one output over the feeds.

    The error is 0 where few feeds were measured.
    """

    peak: float = 0.0
    signal: float = 0.0
    error: float = 0.0

    @classmethod
    def of(cls, measures: Iterable[OutputVerdict]) -> OutputScale:
        """Compute the scale of these measures; 0 if none has an element to measure."""
        known = [m for m in measures if m.peak is not None]
        if not known:
            return cls()
        return cls(
            peak=statistics.median_low(m.peak or 0.0 for m in known),
            signal=statistics.median_low(m.signal for m in known),
            error=statistics.median_low(m.max_abs or 0.0 for m in known)
            if len(known) >= _LEAST_MEASURED
            else 0.0,
        )

    def floor(self, tolerance: Tolerance) -> float:
        """Return the largest error that is roundoff: `rtol / 50 * peak`.

        It excludes `atol`, which would pass any error on outputs that are small on every feed, such
        as the probabilities of many classes.
        """
        return ROUNDOFF_SHARE * tolerance.rtol * self.peak

    def excuses(self, found: OutputVerdict, tolerance: Tolerance) -> bool:
        """Whether the errors are roundoff: within the floor, with enough SQNR at the usual power.

        Without a noise floor (lower precision) small outputs may also err as on other feeds. The
        SQNR keeps the limit strict for sparse outputs, whose peak is far above their power.
        """
        small = (found.peak or 0.0) <= _SMALL * self.peak
        usual = _USUAL_ERRORS * self.error if small and tolerance.floor_factor is None else 0.0
        if found.max_abs is None or found.max_abs > max(self.floor(tolerance), usual):
            return False
        sqnr = to_decibel(self.signal, found.noise)
        return found.noise == 0 or (sqnr is not None and sqnr >= tolerance.min_sqnr)


# The margin of an artifact on one feed, which a search minimizes.


def margin_on_feed(verdict: Verdict, feed: str) -> float:
    """Return the smallest margin in dB on one feed: Inf if all is exact, negative over a limit.

    Under the table, a float output is judged at its usual scale if that is larger than its own: an
    output that cancels on one feed leaves errors that are large only relative to it. The noise
    floor already accounts for that. Faults without a number (a shape, a NaN, a wrong integer, a
    rejected feed) give -Inf.
    """
    mine = [one for one in verdict.outputs if one.feed == feed]
    if not mine or any(one.form for one in mine):
        return -math.inf
    return min(_output_margin(one, verdict) for one in mine)


def _output_margin(output: OutputVerdict, verdict: Verdict) -> float:
    if output.headroom is None:  # exact, integers, or nothing to measure
        return math.inf
    limits = verdict.tolerance.of(output.output)
    if limits.floor_factor is not None and output.times_floor is not None:
        return output.headroom
    usual = OutputScale.of(
        one
        for one in verdict.outputs
        if one.output == output.output and not one.loose and not one.apart
    )
    return min(_table_margins(output, limits, usual), default=math.inf)


def _table_margins(output: OutputVerdict, limits: Tolerance, usual: OutputScale) -> Iterable[float]:
    """Yield the margins to `atol + rtol * peak` and to `min_sqnr`."""
    if output.max_abs:
        limit = limits.atol + limits.rtol * max(output.peak or 0.0, usual.peak)
        yield -math.inf if not limit else 20 * math.log10(limit / output.max_abs)
    sqnr = to_decibel(max(output.signal, usual.signal), output.noise)
    if sqnr is not None:
        yield sqnr - limits.min_sqnr
