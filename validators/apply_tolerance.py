"""Apply a tolerance to measurements, when an artifact is first judged or judged again later."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ..core.errors import join_some
from ..core.generation import LOGITS
from ..core.kinds import ReasonCode
from ..core.verdict import (
    ChannelVerdict,
    Excuse,
    GroupVerdict,
    OutputVerdict,
    Reason,
    State,
    Tolerance,
    Verdict,
)
from .channel_metrics import CHANNEL_MARGIN
from .eager_noise import COMPARABLE
from .output_pairs import MISSING, VALUES
from .token_metrics import find_token_reasons
from .tolerance import OutputScale

_MARGIN_LIMIT = 400.0  # dB
# Relative to the peak on the feed or at the usual scale. A larger error is not roundoff, however
# much eager moves.
GROSS_ERROR = 1e-2
# dB below `min_sqnr`, which applies to a whole output on one feed. In INT8 this is 5 dB, as for a
# layer that lost its scale; a signal below the noise has 0 dB.
GROUP_MARGIN = 10.0


def apply_tolerance(
    measured: Verdict, tolerance: Tolerance, feed_texts: Mapping[str, str] | None = None
) -> Verdict:
    """Return the verdict for these measurements at this tolerance.

    An artifact passes if it has no `faults`, every output has the right form, each float output is
    within its limits on every feed that counts and in every channel, and enough rows agree. An
    artifact that ran on no feed keeps the state `error`.

    Args:
        measured: the measurements.
        tolerance: the limits to apply.
        feed_texts: descriptions of the feeds by name, for the reasons.
    """
    if measured.state is State.ERROR:
        return replace(measured, tolerance=tolerance)
    names = dict.fromkeys(output.output for output in measured.outputs)
    limits = {name: tolerance.of(name) for name in names}
    scales = {name: _output_scale(name, measured.outputs) for name in names}
    agreeing = {name for name in names if _has_agreement(name, measured.outputs, limits[name])}
    outputs = tuple(
        replace(o, passed=True, reason="", headroom=None)
        if o.form_kind == VALUES and o.output in agreeing
        else _judge_output(
            o, limits[o.output], OutputScale.of([o]) if o.apart else scales[o.output]
        )
        for o in measured.outputs
    )
    # Channels are checked only if the whole output passed on every feed.
    quiet = names.keys() - {o.output for o in outputs if not (o.passed or o.loose)}
    channels = [
        (ReasonCode.CHANNEL_DIFFERS, one.output, channel_fault(one, limits[one.output]))
        for one in measured.channels
        if one.output in quiet
    ]
    groups = [
        (ReasonCode.GROUP_DIFFERS, one.output, group_fault(one, limits[one.output]))
        for one in measured.groups if one.output in quiet
    ]  # fmt: skip
    agreement = [
        (ReasonCode.ROWS_DISAGREE, name, _check_agreement(name, outputs, limits[name]))
        for name in names
    ]
    reasons = (
        *measured.faults,
        *_describe_worst(outputs, feed_texts or {}),
        *(
            Reason(code=code, text=text, output=name)
            for code, name, text in (*channels, *groups, *agreement)
            if text
        ),
        *(find_token_reasons(measured.tokens, tolerance.of(LOGITS)) if measured.tokens else ()),
    )
    if not outputs and not reasons:
        reasons = (Reason(code=ReasonCode.NOT_MEASURED, text="nothing was measured"),)
    verdict = replace(
        measured,
        outputs=outputs,
        tolerance=tolerance,
        reasons=reasons,
        state=State.FAILED if reasons else State.PASSED,
    )
    verdict.check_explained()
    return verdict


def find_gross_outputs(verdict: Verdict) -> Iterator[OutputVerdict]:
    """Yield failing outputs whose error exceeds 1% of the peak and so cannot be roundoff."""
    for name in dict.fromkeys(output.output for output in verdict.outputs):
        limits, scale = verdict.tolerance.of(name), _output_scale(name, verdict.outputs)
        for one in verdict.outputs:
            mine = one.output == name and not one.loose and not one.passed
            if mine and (one.max_abs or 0.0) > _gross_error(one, limits, scale):
                yield one


def channel_fault(channel: ChannelVerdict, tolerance: Tolerance) -> str:
    """Return why a channel fails; empty if it passes."""
    where = f"output {channel.output!r} channel {channel.channel} of axis {channel.axis}"
    more = f" (and {channel.more} more)" if channel.more else ""
    if channel.times_floor is not None:
        factor = tolerance.floor_factor
        if factor is None or channel.times_floor <= factor:
            return ""
        return f"{where}: {_times_text(channel.times_floor, factor)} over all feeds"
    least = tolerance.min_sqnr - CHANNEL_MARGIN
    sqnr = -math.inf if channel.sqnr is None else channel.sqnr
    if sqnr >= least or channel.max_abs <= channel.allowed:
        return ""
    return f"{where}: SQNR {sqnr:.1f} dB < {least:g} over all feeds{more}"


def group_fault(group: GroupVerdict, tolerance: Tolerance) -> str:
    """Return why a group of channels fails; empty if it passes.

    Dead channels fail at any tolerance. A kind must have at least `min_sqnr - GROUP_MARGIN`.
    """
    where = f"output {group.output!r} axis {group.axis}"
    if group.dead_count:
        return (
            f"{where}: constant in channel {_ranges_text(group.dead)}, which varies in eager "
            f"({group.dead_count} of {group.count} of this scale, RMS {group.rms:.2g})"
        )
    least = tolerance.min_sqnr - GROUP_MARGIN
    if not group.kind or group.sqnr is None or group.sqnr >= least:
        return ""
    return (
        f"{where}: SQNR {group.sqnr:.1f} dB < {least:g} over all feeds in channel "
        f"{_ranges_text(group.channels)}, whose scale is their own (RMS {group.rms:.2g})"
    )


def _ranges_text(found: Sequence[tuple[int, int]]) -> str:
    """Format index ranges as `4..83` or `2, 5, 8`: the first three, then the number of others."""
    named = [str(first) if first == last else f"{first}..{last}" for first, last in found]
    return join_some(named, 3)


def _output_scale(name: str, outputs: Sequence[OutputVerdict]) -> OutputScale:
    return OutputScale.of(o for o in outputs if o.output == name and not o.loose and not o.apart)


def _judge_output(output: OutputVerdict, limits: Tolerance, scale: OutputScale) -> OutputVerdict:
    output = replace(output, excuse=None)
    if output.form:
        clue = "" if output.loose or output.form_kind == MISSING else output.clue
        return replace(output, passed=False, reason=output.form + clue, headroom=None)
    if output.loose or not output.is_floating:
        return replace(output, passed=True, reason="", headroom=None)
    over, headroom, excuse = _check_table(output, limits, scale)
    if output.fill is not None:
        fill = output.fill
        wrong, rooms = _table_excess(fill.max_abs, fill.peak, fill.sqnr, limits)
        room = min(rooms, default=_MARGIN_LIMIT)
        headroom = room if headroom is None else min(headroom, room)
        over = over or (f"fill: {', '.join(wrong)}" if wrong else "")
    return replace(
        output,
        passed=not over,
        reason=over + output.clue if over else "",
        headroom=headroom,
        excuse=None if over else excuse,
    )


def _check_table(
    output: OutputVerdict, limits: Tolerance, scale: OutputScale
) -> tuple[str, float | None, Excuse | None]:
    """Return the limit violations, the margin in dB (negative: over the limit) and the excuse."""
    if output.exact:
        return "", None, None
    if limits.floor_factor is not None and output.times_floor is not None:
        return _check_floor(output, limits, scale)
    parts, rooms = _table_excess(output.max_abs, output.peak, output.sqnr, limits)
    least = limits.min_cosine
    if least is not None and output.cosine is not None and least < 1:
        rooms.append(10 * math.log10((1 - least) / max(1 - output.cosine, 1e-16)))
        if output.cosine < least:
            parts.append(f"cosine {output.cosine:.6f} < {least:g}")
    if parts and scale.excuses(output, limits):
        return "", 0.0, Excuse.USUAL_SCALE
    return ", ".join(parts), min(rooms, default=None), None


def _check_floor(
    output: OutputVerdict, limits: Tolerance, scale: OutputScale
) -> tuple[str, float | None, Excuse | None]:
    """Check against the noise floor; returns the same as `_check_table`.

    An SQNR below the limit is accepted only if eager itself moves by as much.
    """
    times, factor = output.times_floor or 0.0, limits.floor_factor or 0.0
    room = _margin_db(factor, times)
    largest = "" if output.max_abs is None else f", max abs {output.max_abs:.1e}"
    sqnr = "" if output.sqnr is None else f", SQNR {output.sqnr:.1f} dB"
    if times > factor:
        from_what = "eager" if output.floor is None else "float64"
        return f"{_times_text(times, factor, from_what)}{sqnr}{largest}", room, None
    if output.max_abs and scale.excuses(output, limits):
        below = output.sqnr is not None and output.sqnr < limits.min_sqnr
        return "", room, Excuse.USUAL_SCALE if below else None
    gross = _gross_error(output, limits, scale)
    if (output.max_abs or 0.0) > gross:
        text = f"max abs {_comparison_text(output.max_abs or 0.0, gross, 'e')}{sqnr}"
        return f"{text}: too much for roundoff", _margin_db(gross, output.max_abs or 0.0), None
    if output.sqnr is None or output.sqnr >= limits.min_sqnr:
        return "", room, None
    moved, apart = (output.moved or 0.0) * COMPARABLE, output.relative_l2 or 0.0
    if apart <= moved:
        return "", min(room, _margin_db(moved, apart)), Excuse.ILL_CONDITIONED
    text = f"SQNR {_comparison_text(output.sqnr, limits.min_sqnr, 'f')}{largest}"
    why = "" if output.moved is None else f", and noise of 2^-24 moves eager by {output.moved:.0e}"
    return f"{text}{why}", min(_margin_db(moved, apart), output.sqnr - limits.min_sqnr), None


def _gross_error(output: OutputVerdict, limits: Tolerance, scale: OutputScale) -> float:
    """Return the error above which roundoff is ruled out, at the feed's or the usual scale."""
    return max(limits.atol, GROSS_ERROR * max(output.peak or 0.0, scale.peak))


