"""Measure how far the outputs of one artifact in several runtimes are apart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import combinations

from ..core.contract import Array, Outputs
from ..core.errors import RunnerError
from ..core.external_runtime import RuntimeDrift
from ..core.verdict import OutputVerdict, Tolerance, Verdict
from ..validators.judge import ReferenceOutputs
from ..validators.metrics import is_numeric, measure_arrays
from .judge_case import Candidate, JudgeCase

_MAX_FEEDS = 8
_ROUNDOFF = 2.0**-24  # of float32, the least distance that two runtimes may have


def measure_drift(
    case: JudgeCase, sides: Mapping[str, Candidate], verdicts: Mapping[str, Verdict]
) -> tuple[RuntimeDrift, ...]:
    """Compare the outputs of each two sides on the feeds that came nearest to a limit.

    Args:
        case: the feeds with eager's outputs, and the tolerance.
        sides: the artifact as each runtime opens it, by the runtime's name.
        verdicts: those on the artifact in the runtimes, by name.

    Returns:
        the output and feed that are farthest apart, of each two sides that ran.
    """
    judged = [one for verdict in verdicts.values() for one in verdict.outputs if not one.loose]
    names = _nearest_to_a_limit(judged)
    references = [one for one in case.references if one.feed.name in names] or case.references[:1]
    found: dict[str, list[Outputs]] = {}
    for name, candidate in sides.items():
        with suppress(RunnerError):  # its verdict says so
            found[name] = _run_side(replace(case, candidate=candidate), references)
    limits = [_drift_limits(judged, one, case.tolerance) for one in references]
    feeds = [one.feed.name for one in references]
    return tuple(
        replace(
            min(
                _farthest_output(*each)
                for each in zip(feeds, found[first], found[second], limits, strict=True)
            ).drift,
            artifact=case.candidate.name,
            first=first,
            second=second,
        )
        for first, second in combinations(found, 2)
        if all(limits)
    )


def _run_side(case: JudgeCase, references: Sequence[ReferenceOutputs]) -> list[Outputs]:
    with case.open() as runner:
        return [runner.run(one.feed.arrays) for one in references]


def _nearest_to_a_limit(judged: Sequence[OutputVerdict]) -> set[str]:
    """Return the names of the feeds with the smallest margins that count."""
    held = [one for one in judged if one.headroom is not None and not one.apart]
    ordered = sorted(held, key=lambda one: one.headroom or 0.0)
    return set(list(dict.fromkeys(one.feed for one in ordered))[:_MAX_FEEDS])


def _drift_limits(
    judged: Sequence[OutputVerdict], reference: ReferenceOutputs, tolerance: Tolerance
) -> dict[str, float]:
    """Return the SQNR in dB by output below which two runtimes are apart beyond noise.

    It is what the artifact may err by: the floor of eager, or the largest one where the feed has
    none, times the floor factor; without a floor, the SQNR of its precision.
    """
    limits: dict[str, float] = {}
    for name in reference.outputs:
        own = tolerance.of(name)
        all_feeds = [one for one in judged if one.output == name]
        here = [one for one in all_feeds if one.feed == reference.feed.name]
        floors = [one.floor for one in here if one.floor is not None]
        floors = floors or [one.floor for one in all_feeds if one.floor is not None]
        if own.floor_factor is None or not floors:
            limits[name] = own.min_sqnr
            continue
        moved = [one.moved or 0.0 for one in here if one.excuse is not None]
        most = max(own.floor_factor * max(*floors, _ROUNDOFF), *moved, 0.0)
        limits[name] = -20.0 * math.log10(most)
    return limits


@dataclass(frozen=True, kw_only=True)
class _RankedDrift:
    """A drift that sorts by how far it is beyond its limit; what cannot be compared is first."""

    drift: RuntimeDrift

    def __lt__(self, other: _RankedDrift) -> bool:
        return self._rank < other._rank

    @property
    def _rank(self) -> tuple[bool, float]:
        one = self.drift
        return not one.fault, math.inf if one.sqnr is None else one.sqnr - one.limit


def _farthest_output(
    feed: str, first: Outputs, second: Outputs, limits: Mapping[str, float]
) -> _RankedDrift:
    """Return the output of one feed that is farthest apart."""
    return min(
        _RankedDrift(
            drift=replace(_compare(name, first.get(name), second.get(name), limit), feed=feed)
        )
        for name, limit in limits.items()
    )


def _compare(name: str, first: Array | None, second: Array | None, limit: float) -> RuntimeDrift:
    row = RuntimeDrift(
        artifact="", first="", second="", feed="", output=name, max_abs=None, sqnr=None,
        limit=limit,
    )  # fmt: skip
    if first is None or second is None:
        return replace(row, fault="one of them lacks the output")
    if first.shape != second.shape or first.dtype != second.dtype:
        left, right = (f"{one.dtype} {list(one.shape)}" for one in (first, second))
        return replace(row, fault=f"{left} and {right}")
    if not (is_numeric(first) and is_numeric(second)):
        return row
    found = measure_arrays(first, second)
    if found.nonfinite_mismatch:
        return replace(row, fault=f"{found.nonfinite_mismatch} elements are NaN or Inf in one")
    sqnr = found.sqnr
    if sqnr is None and found.max_abs:  # the first is zero everywhere
        sqnr = measure_arrays(second, first).sqnr
    return replace(row, max_abs=found.max_abs, sqnr=sqnr)
