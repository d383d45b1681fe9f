"""Feeds on which eager's fast paths fill padding: an artifact may be eager's plain path there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..core.errors import CheckpointError
from ..core.verdict import Verdict
from ..validators.edge_case_values import EMPTY_MASK
from ..validators.masked_rows import count_padded_positions, drop_masked_row
from ..validators.output_pairs import ArtifactOutputs, ReferenceOutputs
from .beyond import Evidence, redraw_and_judge
from .float64 import add_exact

if TYPE_CHECKING:
    from ..core.contract import Outputs
    from .subject import EagerReference

PLAIN_PATH = "plain path"


def judge_with_plain_paths(
    asked: Evidence, verdict: Verdict, subject: EagerReference
) -> tuple[Evidence, Verdict]:
    """The verdict; where an artifact was refused for what a fast path fills in, that without.

    On each feed that it failed, eager is run again without fast paths of attention. If the artifact
    is eager's equal so on the whole feed, within all limits, and the two paths differ in padded
    positions alone, the plain path stands there as eager's own, with a note. Wherever the two
    agree it is held to both.
    """
    failed = frozenset() if verdict.passed else asked.find_failed()
    plain = {
        one.feed.name: found
        for one in asked.references
        if one.feed.name in failed and not one.settled and (found := _plain_reference(one, subject))
    }
    if not plain:
        return asked, verdict
    evidence = _use_plain_references(asked, plain, subject)
    wrong = evidence.find_failed()
    kept = {name: one for name, one in plain.items() if name not in wrong}
    both = [(one, kept[one.feed.name]) for one in asked.references if one.feed.name in kept]
    judged = [[_select_judged_outputs(one, asked.references) for one in pair] for pair in both]
    positions = count_padded_positions([(old, new) for old, new in judged])
    if not kept:
        return asked, verdict
    if not positions:
        return asked, replace(verdict, notes=(*verdict.notes, _leak_text([*kept])))
    evidence, verdict = redraw_and_judge(_use_plain_references(asked, kept, subject), subject)
    return evidence, replace(verdict, notes=(*verdict.notes, _plain_path_note(positions, [*kept])))


def _plain_reference(
    reference: ReferenceOutputs, subject: EagerReference
) -> ReferenceOutputs | None:
    """Eager's plain path; None where it does not run, or gives nothing else."""
    try:
        found = subject.eager.run_plain_attention(reference.feed.arrays)
    except CheckpointError:
        return None
    shapes = {name: array.shape for name, array in reference.outputs.items()}
    if {name: array.shape for name, array in found.items()} != shapes:
        return None
    if count_padded_positions([(reference.outputs, found)]) == 0:
        return None
    return ReferenceOutputs(feed=reference.feed, outputs=found)


def _select_judged_outputs(
    reference: ReferenceOutputs, references: Sequence[ReferenceOutputs]
) -> Outputs:
    """The outputs; without a row that a mask hides altogether, as nothing is judged there."""
    if reference.feed.name != EMPTY_MASK:
        return reference.outputs
    shown = drop_masked_row(reference, ArtifactOutputs(outputs=reference.outputs), references)
    return reference.outputs if shown is None else shown[0].outputs


def _use_plain_references(
    evidence: Evidence, plain: dict[str, ReferenceOutputs], subject: EagerReference
) -> Evidence:
    """The evidence with the plain path on these feeds: eager as it runs says nothing of its noise.

    Float64 takes it by itself; where it does not, it is another function, which is seen.
    """
    others = tuple(plain.values())
    if any(one.exact is not None for one in evidence.references):
        others = add_exact(others, plain, subject)
    told = {one.feed.name: replace(one, settled=PLAIN_PATH) for one in others}
    references = (told.get(one.feed.name, one) for one in evidence.references)
    return replace(evidence, references=tuple(references))


def _leak_text(feeds: Sequence[str]) -> str:
    return (
        f"on feed {feeds[0]}{_more(feeds)} the artifact is eager's equal without its fast path of "
        "attention, whose fill reaches more than padded positions: mask what comes after, or call "
        "torch.backends.mha.set_fastpath_enabled(False) where the model is made"
    )


def _more(feeds: Sequence[str]) -> str:
    return f" and {len(feeds) - 1} more" if len(feeds) > 1 else ""


def _plain_path_note(positions: int, feeds: Sequence[str]) -> str:
    return (
        f"eager's fast path of attention fills {positions} padded positions on feed {feeds[0]}"
        f"{_more(feeds)}: the artifact gives there what eager's plain path computes, and elsewhere "
        "what both give"
    )
