"""Judge an artifact's outputs against eager's, feed by feed.

On a feed with values beyond the declared range, a difference rejects an FP32 artifact; in lower
precisions it adds a note.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, TypeAlias

from ..core.contract import Runner
from ..core.errors import ErrorCode, RunnerError
from ..core.kinds import QUANTIZED, Precision, ReasonCode
from ..core.verdict import OutputVerdict, Reason, State, Verdict
from ..validators.edge_case_feeds import REPEATED
from ..validators.edge_case_values import EMPTY_MASK
from ..validators.feeds import describe_named_feed
from ..validators.input_sensitivity import find_unequal_rows
from ..validators.judge import ArtifactOutputs, ReferenceOutputs
from ..validators.masked_rows import differs_behind_masks, drop_masked_row
from ..validators.ruling import Judgment, Ruling, decide
from ..validators.wide_integer_feeds import WIDE
from .branch_coverage import branch_coverage
from .float64_reference import add_exact, add_noise_draws, find_doubtful_feeds, unstable_feeds

if TYPE_CHECKING:
    from .eager_reference import EagerReference

_UNDEFINED = "where masked rows are undefined in many attentions"
_MASKED_SUFFIX = {
    True: ", only in rows that are masked",
    False: ", and not only in rows that are masked",
    None: f", {_UNDEFINED}",
}
_MAX_REDRAWS = 4  # rounds of float64 references or noise draws; one may expose other feeds

FeedPair: TypeAlias = tuple[ReferenceOutputs, ArtifactOutputs]


class Compare(Protocol):
    """Compares outputs with eager's on any feeds: `judge`, with the candidate's tolerance."""

    def __call__(
        self, *, references: Sequence[ReferenceOutputs], replies: Sequence[ArtifactOutputs]
    ) -> Verdict:
        """Return the measurements, held to the tolerance."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """An artifact's outputs, eager's outputs, and the function that compares them.

    Attributes:
        references: eager's outputs, one entry per feed.
        replies: the artifact's outputs or errors, parallel to `references`.
        precision: the precision that the artifact is judged as.
        compare: compares any subset of the feeds.
        loose: names of feeds on which only the form of the outputs is judged.
        notes: notes on the feeds that are left out.
    """

    references: tuple[ReferenceOutputs, ...]
    replies: tuple[ArtifactOutputs, ...]
    precision: Precision
    compare: Compare
    loose: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()

    def plus(self, reference: ReferenceOutputs, reply: ArtifactOutputs) -> Evidence:
        """Return the evidence with one more feed."""
        return replace(
            self,
            references=(*self.references, reference),
            replies=(*self.replies, reply),
        )

    def of(self, pairs: Sequence[FeedPair]) -> Evidence:
        """Return the evidence restricted to these feeds."""
        references = tuple(reference for reference, _ in pairs)
        return replace(self, references=references, replies=tuple(reply for _, reply in pairs))

    @property
    def pairs(self) -> list[FeedPair]:
        """Each reference with the artifact's reply."""
        return list(zip(self.references, self.replies, strict=True))

    @property
    def has_exact(self) -> bool:
        """Whether the artifact is compared with float64 too."""
        return any(one.exact is not None for one in self.references)

    @cached_property
    def verdict(self) -> Verdict:
        """The verdict on the feeds that count at this precision, under `FEED_RULES`."""
        apart = beyond_feeds(self.references, self.precision)
        measured = self.compare_pairs(
            [p for p in self.pairs if p[0].feed.kind != WIDE and p[0].feed.name not in apart]
        )
        return decide(measured, (rule(self, measured) for rule in FEED_RULES))

    def compare_pairs(self, pairs: Sequence[FeedPair]) -> Verdict:
        """Compare some feeds, without `FEED_RULES`."""
        part = self.of(pairs)
        return self.compare(references=part.references, replies=part.replies)

    def compare_wide_feeds(self) -> list[Verdict]:
        """Compare each wide-integer feed separately, as its scale differs from that of others."""
        return [self._compare_wide(*pair) for pair in self.pairs if pair[0].feed.kind == WIDE]

    def _compare_wide(self, reference: ReferenceOutputs, reply: ArtifactOutputs) -> Verdict:
        measured = self.compare_pairs([(reference, reply)])
        if reply.outputs is not None:
            return measured
        why = f"refused feed {describe_named_feed(reference.feed)}: {' '.join(reply.error.split())}"
        fault = Reason(code=ReasonCode.FEED_REFUSED, text=why, fault=True, feed=reference.feed.name)
        return replace(measured, state=State.FAILED, reasons=(fault,))

    @property
    def is_right_on_wide_feeds(self) -> bool:
        """Whether each wide-integer feed passes."""
        return all(one.passed for one in self.compare_wide_feeds())

    def find_failed(self) -> frozenset[str]:
        """Return the names of the counted feeds on which an output exceeds its limits."""
        beside = {name for name, found in self.verdicts_beside_masks.items() if not found.passed}
        return find_failed_feeds(self.verdict) | beside

    @cached_property
    def verdicts_beside_masks(self) -> dict[str, Verdict]:
        """The verdicts on the batch rows beside a fully masked row, by feed name.

        In lower precisions, a channel limit alone does not count: channels are judged over all
        feeds, and on a single feed a channel may be near zero.
        """
        if self.loose - beyond_feeds(self.references, self.precision):
            return {}
        found = {}
        for reference, reply in self.pairs:
            if reference.feed.name != EMPTY_MASK:
                continue
            shown = drop_masked_row(reference, reply, self.references)
            if shown is None:
                continue
            verdict = self.compare_pairs([shown])
            if self.precision is Precision.FP32 or not all(one.passed for one in verdict.outputs):
                found[reference.feed.name] = verdict
        return found


