"""One output of an artifact beside eager's, on every feed."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..core.verdict import OutputVerdict, Tolerance
from .channels import channel_faults
from .clues import clue
from .feeds import describe
from .fill import Apart, measure_apart
from .metrics import Measures, is_numeric
from .scale import Scale

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..core.contract import Array
    from .evidence import Pair

# Severities beside dB over the limit. An integer that is off (an argmax that flipped) mostly
# follows from a float that is off, and a missing output is told by name already.
_STRUCTURE, _WHOLE, _MISSING = math.inf, 0.0, -1.0


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A verdict on one output and feed.

    Attributes:
        verdict: what was found.
        severity: ranks failures, the worst being the largest.
        feed: the feed, for a message.
        answers: the measures of all but fill; None where nothing could be measured.
        excused: it passed as roundoff at the output's usual scale, not at its own.
    """

    verdict: OutputVerdict
    severity: float
    feed: str
    answers: Measures | None = None
    excused: bool = False


@dataclass(frozen=True, kw_only=True)
class _Standard:
    """What one output is held to; `barren` says that no feed has a finite element of it."""

    tolerance: Tolerance
    scale: Scale
    barren: bool


def compare_output(name: str, pairs: Sequence[Pair], tolerance: Tolerance) -> list[Compared]:
    """Compare one output on every feed, each at its own scale.

    Shapes, dtypes, NaN/Inf places, integers and bools must be eager's own. Floats pass if
    `max_abs <= atol + rtol * peak` and `sqnr >= min_sqnr`, both of this output on this feed. An
    output that happens to be near zero on one feed passes too if its errors are roundoff at the
    scale it usually has (see `Scale.excuses`). `sqnr` is None, and not asked for, where there is
    no error or eager is all zero. Fill is held to the same limits at its own scale (see fill.py)
    and left out of the measures that are reported.
    """
    measures = [_measured(name, pair) for pair in pairs]
    known = [found.answers for found in measures if found]
    standard = _Standard(
        tolerance=tolerance,
        scale=Scale.of(known),
        barren=all(found.size == found.nonfinite_eager for found in known),
    )
    return [
        _compare(name, pair, found, standard) for pair, found in zip(pairs, measures, strict=True)
    ]


def compare_form(name: str, pairs: Sequence[Pair]) -> list[Compared]:
    """Compare one output's shape, dtype and places of NaN/Inf alone; the measures are taken."""
    compared = []
    for pair in pairs:
        found = _measured(name, pair)
        answers = None if found is None else found.answers
        reason, severity = _malformed(pair.eager[name], pair.artifact.get(name), found)
        compared.append(
            Compared(
                verdict=replace(_record(name, pair, answers, reason), loose=True),
                severity=severity,
                feed=describe(pair.feed),
                answers=answers,
            )
        )
    return compared


def _malformed(eager: Array, artifact: Array | None, found: Apart | None) -> tuple[str, float]:
    """What is wrong with the form of an output, and how severe it is."""
    if artifact is None:
        return "missing", _MISSING
    if artifact.shape != eager.shape:
        return f"shape {list(artifact.shape)}, eager has {list(eager.shape)}", _STRUCTURE
    if artifact.dtype != eager.dtype:
        return f"dtype {artifact.dtype}, eager has {eager.dtype}", _STRUCTURE
    if found is not None and found.answers.nonfinite_mismatch:
        return _nonfinite(found.answers, barren=False), _STRUCTURE
    return "", 0.0


def compare_channels(
    name: str, pairs: Sequence[Pair], compared: Sequence[Compared], tolerance: Tolerance
) -> list[str]:
    """What is wrong with the channels of a float output that passed on every feed."""
    verdicts = [one.verdict for one in compared]
    floats = all(pair.eager[name].dtype.kind == "f" for pair in pairs)
    if not (floats and all(v.passed for v in verdicts)) or all(v.exact for v in verdicts):
        return []
    floor = Scale.of([one.answers for one in compared if one.answers]).floor(tolerance)
    return channel_faults(name, pairs, floor=floor, tolerance=tolerance)


def notes_on(name: str, pairs: Sequence[Pair], compared: Sequence[Compared]) -> list[str]:
    """What a reader should know of an output that passed all the same."""
    passed = [c for c in compared if c.verdict.passed]
    odd = [c for c in passed if c.verdict.nonfinite_eager]
    notes = []
    if odd:
        count = odd[0].verdict.nonfinite_eager
        more = f" and {len(odd) - 1} more" if len(odd) > 1 else ""
        notes.append(
            f"output {name!r} has {count} NaN/Inf on feed {odd[0].feed}{more}, in eager's places"
        )
    small = [c for c in passed if c.excused]
    if small:
        more = f" and {len(small) - 1} more" if len(small) > 1 else ""
        notes.append(
            f"output {name!r} on feed {small[0].feed}{more} is far below its usual scale: "
            "its errors are roundoff at that, large at its own"
        )
    if pairs and all(pair.eager[name].size == 0 for pair in pairs):
        notes.append(f"output {name!r} is empty on every feed: only its shape was compared")
    return notes


