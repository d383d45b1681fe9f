"""Eager in float64 on the feeds of a subject: asked for when an artifact is held to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..core.verdict import Tolerance
from ..validators.evidence import Reference
from .stage import Stage

if TYPE_CHECKING:
    from .subject import Subject

TITLE = "float64 reference"


def with_float64(
    references: Sequence[Reference], subject: Subject, stage: Stage
) -> tuple[Reference, ...]:
    """The references with what eager gives in float64, on all of them or on none.

    Each feed is run once in the life of a subject, however many artifacts are judged on it.
    """
    missing = [one for one in references if one.feed.name not in subject.exact]
    if missing and not subject.eager.no_float64:
        with stage.step(TITLE, log="eager") as clock:
            for done, reference in enumerate(missing, start=1):
                outputs = subject.eager.run_exact(reference.feed.arrays)
                if outputs is None:
                    clock.detail = "none"
                    break
                subject.exact[reference.feed.name] = outputs
                stage.advance(TITLE, done, len(missing))
            else:
                clock.detail = f"{len(missing)} feeds"
    if subject.eager.no_float64:
        return tuple(references)
    return tuple(replace(one, exact=subject.exact[one.feed.name]) for one in references)


def float64_notes(subject: Subject, tolerance: Tolerance) -> tuple[str, ...]:
    """That the judge fell back to its table, and why, where it would have used float64."""
    why = subject.eager.no_float64
    if not why or tolerance.floor_factor is None:
        return ()
    within = f"atol {tolerance.atol:g}, rtol {tolerance.rtol:g}, SQNR {tolerance.min_sqnr:g} dB"
    return (f"no float64 reference, so judged within {within}: {why}",)