def _margin_db(limit: float, value: float) -> float:
    """Return the margin of a value to its limit in dB, clamped to +-400 because JSON has no Inf."""
    if not value:
        return _MARGIN_LIMIT
    return (
        max(-_MARGIN_LIMIT, min(_MARGIN_LIMIT, 20 * math.log10(limit / value)))
        if limit
        else -_MARGIN_LIMIT
    )


def _times_text(times: float, factor: float, from_what: str = "float64") -> str:
    if from_what == "float64":
        return f"{times:.3g} times as far from float64 as eager is (limit {factor:g})"
    return f"{times:.3g} times as far from eager as roundoff explains (limit {factor:g})"


def _table_excess(
    max_abs: float | None, peak: float | None, sqnr: float | None, limits: Tolerance
) -> tuple[list[str], list[float]]:
    """Check `atol + rtol * peak` and `min_sqnr`; return the violations and the margins in dB."""
    parts: list[str] = []
    rooms: list[float] = []
    limit = limits.atol + limits.rtol * (peak or 0.0)
    if max_abs:
        rooms.append(_margin_db(limit, max_abs))
        if max_abs > limit:
            parts.append(f"max abs {_comparison_text(max_abs, limit, 'e')}")
    if sqnr is not None:
        rooms.append(sqnr - limits.min_sqnr)
        if sqnr < limits.min_sqnr:
            parts.append(f"SQNR {_comparison_text(sqnr, limits.min_sqnr, 'f')}")
    return parts, rooms