@dataclass(frozen=True, kw_only=True)
class JudgedEvidence(Judgment):
    """Evidence with its verdict and the rulings so far."""

    evidence: Evidence

    @classmethod
    def of(cls, evidence: Evidence) -> JudgedEvidence:
        """Return the evidence with its verdict, to which further rules add rulings."""
        return cls(evidence=evidence, measured=evidence.verdict)

    def use_judgment(self, other: JudgedEvidence) -> JudgedEvidence:
        """Return `other` with the rulings of this judgment before its own."""
        return replace(other, rulings=(*self.rulings, *other.rulings))

    @property
    def without_evidence(self) -> Judgment:
        """The judgment without the evidence, which holds the outputs of all feeds in memory."""
        return Judgment(measured=self.measured, rulings=self.rulings)


def _check_equal_rows(evidence: Evidence, measured: Verdict) -> Ruling:
    """Reject outputs that differ between equal rows of the repeated feed."""
    faults = [
        fault
        for reference, reply in evidence.pairs
        if reference.feed.name == REPEATED and reference.feed.name not in evidence.loose
        for fault in find_unequal_rows(reference, reply, measured.tolerance)
    ]
    return Ruling.fault(ReasonCode.EQUAL_ROWS_DIFFER, *faults)


def _check_beyond(evidence: Evidence, _: Verdict) -> Ruling:
    """Report differences on values beyond the declared range and on masks with undefined rows.

    In FP32, a difference at positions that the mask shows rejects the artifact. Other differences
    add notes: attention leaves masked positions undefined, 16-bit floats may overflow beyond the
    range, and 8-bit scales do not cover it.
    """
    apart = beyond_feeds(evidence.references, evidence.precision)
    far = [p for p in evidence.pairs if p[0].feed.name in apart and p[0].feed.kind != WIDE]
    if not far:
        return Ruling()
    found = evidence.compare_pairs(far)
    faults = _faults_outside_mask(far, found) if evidence.precision is Precision.FP32 else ()
    return replace(
        Ruling.fault(ReasonCode.OUTPUT_DIFFERS, *reversed([*faults])),
        feeds=found.feeds,
        outputs=tuple(map(_without_measures, found.outputs)),
        notes=tuple(_beyond_notes(far, found, evidence.precision)),
    )


def _check_wide(evidence: Evidence, _: Verdict) -> Ruling:
    """Judge each wide-integer feed separately."""
    found = evidence.compare_wide_feeds()
    wrong = [one for one in found if not one.passed]
    reasons = wrong[0].reasons if wrong else ()
    if len(wrong) > 1:
        last = replace(reasons[-1], text=f"{reasons[-1].text} (and {len(wrong) - 1} more)")
        reasons = (*reasons[:-1], last)
    return Ruling(
        last=reasons,
        feeds=tuple(name for one in found for name in one.feeds),
        outputs=tuple(replace(output, apart=True) for one in found for output in one.outputs),
    )


def _check_beside_masks(evidence: Evidence, _: Verdict) -> Ruling:
    """Reject differences in the rows beside a fully masked row."""
    wrong = [one.reason for one in evidence.verdicts_beside_masks.values() if not one.passed]
    return Ruling.fault(ReasonCode.BESIDE_MASK, *reversed(wrong))


def _note_left_out(evidence: Evidence, _: Verdict) -> Ruling:
    """Add the notes on feeds that are left out."""
    return Ruling(notes=evidence.notes)


FEED_RULES: tuple[Callable[[Evidence, Verdict], Ruling], ...] = (
    _check_equal_rows,
    _check_beyond,
    _check_wide,
    _check_beside_masks,
    _note_left_out,
)


def _faults_outside_mask(far: Sequence[FeedPair], verdict: Verdict) -> Iterator[str]:
    """Yield differences at positions that the mask shows, if eager's output is finite."""
    import numpy as np

    for reference, reply in far:
        mine = [one for one in verdict.outputs if one.feed == reference.feed.name]
        for one in mine:
            finite = np.isfinite(reference.outputs[one.output]).all()
            if one.passed or not finite:
                continue
            if differs_behind_masks(reference, reply, verdict.tolerance, [one.output]) is False:
                where = f"on {describe_named_feed(reference.feed)}, where the mask shows"
                yield f"output {one.output!r} {where}: {one.reason}"


