"""Measure how far the outputs of one artifact in several runtimes are apart."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations

from ..core.contract import Array, Outputs
from ..core.errors import RunnerError
from ..core.external_runtime import RuntimeDrift
from ..core.verdict import OutputVerdict, Tolerance, Verdict
from ..validators.judge import ReferenceOutputs
from ..validators.metrics import is_numeric, measure_arrays
from .judge_case import Candidate, JudgeCase

_ROUNDOFF = 2.0**-24  # of float32, the least distance that two runtimes may have


def measure_drift(
    case: JudgeCase, sides: Mapping[str, Candidate], verdicts: Mapping[str, Verdict]
) -> tuple[RuntimeDrift, ...]:
    """Compare the outputs of each two sides on the feed that came nearest to a limit.

    Args:
        case: the feeds with eager's outputs, and the tolerance.
        sides: the artifact as each runtime opens it, by the runtime's name.
        verdicts: those on the artifact in the runtimes, by name.

    Returns:
        the output that is farthest apart, of each two sides that ran the feed.
    """
    judged = [one for verdict in verdicts.values() for one in verdict.outputs]
    reference = _nearest_to_a_limit(case, judged)
    found: dict[str, Outputs] = {}
    for name, candidate in sides.items():
        try:
            with replace(case, candidate=candidate).open() as runner:
                found[name] = runner.run(reference.feed.arrays)
        except RunnerError:
            continue  # its verdict says so
    limits = _drift_limits(judged, reference, case.tolerance)
    return tuple(
        replace(
            _farthest_output(found[first], found[second], limits),
            artifact=case.candidate.name,
            first=first,
            second=second,
            feed=reference.feed.name,
        )
        for first, second in combinations(found, 2)
        if limits
    )


def _nearest_to_a_limit(case: JudgeCase, judged: list[OutputVerdict]) -> ReferenceOutputs:
    """Return the feed with the smallest margin that counts; the first feed if none has one."""
    held = [one for one in judged if one.headroom is not None and not one.loose and not one.apart]
    if not held:
        return case.references[0]
    worst = min(held, key=lambda one: one.headroom or 0.0).feed
    return next((one for one in case.references if one.feed.name == worst), case.references[0])


def _drift_limits(
    judged: list[OutputVerdict], reference: ReferenceOutputs, tolerance: Tolerance
) -> dict[str, float]:
    """Return the SQNR in dB by output below which two runtimes are apart beyond noise.

    It is what the artifact may err by: the floor of eager times the floor factor, or the SQNR of
    its precision.
    """
    limits: dict[str, float] = {}
    for name in reference.outputs:
        own = tolerance.of(name)
        mine = [one for one in judged if one.output == name and one.feed == reference.feed.name]
        floor = next((one.floor for one in mine if one.floor is not None), None)
        if own.floor_factor is None or floor is None:
            limits[name] = own.min_sqnr
            continue
        moved = [one.moved or 0.0 for one in mine if one.excuse is not None]
        most = max(own.floor_factor * max(floor, _ROUNDOFF), *moved, 0.0)
        limits[name] = -20.0 * math.log10(most)
    return limits


def _farthest_output(first: Outputs, second: Outputs, limits: Mapping[str, float]) -> RuntimeDrift:
    """Return the output with the least margin; what cannot be compared comes first."""
    rows = [_compare(name, first.get(name), second.get(name), limits[name]) for name in limits]
    return min(rows, key=lambda one: (not one.fault, one.sqnr is None, _margin(one)))


def _margin(drift: RuntimeDrift) -> float:
    return math.inf if drift.sqnr is None else drift.sqnr - drift.limit


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
    return replace(row, max_abs=found.max_abs, sqnr=found.sqnr)