def _measured(name: str, pair: Pair) -> Apart | None:
    """The measures of one output on one feed; None where there is nothing to measure."""
    eager, artifact = pair.eager[name], pair.artifact.get(name)
    if artifact is None or artifact.shape != eager.shape:
        return None
    if not (is_numeric(eager) and is_numeric(artifact)):
        return None
    return measure_apart(eager, artifact)


def _compare(name: str, pair: Pair, found: Apart | None, standard: _Standard) -> Compared:
    eager, artifact = pair.eager[name], pair.artifact.get(name)
    answers = None if found is None else found.answers
    if artifact is None:
        reason, severity = "missing", _MISSING
    else:
        reason, severity = _fault(eager, artifact, found, standard)
    if reason and artifact is not None:
        reason += clue(name, pair, answers, standard.tolerance)
    return Compared(
        verdict=_record(name, pair, answers, reason),
        severity=severity,
        feed=describe(pair.feed),
        answers=answers,
        excused=not reason and _is_float(eager) and _is_over(answers, standard.tolerance),
    )


def _fault(
    eager: Array, artifact: Array, found: Apart | None, standard: _Standard
) -> tuple[str, float]:
    """What is wrong and how severe it is; an empty reason where nothing is."""
    if artifact.shape != eager.shape or artifact.dtype != eager.dtype:
        return _malformed(eager, artifact, found)
    if found is None:
        return ("", 0.0) if (eager == artifact).all() else ("the values differ", _WHOLE)
    answers = found.answers
    if answers.nonfinite_eager or answers.nonfinite_mismatch:
        reason = _nonfinite(answers, barren=standard.barren)
        if reason:
            return reason, _STRUCTURE
    if _is_float(eager):
        return _inexact(found, standard)
    return ("", 0.0) if answers.exact else (_whole(answers), _WHOLE)


def _is_float(array: Array) -> bool:
    return array.dtype.kind in "fc"


def _nonfinite(found: Measures, *, barren: bool) -> str:
    """What is wrong with the places of NaN and Inf; empty where they are eager's own."""
    count, size = found.nonfinite_mismatch, found.size
    if barren:
        return "nothing to compare: every element of eager's is NaN or Inf"
    if not count:
        return ""
    if not found.nonfinite_eager:
        return f"{count} of {size} elements NaN/Inf where eager has none"
    if not found.nonfinite_artifact:
        return f"{count} of {size} elements NaN/Inf in eager, finite here"
    return f"{count} of {size} elements NaN/Inf in other places or of another kind than eager's"


def _whole(found: Measures) -> str:
    largest = "" if found.max_abs is None else f", by up to {found.max_abs:.12g}"
    return f"{found.differing} of {found.size} elements differ{largest}"


def _inexact(found: Apart, standard: _Standard) -> tuple[str, float]:
    """What is over its limit in the answers, else in the fill."""
    tolerance = standard.tolerance
    reason, severity = _excess(found.answers, tolerance)
    if reason and not standard.scale.excuses(found.answers, tolerance):
        return reason, severity
    if found.fill is None:
        return "", 0.0
    reason, severity = _excess(found.fill, tolerance)
    return f"fill: {reason}" if reason else "", severity


def _excess(found: Measures, tolerance: Tolerance) -> tuple[str, float]:
    """What is over its limit, and by how many dB."""
    parts: list[str] = []
    severity, sqnr = 0.0, found.sqnr
    limit = tolerance.atol + tolerance.rtol * (found.peak or 0.0)
    if found.max_abs is not None and not found.max_abs <= limit:
        parts.append(f"max abs {_beside(found.max_abs, limit, 'e')}")
        severity = 20 * math.log10(found.max_abs / limit) if limit else math.inf
    if sqnr is not None and sqnr < tolerance.min_sqnr:
        parts.append(f"SQNR {_beside(sqnr, tolerance.min_sqnr, 'f')}")
        severity = max(severity, tolerance.min_sqnr - sqnr)
    return ", ".join(parts), severity


def _is_over(found: Measures | None, tolerance: Tolerance) -> bool:
    return found is not None and bool(_excess(found, tolerance)[0])


def _beside(value: float, limit: float, style: str) -> str:
    """`3.1e-02 > 1.2e-03` or `31.2 dB < 90`, with as many digits as tell the two apart."""
    for digits in range(1, 17):
        left, right = f"{value:.{digits}{style}}", f"{limit:.{digits}{style}}"
        if left != right:
            break
    else:
        left, right = repr(value), repr(limit)
    return f"{left} > {right}" if style == "e" else f"{left} dB < {limit:g}"


def _record(name: str, pair: Pair, found: Measures | None, reason: str) -> OutputVerdict:
    eager = pair.eager[name]
    known = found or Measures(size=eager.size, compared=0, differing=eager.size if reason else 0)
    return OutputVerdict(
        feed=pair.feed.name,
        output=name,
        passed=not reason,
        reason=reason,
        shape=tuple(eager.shape),
        dtype=str(eager.dtype),
        exact=known.exact,
        max_abs=known.max_abs,
        mean_abs=known.mean_abs,
        max_rel=known.max_rel,
        relative_l2=known.relative_l2,
        cosine=known.cosine,
        sqnr=known.sqnr,
        argmax_agreement=known.argmax_agreement,
        nonfinite_eager=known.nonfinite_eager,
        nonfinite_artifact=known.nonfinite_artifact,
        peak=known.peak,
    )