def _comparison_text(value: float, limit: float, style: str) -> str:
    """Format `3.1e-02 > 1.2e-03` or `31.2 dB < 90`, with enough digits to distinguish the two."""
    for digits in range(1, 17):
        left, right = f"{value:.{digits}{style}}", f"{limit:.{digits}{style}}"
        if left != right:
            break
    else:
        left, right = repr(value), repr(limit)
    return f"{left} > {right}" if style == "e" else f"{left} dB < {limit:g}"


def _has_agreement(name: str, outputs: Sequence[OutputVerdict], limits: Tolerance) -> bool:
    """Whether at least `min_agreement` of the integers over all feeds equal eager's."""
    counted = [o for o in outputs if o.output == name and not o.loose and not o.apart]
    sizes = sum(math.prod(o.shape) for o in counted)
    if limits.min_agreement is None or not sizes:
        return False
    if any(o.form and o.form_kind != VALUES for o in counted):
        return False
    return 1 - sum(o.wrong for o in counted) / sizes >= limits.min_agreement


def _check_agreement(name: str, outputs: Sequence[OutputVerdict], limits: Tolerance) -> str:
    """Return why too few rows have their largest element where eager has it; empty if enough do."""
    least = limits.min_agreement
    counted = [
        o for o in outputs
        if o.output == name
        and not (o.loose or o.apart or o.form)
        and o.top1_agreement is not None
    ]  # fmt: skip
    rows = sum(o.rows for o in counted)
    if least is None or not rows:
        return ""
    share = sum(o.rows * (o.top1_agreement or 0.0) for o in counted) / rows
    if share >= least:
        return ""
    return (
        f"output {name!r}: the largest element is eager's in {share:.1%} of {rows} rows "
        f"(limit {least:.0%}), beyond what the errors explain"
    )


def _severity(output: OutputVerdict) -> float:
    """Rank failures, largest first.

    A wrong integer (a flipped argmax) mostly follows from a wrong float, so it ranks lowest. A
    missing output ranks below zero because another reason names it.
    """
    if output.form:
        return {MISSING: -1.0, VALUES: 0.0}.get(output.form_kind, math.inf)
    return -(output.headroom or 0.0)


def _describe_worst(
    outputs: Sequence[OutputVerdict], feed_texts: Mapping[str, str]
) -> list[Reason]:
    """Describe the worst failing output and its feed, and count the other failures."""
    failed = [o for o in outputs if not o.passed and _severity(o) >= 0]
    if not failed:
        return []
    worst = max(failed, key=_severity)
    more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
    feed = feed_texts.get(worst.feed, worst.feed)
    text = f"output {worst.output!r} on feed {feed}: {worst.reason}{more}"
    code = ReasonCode.OUTPUT_DIFFERS
    return [Reason(code=code, text=text, output=worst.output, feed=worst.feed)]
