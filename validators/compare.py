"""One output of an artifact beside eager's, on every feed."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..core.verdict import OutputVerdict, Tolerance
from .clues import clue
from .feeds import describe
from .metrics import Measures, decibel, is_numeric, measure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..core.contract import Array
    from .evidence import Pair

# Where a magnitude this large stands above all others by this factor, it is a fill (-1e9 in masked
# logits, the dtype's own minimum): as a scale it would make every error look small.
_FILL_FROM, _FILL_ABOVE = 1e4, 1e3
# Severities beside dB over the limit. An integer that is off (an argmax that flipped) mostly
# follows from a float that is off, and a missing output is told by name already.
_STRUCTURE, _WHOLE, _MISSING = math.inf, 0.0, -1.0


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A verdict on one output and feed; `severity` ranks failures, the worst being the largest."""

    verdict: OutputVerdict
    severity: float
    feed: str


@dataclass(frozen=True, kw_only=True)
class _Scale:
    """How large one output usually is over the feeds: mean square and peak."""

    signal: float = 0.0
    peak: float = 0.0

    @classmethod
    def of(cls, measures: Sequence[Measures | None]) -> _Scale:
        known = [m for m in measures if m is not None and m.compared]
        if not known:
            return cls()
        total = sum(m.compared for m in known)
        return cls(
            signal=sum(m.signal * (m.compared / total) for m in known),
            peak=statistics.median_low(m.peak or 0.0 for m in known),
        )

    def put(self, found: Measures) -> Measures:
        """The measures with `peak` and `sqnr` at the larger of their own scale and this one."""
        if found.peak is None:
            return found
        return replace(
            found,
            peak=max(found.peak, self.peak),
            sqnr=decibel(max(found.signal, self.signal), found.noise),
        )


def compare_output(name: str, pairs: Sequence[Pair], tolerance: Tolerance) -> list[Compared]:
    """Compare one output on every feed, at the scale that it has over all of them.

    Shapes, dtypes, NaN/Inf places, integers and bools must be eager's own. Floats pass if
    `max_abs <= atol + rtol * peak` and `sqnr >= min_sqnr`, where an output that happens to be
    near zero on one feed is judged at its usual scale: `peak` is the larger of the feed's own and
    the median over the feeds, and `sqnr` is 10 log10(signal / noise) with signal the larger of
    the feed's own mean square and the mean square over all feeds. The verdicts report these two,
    so that what is read is what was decided on. `sqnr` is None, and not asked for, where there is
    no error or where eager is zero on every feed.
    """
    measures = [_measured(name, pair) for pair in pairs]
    scale = _Scale.of(measures)
    return [
        _compare(name, pair, found and scale.put(found), tolerance)
        for pair, found in zip(pairs, measures, strict=True)
    ]


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
    if pairs and all(pair.eager[name].size == 0 for pair in pairs):
        notes.append(f"output {name!r} is empty on every feed: only its shape was compared")
    return notes


def _measured(name: str, pair: Pair) -> Measures | None:
    """The measures of one output on one feed; None where there is nothing to measure."""
    eager, artifact = pair.eager[name], pair.artifact.get(name)
    if artifact is None or artifact.shape != eager.shape:
        return None
    if not (is_numeric(eager) and is_numeric(artifact)):
        return None
    found = measure(eager, artifact)
    if found.peak is None or found.peak < _FILL_FROM or eager.dtype.kind != "f":
        return found
    rest = measure(eager, artifact, fill=found.peak)
    return rest if rest.peak and rest.peak * _FILL_ABOVE <= found.peak else found


def _compare(name: str, pair: Pair, found: Measures | None, tolerance: Tolerance) -> Compared:
    eager, artifact = pair.eager[name], pair.artifact.get(name)
    if artifact is None:
        reason, severity = "missing", _MISSING
    else:
        reason, severity = _fault(eager, artifact, found, tolerance)
    if reason and artifact is not None:
        reason += clue(name, pair, found, tolerance)
    return Compared(
        verdict=_record(name, pair, found, reason), severity=severity, feed=describe(pair.feed)
    )


def _fault(
    eager: Array, artifact: Array, found: Measures | None, tolerance: Tolerance
) -> tuple[str, float]:
    """What is wrong and how severe it is; an empty reason where nothing is."""
    if artifact.shape != eager.shape:
        return f"shape {list(artifact.shape)}, eager has {list(eager.shape)}", _STRUCTURE
    if artifact.dtype != eager.dtype:
        return f"dtype {artifact.dtype}, eager has {eager.dtype}", _STRUCTURE
    if found is None:
        return ("", 0.0) if (eager == artifact).all() else ("the values differ", _WHOLE)
    if found.nonfinite_eager or found.nonfinite_mismatch:
        reason = _nonfinite(found)
        if reason:
            return reason, _STRUCTURE
    if eager.dtype.kind in "fc":
        return _excess(found, tolerance)
    return ("", 0.0) if found.exact else (_whole(found), _WHOLE)


def _nonfinite(found: Measures) -> str:
    """What is wrong with the places of NaN and Inf; empty where they are eager's own."""
    count, size = found.nonfinite_mismatch, found.size
    if size == found.nonfinite_eager:
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
