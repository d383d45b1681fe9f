"""Judge differences that roundoff or eager's fast paths decide: ties, thresholds, padding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..core.errors import CheckpointError
from ..core.kinds import Precision
from ..validators.edge_case_values import EMPTY_MASK
from ..validators.masked_rows import count_padded_positions, drop_masked_row
from ..validators.output_pairs import ArtifactOutputs, ReferenceOutputs
from ..validators.ruling import Ruling
from .eager_reference import EagerReference
from .float64_reference import PAIRS, SHARES, add_exact, has_same_shapes, is_apart
from .reply_evidence import (
    Evidence,
    FeedPair,
    JudgedEvidence,
    find_failed_feeds,
    redraw,
    reply_to,
)
from .routing_ties import settle_routing
from .suppression_choices import settle_suppression

if TYPE_CHECKING:
    from ..core.contract import Array, Outputs, Runner

_MOST_UNDECIDED = 0.5  # of an output's integers on all feeds: more than that, and few are compared
_TIE_ORDERS = {False: "the first", True: "the last"}  # of equal scores; the text goes into the note


def apply_second_looks(evidence: Evidence, eager: EagerReference) -> JudgedEvidence:
    """Judge the evidence, then apply `SECOND_LOOKS` in order; each may clear a rejection."""
    judged = JudgedEvidence.of(evidence)
    for look in SECOND_LOOKS:
        judged = look(judged, eager)
    return judged


def settle_ties(judged: JudgedEvidence, eager: EagerReference) -> JudgedEvidence:
    """Judge again if the artifact was rejected for its choice among equal scores.

    On each failed feed, eager runs again and takes the first, then the last, of scores that are
    equal up to roundoff, where torch leaves the order open. If the artifact matches one of these
    within all limits, that output becomes the reference of the feed; any other choice stays
    rejected. Another feed must show the same kind of choice without a tie.
    """
    evidence, failed = judged.evidence, find_failed_feeds(judged.measured)
    for last in _TIE_ORDERS:
        settled = _settle_feeds(evidence, failed, eager, last=last)
        if settled is not None:
            right = failed - find_failed_feeds(settled.verdict)
            pairs = zip(evidence.references, settled.references, strict=True)
            references = tuple(new if old.feed.name in right else old for old, new in pairs)
            evidence, failed = replace(evidence, references=references), failed - right
    both = zip(judged.evidence.references, evidence.references, strict=True)
    chosen = [new for old, new in both if new is not old]
    if not chosen or not _is_decided_elsewhere(evidence, eager):
        return judged
    again = redraw(JudgedEvidence.of(evidence), eager)
    return judged.use_judgment(again).plus(Ruling(notes=_tie_notes(chosen)))


def _settle_feeds(
    evidence: Evidence, feeds: Collection[str], eager: EagerReference, *, last: bool
) -> Evidence | None:
    """Return the evidence with eager's other choice on these feeds; None if there is none."""
    others = {
        one.feed.name: _reference_with_order(one, eager, last=last, known=evidence.has_exact)
        for one in evidence.references
        if one.feed.name in feeds
    }
    if not any(others.values()):
        return None
    references = tuple(others.get(one.feed.name) or one for one in evidence.references)
    return replace(evidence, references=references)


def _reference_with_order(
    reference: ReferenceOutputs, eager: EagerReference, *, last: bool, known: bool
) -> ReferenceOutputs | None:
    """Run eager with this order of ties; None if nothing changes or float64 disagrees.

    With `known`, the artifact is also judged against float64.
    """
    outputs = _run_with_order(reference, eager, last=last, exact=False)
    if outputs is None or _is_same_outputs(outputs, reference.outputs):
        return None
    exact = None
    if known:
        exact = _run_with_order(reference, eager, last=last, exact=True)
        if exact is None or any(
            is_apart(array, exact[name])
            for name, array in outputs.items()
            if array.dtype.kind == "f" or array.shape != exact[name].shape
        ):
            return None  # with so high a noise floor, anything would pass
    return ReferenceOutputs(
        feed=reference.feed, outputs=outputs, exact=exact, settled=_TIE_ORDERS[last]
    )


def _run_with_order(
    reference: ReferenceOutputs, eager: EagerReference, *, last: bool, exact: bool
) -> Outputs | None:
    try:
        found = eager.model.run_with_tie_order(reference.feed.arrays, last=last, exact=exact)
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