def redraw(judged: JudgedEvidence, eager: EagerReference) -> JudgedEvidence:
    """Judge again with a float64 reference, then with more noise draws, where eager is doubtful.

    A feed may exceed its limits only because eager's own roundoff happens to be small or large.
    Once such feeds pass, channels pooled over all feeds may exceed theirs, so repeat up to
    `_MAX_REDRAWS` times.

    Leave out failed feeds on which eager itself is unstable, except feeds that take the other
    outcome of a data-dependent branch: there noise flips the branch, and the artifact may lack
    that outcome.
    """
    evidence = judged.evidence
    unstable = unstable_feeds(evidence.references, evidence.verdict, eager)
    if unstable and (unstable := _find_undecided_feeds(unstable, eager)):
        stable = [pair for pair in evidence.pairs if pair[0].feed.name not in unstable]
        evidence = replace(evidence.of(stable), notes=(*evidence.notes, *unstable.values()))
    for _ in range(_MAX_REDRAWS):
        if not (feeds := find_doubtful_feeds(evidence.verdict)):
            break
        old = evidence.references
        references = add_exact(old, feeds, eager) if evidence.has_exact else old
        if all(new is one for new, one in zip(references, old, strict=True)):
            references = add_noise_draws(old, feeds, eager)
        evidence = replace(evidence, references=references)
    return replace(judged, evidence=evidence, measured=evidence.verdict)


def _find_undecided_feeds(unstable: Mapping[str, str], eager: EagerReference) -> dict[str, str]:
    """Return the feeds that take the same branch outcomes as the captured feed."""
    watched = branch_coverage(eager).watched
    if watched.incomplete:
        return {}
    others = {feed for one in watched.found for feed in one.others}
    return {feed: note for feed, note in unstable.items() if feed not in others}


def beyond_feeds(references: Sequence[ReferenceOutputs], precision: Precision) -> frozenset[str]:
    """Return the names of the feeds that do not count toward the verdict at this precision.

    These are masks that leave rows undefined and, below FP32, values beyond the declared range.
    """
    return frozenset(
        one.feed.name
        for one in references
        if one.feed.kind == "mask" or (one.feed.beyond and precision is not Precision.FP32)
    )


def reply_to(runner: Runner, reference: ReferenceOutputs) -> ArtifactOutputs:
    """Run the artifact on one feed; return its outputs or its error message.

    Raises:
        RunnerError: the device has too little memory, or the server that runs the artifact does not
            answer, which says nothing about the artifact.
    """
    try:
        return ArtifactOutputs(outputs=runner.run(reference.feed.arrays))
    except RunnerError as error:
        if error.code in (ErrorCode.OUT_OF_MEMORY, ErrorCode.SERVER_UNREACHABLE):
            raise
        return ArtifactOutputs(outputs=None, error=error.message)


def find_failed_feeds(verdict: Verdict) -> frozenset[str]:
    """Return the feeds that count and on which an output exceeds its limits."""
    return frozenset(o.feed for o in verdict.outputs if not o.passed and not o.loose)


def _without_measures(output: OutputVerdict) -> OutputVerdict:
    """Mark an output that does not count as passed; keep its reason as text."""
    reason = f"does not count: {output.reason}" if output.reason else ""
    return replace(output, passed=True, reason=reason, loose=True, form="", form_kind="")


def _beyond_notes(far: Sequence[FeedPair], verdict: Verdict, precision: Precision) -> Iterator[str]:
    """Yield a note on the worst output of each feed that does not count.

    INT8 yields no SQNR note: its scales never cover values beyond the calibrated range.
    """
    least = verdict.tolerance.min_sqnr
    behind: dict[bool | None, list[str]] = {}  # keyed by whether only masked rows differ
    for reference, reply in far:
        masked = reference.feed.kind == "mask"
        why = _UNDEFINED if masked else "whose values exceed the declared range"
        where = f"on {describe_named_feed(reference.feed)}, {why}"
        mine = [one for one in verdict.outputs if one.feed == reference.feed.name]
        lost = [one for one in mine if one.nonfinite_artifact > one.nonfinite_eager]
        wrong = [one for one in mine if not one.passed]
        noisy = [one for one in mine if one.sqnr is not None and one.sqnr < least]
        if reply.outputs is None:
            yield f"fails {where}: {' '.join(reply.error.split())}"
        elif lost:
            yield f"overflows {where}: output {lost[0].output!r} has NaN or Inf"
        elif masked and (wrong or noisy):
            apart = [one.output for one in mine if one in wrong or one in noisy]
            alone = differs_behind_masks(reference, reply, verdict.tolerance, apart)
            behind.setdefault(alone, []).append(reference.feed.name)
        elif wrong:
            yield f"wrong {where}: output {wrong[0].output!r}: {wrong[0].reason}"
        elif noisy and precision not in QUANTIZED:
            worst = min(noisy, key=lambda one: one.sqnr or 0.0)
            yield f"SQNR {worst.sqnr:.1f} dB {where}: output {worst.output!r}"
    for alone, names in behind.items():
        yield f"differs from eager on {', '.join(names)}{_MASKED_SUFFIX[alone]}"
