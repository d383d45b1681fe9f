"""Feeds on which scores tie: an artifact that chooses otherwise is held to eager choosing so."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..core.errors import CheckpointError
from ..core.verdict import Verdict
from ..validators.output_pairs import ReferenceOutputs
from .beyond import Evidence, redraw_and_judge
from .plain_paths import judge_with_plain_paths

if TYPE_CHECKING:
    from ..core.contract import Outputs
    from .subject import EagerReference

_TIE_ORDERS = {False: "the first", True: "the last"}  # of equal scores, as the note says it
_ROUGH_TOLERANCE = 1e-4  # of the signal: 80 dB


def judge_with_ties(evidence: Evidence, subject: EagerReference) -> tuple[Evidence, Verdict]:
    """The verdict; where eager's luck, a tie or a fast path may have refused it, that without."""
    return judge_with_plain_paths(
        *settle_ties(*redraw_and_judge(evidence, subject), subject), subject
    )


def settle_ties(
    asked: Evidence, verdict: Verdict, subject: EagerReference
) -> tuple[Evidence, Verdict]:
    """The verdict; where an artifact was refused for its choice among equal scores, that without.

    On each feed that it failed, eager is run again taking the first, and the last, of scores that
    are equal but for roundoff, wherever torch leaves that open. If the artifact is eager's equal
    so, within all limits, that answer stands there as eager's own: any other choice is refused as
    before. Some other feed must show the same choices without a tie.
    """
    evidence, failed = asked, _find_failed_feeds(verdict)
    for last in _TIE_ORDERS:
        settled = _settle_feeds(evidence, failed, subject, last=last)
        if settled is not None:
            right = failed - _find_failed_feeds(settled.verdict())
            evidence = _take_settled(evidence, settled, right)
            failed -= right
    both = zip(asked.references, evidence.references, strict=True)
    chosen = [new for old, new in both if new is not old]
    if not chosen or not _is_shown_elsewhere(evidence, subject):
        return asked, verdict
    evidence, verdict = redraw_and_judge(evidence, subject)
    return evidence, replace(verdict, notes=(*verdict.notes, *_tie_notes(chosen)))


def _find_failed_feeds(verdict: Verdict) -> frozenset[str]:
    """The feeds that count and on which an output is beyond its limits."""
    return frozenset(o.feed for o in verdict.outputs if not o.passed and not o.loose)


def _settle_feeds(
    evidence: Evidence, feeds: Collection[str], subject: EagerReference, *, last: bool
) -> Evidence | None:
    """The evidence with eager's other choice on these feeds; None where there is no other."""
    known = any(one.exact is not None for one in evidence.references)
    others = {
        one.feed.name: _reference_with_order(one, subject, last=last, known=known)
        for one in evidence.references
        if one.feed.name in feeds
    }
    if not any(others.values()):
        return None
    told = tuple(others.get(one.feed.name) or one for one in evidence.references)
    return replace(evidence, references=told)


def _reference_with_order(
    reference: ReferenceOutputs, subject: EagerReference, *, last: bool, known: bool
) -> ReferenceOutputs | None:
    """Eager with its ties so; None where that changes nothing, or float64 chooses otherwise.

    `known` says that the artifact is held to float64.
    """
    outputs = _run_with_order(reference, subject, last=last, exact=False)
    if outputs is None or _is_same_outputs(outputs, reference.outputs):
        return None
    exact = None
    if known:
        exact = _run_with_order(reference, subject, last=last, exact=True)
        if exact is None or _is_apart(outputs, exact):
            return None  # a floor as high as that would pass anything
    return ReferenceOutputs(
        feed=reference.feed, outputs=outputs, exact=exact, settled=_TIE_ORDERS[last]
    )


def _run_with_order(
    reference: ReferenceOutputs, subject: EagerReference, *, last: bool, exact: bool
) -> Outputs | None:
    try:
        found = subject.eager.run_with_tie_order(reference.feed.arrays, last=last, exact=exact)
    except CheckpointError:
        return None
    return found if found is not None and tuple(found) == tuple(reference.outputs) else None


def _is_same_outputs(one: Outputs, other: Outputs) -> bool:
    import numpy as np

    return all(
        one[name].shape == other[name].shape
        and bool(np.array_equal(one[name], other[name], equal_nan=one[name].dtype.kind in "fc"))
        for name in one
    )


def _is_apart(outputs: Outputs, exact: Outputs) -> bool:
    """Whether float64 is further from float32 than roundoff: it settled some tie otherwise."""
    import numpy as np

    for name, array in outputs.items():
        if array.shape != exact[name].shape:
            return True
        if array.dtype.kind == "f":
            truth = np.nan_to_num(exact[name].astype(np.float64))
            error = np.nan_to_num(array.astype(np.float64)) - truth
            if np.linalg.norm(error) > _ROUGH_TOLERANCE * np.linalg.norm(truth):
                return True
    return False


def _take_settled(evidence: Evidence, settled: Evidence, feeds: Collection[str]) -> Evidence:
    """The evidence with the settled references of these feeds alone."""
    both = zip(evidence.references, settled.references, strict=True)
    found = tuple(new if old.feed.name in feeds else old for old, new in both)
    return replace(evidence, references=found)


def _is_shown_elsewhere(evidence: Evidence, subject: EagerReference) -> bool:
    """Whether a feed that counts makes the same kind of choice with nothing left open."""
    return any(
        not one.settled and one.feed.name not in evidence.loose and _is_decided(one, subject)
        for one in evidence.references
    )


def _is_decided(reference: ReferenceOutputs, subject: EagerReference) -> bool:
    for last in _TIE_ORDERS:
        outputs = _run_with_order(reference, subject, last=last, exact=False)
        if outputs is None or not _is_same_outputs(outputs, reference.outputs):
            return False
    return True


def _tie_notes(chosen: Sequence[ReferenceOutputs]) -> tuple[str, ...]:
    """One line for each order: on which feeds, and what the artifact was held to there."""
    told = []
    for order in _TIE_ORDERS.values():
        feeds = [one.feed.name for one in chosen if one.settled == order]
        if feeds:
            told.append(
                f"equal scores tie in topk or sort on {', '.join(feeds)}: held there to eager "
                f"taking {order} of them, as torch leaves that open"
            )
    return tuple(told)