def _is_decided_elsewhere(evidence: Evidence, eager: EagerReference) -> bool:
    """Return whether a feed that counts makes the same kind of choice without a tie."""
    for one in evidence.references:
        if one.settled or one.feed.name in evidence.loose:
            continue
        orders = (_run_with_order(one, eager, last=last, exact=False) for last in _TIE_ORDERS)
        if all(found is not None and _is_same_outputs(found, one.outputs) for found in orders):
            return True
    return False


def _tie_notes(chosen: Sequence[ReferenceOutputs]) -> tuple[str, ...]:
    """Describe, for each order of ties, on which feeds it applies."""
    feeds = {
        order: ", ".join(one.feed.name for one in chosen if one.settled == order)
        for order in _TIE_ORDERS.values()
    }
    return tuple(
        f"equal scores tie in topk or sort on {names}: compared there with eager taking {order} "
        "of them, as torch leaves the order open"
        for order, names in feeds.items()
        if names
    )


PLAIN_PATH = "plain path"


def take_plain_paths(judged: JudgedEvidence, eager: EagerReference) -> JudgedEvidence:
    """Judge again if the artifact was rejected for what a fast path of attention fills in.

    On each failed feed, eager runs again without fast paths. If the artifact matches that output on
    the whole feed within all limits, and the two paths differ only in padded positions, the plain
    path becomes the reference of the feed, with a note.
    """
    evidence = judged.evidence
    failed = frozenset() if judged.passed else evidence.find_failed()
    plain = {
        one.feed.name: found
        for one in evidence.references
        if one.feed.name in failed and not one.settled and (found := _plain_reference(one, eager))
    }
    if not plain:
        return judged
    wrong = _use_plain_references(evidence, plain, eager).find_failed()
    kept = {name: one for name, one in plain.items() if name not in wrong}
    if not kept:
        return judged
    both = [(one, kept[one.feed.name]) for one in evidence.references if one.feed.name in kept]
    outputs = [[_select_judged_outputs(one, evidence.references) for one in pair] for pair in both]
    positions = count_padded_positions([(old, new) for old, new in outputs])
    feeds = f"feed {next(iter(kept))}{f' and {len(kept) - 1} more' if len(kept) > 1 else ''}"
    if not positions:
        note = (
            f"on {feeds} the artifact equals eager without its fast path of attention, which fills "
            "more than padded positions: mask what comes after, or call "
            "torch.backends.mha.set_fastpath_enabled(False) in the model's factory"
        )
        return judged.plus(Ruling(notes=(note,)))
    note = (
        f"eager's fast path of attention fills {positions} padded positions on {feeds}: there the "
        "artifact equals eager's plain path, elsewhere both"
    )
    again = redraw(JudgedEvidence.of(_use_plain_references(evidence, kept, eager)), eager)
    return judged.use_judgment(again).plus(Ruling(notes=(note,)))


SECOND_LOOKS: tuple[Callable[[JudgedEvidence, EagerReference], JudgedEvidence], ...] = (
    settle_suppression,
    redraw,
    settle_ties,
    take_plain_paths,
    settle_routing,
)


def _plain_reference(reference: ReferenceOutputs, eager: EagerReference) -> ReferenceOutputs | None:
    """Return the reference of eager's plain path; None if it fails or does not differ."""
    try:
        found = eager.model.run_plain_attention(reference.feed.arrays)
    except CheckpointError:
        return None
    differs = has_same_shapes(found, reference.outputs) and count_padded_positions(
        [(reference.outputs, found)]
    )
    return ReferenceOutputs(feed=reference.feed, outputs=found) if differs else None


def _select_judged_outputs(
    reference: ReferenceOutputs, references: Sequence[ReferenceOutputs]
) -> Outputs:
    """Return the outputs, without a row that a mask hides completely: it is not judged."""
    if reference.feed.name != EMPTY_MASK:
        return reference.outputs
    shown = drop_masked_row(reference, ArtifactOutputs(outputs=reference.outputs), references)
    return reference.outputs if shown is None else shown[0].outputs


