"""Eager in float64 on the feeds of a subject: asked for when an artifact is held to it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..calibration.shelf import digest_of
from ..core.contract import Outputs
from ..core.errors import CheckpointError
from ..core.verdict import Tolerance, Verdict
from ..validators.evidence import Reference
from .stage import Stage

if TYPE_CHECKING:
    from .subject import Subject

TITLE = "float64 reference"
_ROUNDING = 2.0**-24
_PAIRS = 3  # seven draws with eager's own: their root mean square is far off once in a thousand
_HOPELESS = 200.0  # times the floor: no luck explains that


def with_float64(
    references: Sequence[Reference], subject: Subject, stage: Stage
) -> tuple[Reference, ...]:
    """The references with what eager gives in float64, on all of them or on none.

    Each feed is run once in the life of a subject, however many artifacts are judged on it. They
    are told apart by their arrays: the held-out samples of two artifacts have the same names.
    """
    keys = [digest_of(one.feed.arrays).hex() for one in references]
    missing = {key: r for key, r in zip(keys, references, strict=True) if key not in subject.exact}
    if missing and not subject.eager.no_float64:
        with stage.step(TITLE, log="eager") as clock:
            for done, (key, reference) in enumerate(missing.items(), start=1):
                outputs = subject.eager.run_exact(reference.feed.arrays)
                if outputs is None:
                    clock.detail = "none"
                    break
                subject.exact[key] = outputs
                stage.advance(TITLE, done, len(missing))
            else:
                clock.detail = f"{len(missing)} feeds"
    if subject.eager.no_float64:
        return tuple(references)
    return tuple(
        replace(one, exact=subject.exact[key]) for key, one in zip(keys, references, strict=True)
    )


def doubted(verdict: Verdict) -> frozenset[str]:
    """The feeds on which an artifact is over the noise floor by what eager's own luck may explain.

    Eager's noise on one feed is one draw, and where few elements make up the error a draw may come
    out small by chance. All feeds where channels alone are over, which are pooled over them.
    """
    if verdict.passed or verdict.tolerance.floor_factor is None:
        return frozenset()
    floats = [o for o in verdict.outputs if o.times_floor is not None and not o.loose]
    if any((o.times_floor or 0.0) > _HOPELESS for o in floats):
        return frozenset()
    over = frozenset(o.feed for o in floats if not o.passed)
    return over or frozenset(o.feed for o in floats)


def with_more_noise(
    references: Sequence[Reference], feeds: Collection[str], subject: Subject
) -> tuple[Reference, ...]:
    """The references with more draws of eager's noise on these feeds.

    Weights and inputs are off by one rounding (2^-24 of themselves) in each: as far from what eager
    computes with as eager itself is from what was meant. One draw more sums one element after the
    other, as a runtime may: off weights do not move a bias of the sums. Where ties are settled
    there are none: what is off by a rounding settles them otherwise, which is no noise.
    """
    return tuple(
        replace(one, again=_draws(one, subject), in_turn=_in_turn(one, subject))
        if one.feed.name in feeds and not one.settled
        else one
        for one in references
    )


def _in_turn(reference: Reference, subject: Subject) -> Outputs | None:
    """Eager's answer with its sums taken in turn; None where it does not run so."""
    try:
        found = subject.eager.run_in_turn(reference.feed.arrays)
    except CheckpointError:
        return None
    shapes = {name: array.shape for name, array in reference.outputs.items()}
    return found if {name: array.shape for name, array in found.items()} == shapes else None


def _draws(reference: Reference, subject: Subject) -> tuple[Outputs, ...]:
    found = subject.eager.draws_off(reference.feed.arrays, _ROUNDING, pairs=_PAIRS)
    shapes = {name: array.shape for name, array in reference.outputs.items()}
    return tuple(
        outputs
        for outputs in found
        if {name: array.shape for name, array in outputs.items()} == shapes
    )


def float64_notes(subject: Subject, tolerance: Tolerance) -> tuple[str, ...]:
    """That the judge fell back to its table, and why, where it would have used float64."""
    why = subject.eager.no_float64
    if not why or tolerance.floor_factor is None:
        return ()
    within = f"atol {tolerance.atol:g}, rtol {tolerance.rtol:g}, SQNR {tolerance.min_sqnr:g} dB"
    return (f"no float64 reference, so judged within {within}: {why}",)