def _use_plain_references(
    evidence: Evidence, plain: dict[str, ReferenceOutputs], eager: EagerReference
) -> Evidence:
    """Use the plain path as the reference on these feeds.

    Eager's default path does not determine the noise there. Float64 takes the plain path by itself;
    if it did not, the difference would show.
    """
    others = tuple(plain.values())
    if evidence.has_exact:
        others = add_exact(others, plain, eager)
    settled = {one.feed.name: replace(one, settled=PLAIN_PATH) for one in others}
    references = (settled.get(one.feed.name, one) for one in evidence.references)
    return replace(evidence, references=tuple(references))


def mark_undecided_replies(
    references: Sequence[ReferenceOutputs],
    replies: Sequence[ArtifactOutputs],
    precision: Precision,
    eager: EagerReference,
) -> list[ArtifactOutputs]:
    """Mark where roundoff decides integer outputs that differ from eager's.

    These are ties in argmax or topk, and thresholds that are just met: eager itself gives another
    result there in float64, or when its weights and inputs are perturbed by the rounding error of
    the precision.
    """
    known = any(one.exact is not None for one in references)
    marked = []
    for reference, reply in zip(references, replies, strict=True):
        names = [n for n in reference.outputs if _has_other_integers(reference, reply, n)]
        if names:
            exactly = add_exact([reference], [reference.feed.name] if known else [], eager)
            answers = {name: (reply.outputs or {})[name] for name in names}
            marks = _mark_outputs(exactly[0], answers, SHARES[precision], eager)
            reply = replace(reply, undecided=marks)  # noqa: PLW2901 - the same reply, marked
        marked.append(reply)
    return marked


def drop_empty_marks(
    references: Sequence[ReferenceOutputs], replies: Sequence[ArtifactOutputs]
) -> tuple[ArtifactOutputs, ...]:
    """Return the replies without the marks of an output of which roundoff decides the most.

    Hardly anything of it would be compared, so that any artifact would pass.
    """
    sizes, marked = Counter[str](), Counter[str]()
    for reference, reply in zip(references, replies, strict=True):
        for name, array in reference.outputs.items():
            sizes[name] += array.size
            if name in reply.undecided:
                differs = (reply.outputs or {})[name] != array
                marked[name] += int((differs & reply.undecided[name]).sum())
    empty = {name for name, count in marked.items() if count > _MOST_UNDECIDED * sizes[name]}
    return tuple(
        replace(one, undecided={name: m for name, m in one.undecided.items() if name not in empty})
        for one in replies
    )


def run_artifact(
    reference: ReferenceOutputs, evidence: Evidence, eager: EagerReference, runner: Runner
) -> FeedPair:
    """Run the artifact on one more feed; eager runs in float64 too where the evidence has it."""
    if evidence.has_exact:
        reference = replace(reference, exact=eager.model.run_exact(reference.feed.arrays))
    reply = reply_to(runner, reference)
    (marked,) = mark_undecided_replies([reference], [reply], evidence.precision, eager)
    return reference, marked


def _has_other_integers(reference: ReferenceOutputs, reply: ArtifactOutputs, name: str) -> bool:
    eager, other = reference.outputs[name], (reply.outputs or {}).get(name)
    if other is None or eager.dtype.kind not in "iub" or other.shape != eager.shape:
        return False
    return bool((eager != other).any())


def _mark_outputs(
    reference: ReferenceOutputs, answers: Outputs, share: float, eager: EagerReference
) -> dict[str, Array]:
    """Return, by output, a mask of where a perturbed draw or float64 differs from eager."""
    others = list(eager.model.draw_perturbed(reference.feed.arrays, share, pairs=PAIRS))
    if reference.exact is not None:
        others.append(reference.exact)
    return {
        name: mark_undecided(
            answer, reference.outputs[name], [one[name] for one in others if name in one]
        )
        for name, answer in answers.items()
    }


def mark_undecided(answer: Array, eager: Array, others: Sequence[Array]) -> Array:
    """Return a mask of where any of `others` differs from eager, so that roundoff decides.

    If even the number of elements depends on roundoff (boxes above a threshold), positions are not
    comparable; then values that occur in either output are marked.
    """
    import numpy as np

    found: Array = np.zeros(eager.shape, dtype=bool)
    for other in others:
        if other.shape == eager.shape:
            found |= other != eager
        else:
            found |= np.isin(answer, np.concatenate([eager.reshape(-1), other.reshape(-1)]))
    return found
