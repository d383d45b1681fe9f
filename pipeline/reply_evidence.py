"""An artifact's replies beside eager's, how they are judged, and which feeds do not count.

A feed with values beyond the declared range is a failure in FP32 and a note in lower precision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from ..core.contract import Runner
from ..core.errors import RunnerError
from ..core.kinds import Precision, ReasonCode
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
_MAX_REDRAWS = (
    4  # float64 and more draws on the feeds that are over, and on those of channels after them
)

JudgeOn: TypeAlias = Callable[[Sequence[ReferenceOutputs], Sequence[ArtifactOutputs]], Verdict]


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """An artifact's answers beside eager's, and how they are judged.

    `judge_on` judges any feeds; `loose` are names of feeds that it takes the form of alone; `notes`
    say which feeds were left out.
    """

    references: tuple[ReferenceOutputs, ...]
    replies: tuple[ArtifactOutputs, ...]
    precision: Precision
    judge_on: JudgeOn
    loose: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()

    def plus(self, reference: ReferenceOutputs, reply: ArtifactOutputs) -> Evidence:
        """With one feed more."""
        return replace(
            self,
            references=(*self.references, reference),
            replies=(*self.replies, reply),
        )

    def of(self, pairs: Sequence[tuple[ReferenceOutputs, ArtifactOutputs]]) -> Evidence:
        """The same of these feeds alone."""
        references, replies = _split_pairs(pairs)
        return replace(self, references=references, replies=replies)

    @property
    def pairs(self) -> list[tuple[ReferenceOutputs, ArtifactOutputs]]:
        """Each feed with its reply."""
        return list(zip(self.references, self.replies, strict=True))

    def verdict(self) -> Verdict:
        """Judge: on all feeds in FP32, on fewer in lower precisions (see `FEED_RULES`)."""
        apart = beyond_feeds(self.references, self.precision)
        near = [p for p in self.pairs if p[0].feed.kind != WIDE and p[0].feed.name not in apart]
        measured = self.judge_on(*_split_pairs(near))
        return decide(measured, (rule(self, measured) for rule in FEED_RULES))

    def judge(self) -> JudgedEvidence:
        """Judge, for further rules."""
        return JudgedEvidence(evidence=self, measured=self.verdict())

    def wide_faults(self) -> tuple[str, ...]:
        """What is wrong on feeds of wide integers, each judged by itself."""
        return tuple(one.reason for one in map(self.judge_alone, self.wide_pairs) if not one.passed)

    @property
    def wide_pairs(self) -> list[tuple[ReferenceOutputs, ArtifactOutputs]]:
        """Each feed of wide integers with its reply."""
        return [pair for pair in self.pairs if pair[0].feed.kind == WIDE]

    def judge_alone(self, pair: tuple[ReferenceOutputs, ArtifactOutputs]) -> Verdict:
        """Judge one feed of wide integers: the scale of others says nothing of it."""
        measured = self.judge_on(*_split_pairs([pair]))
        reference, reply = pair
        if reply.outputs is not None:
            return measured
        why = f"refused feed {describe_named_feed(reference.feed)}: {' '.join(reply.error.split())}"
        fault = Reason(code=ReasonCode.FEED_REFUSED, text=why, fault=True, feed=reference.feed.name)
        return replace(measured, state=State.FAILED, reasons=(fault,))

    def find_failed(self) -> frozenset[str]:
        """The feeds that count and on which an output is beyond its limits."""
        outputs = self.verdict().outputs
        beside = {name for name, found in self.judge_beside_masks().items() if not found.passed}
        return frozenset(o.feed for o in outputs if not o.passed and not o.loose) | beside

    def judge_beside_masks(self) -> dict[str, Verdict]:
        """The verdicts on the rows beside those that a mask hides, by the name of the feed.

        In lower precisions a channel is judged over all feeds: on one alone it may be near zero.
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
            verdict = self.judge_on(*_split_pairs([shown]))
            if self.precision is Precision.FP32 or not all(one.passed for one in verdict.outputs):
                found[reference.feed.name] = verdict
        return found


@dataclass(frozen=True, kw_only=True)
class JudgedEvidence(Judgment):
    """Evidence, the verdict on it, and what the rules have added so far."""

    evidence: Evidence

    def use_judgment(self, other: JudgedEvidence) -> JudgedEvidence:
        """Return this judgment on other evidence: its measures, and the rulings of both."""
        return replace(other, rulings=(*self.rulings, *other.rulings))

    @property
    def without_evidence(self) -> Judgment:
        """The judgment alone: evidence holds the outputs of all feeds."""
        return Judgment(measured=self.measured, rulings=self.rulings)


def _check_equal_rows(evidence: Evidence, measured: Verdict) -> Ruling:
    """Reject rows that differ and should be equal."""
    faults = [
        fault
        for reference, reply in evidence.pairs
        if reference.feed.name == REPEATED and reference.feed.name not in evidence.loose
        for fault in find_unequal_rows(reference, reply, measured.tolerance)
    ]
    return Ruling.fault(ReasonCode.EQUAL_ROWS_DIFFER, *faults)


def _check_beyond(evidence: Evidence, measured: Verdict) -> Ruling:
    """Report what is wrong beyond the declared values, and behind masks that are 0 in front.

    In FP32 it rejects the artifact where the mask shows. Attention leaves the other positions
    undefined, values beyond the range may overflow in 16 bits, and 8-bit scales do not reach there.
    """
    del measured
    apart = beyond_feeds(evidence.references, evidence.precision)
    far = [p for p in evidence.pairs if p[0].feed.name in apart and p[0].feed.kind != WIDE]
    if not far:
        return Ruling()
    found = evidence.judge_on(*_split_pairs(far))
    faults = _faults_where_shown(far, found) if evidence.precision is Precision.FP32 else ()
    return replace(
        Ruling.fault(ReasonCode.OUTPUT_DIFFERS, *reversed([*faults])),
        feeds=found.feeds,
        outputs=tuple(map(_without_measures, found.outputs)),
        notes=tuple(_beyond_notes(far, found, evidence.precision)),
    )


def _check_wide(evidence: Evidence, measured: Verdict) -> Ruling:
    """Judge each feed of wide integers by itself."""
    del measured
    found = list(map(evidence.judge_alone, evidence.wide_pairs))
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


def _check_beside_masks(evidence: Evidence, measured: Verdict) -> Ruling:
    """Reject what is wrong beside a row that a mask hides, in the other rows."""
    del measured
    wrong = [one.reason for one in evidence.judge_beside_masks().values() if not one.passed]
    return Ruling.fault(ReasonCode.BESIDE_MASK, *reversed(wrong))


def _note_left_out(evidence: Evidence, measured: Verdict) -> Ruling:
    """Name the feeds that were left out."""
    del measured
    return Ruling(notes=evidence.notes)


FEED_RULES: tuple[Callable[[Evidence, Verdict], Ruling], ...] = (
    _check_equal_rows,
    _check_beyond,
    _check_wide,
    _check_beside_masks,
    _note_left_out,
)


def _faults_where_shown(
    far: Sequence[tuple[ReferenceOutputs, ArtifactOutputs]], verdict: Verdict
) -> Iterator[str]:
    """What is wrong in positions that a mask shows, where eager answers in finite numbers."""
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
    """Judge again where eager's luck may have rejected it: with float64, then with more draws.

    Once the feeds that were over are within, channels may be over that are pooled over all feeds:
    those are looked at in the same way.
    Feeds on which eager itself is none are left out, where the artifact failed there; none that
    takes another arm of a branch on data: there it is the arm that noise moves, and what was
    captured may have no other.
    """
    evidence, verdict = judged.evidence, judged.measured
    unstable = unstable_feeds(evidence.references, verdict, eager)
    if unstable and (unstable := _find_undecided_feeds(unstable, eager)):
        stable = [pair for pair in evidence.pairs if pair[0].feed.name not in unstable]
        evidence = replace(evidence.of(stable), notes=(*evidence.notes, *unstable.values()))
        verdict = evidence.verdict()
    for _ in range(_MAX_REDRAWS):
        if not (feeds := find_doubtful_feeds(verdict)):
            break
        old = evidence.references
        known = any(one.exact is not None for one in old)
        references = add_exact(old, feeds, eager) if known else old
        if all(new is one for new, one in zip(references, old, strict=True)):
            references = add_noise_draws(old, feeds, eager)
        evidence = replace(evidence, references=references)
        verdict = evidence.verdict()
    return replace(judged, evidence=evidence, measured=verdict)


def _find_undecided_feeds(unstable: Mapping[str, str], eager: EagerReference) -> dict[str, str]:
    """Those of the feeds that go through the model as the one does that is captured."""
    watched = branch_coverage(eager).watched
    if watched.incomplete:
        return {}
    others = {feed for one in watched.found for feed in one.others}
    return {feed: note for feed, note in unstable.items() if feed not in others}


def beyond_feeds(references: Sequence[ReferenceOutputs], precision: Precision) -> frozenset[str]:
    """The feeds of which an artifact of that precision has only its form judged, as beyond."""
    return frozenset(
        one.feed.name
        for one in references
        if one.feed.kind == "mask" or (one.feed.beyond and precision is not Precision.FP32)
    )


def reply_to(runner: Runner, reference: ReferenceOutputs) -> ArtifactOutputs:
    """The artifact's answer to one feed, or why it refuses."""
    try:
        return ArtifactOutputs(outputs=runner.run(reference.feed.arrays))
    except RunnerError as error:
        return ArtifactOutputs(outputs=None, error=error.message)


def _split_pairs(
    pairs: Sequence[tuple[ReferenceOutputs, ArtifactOutputs]],
) -> tuple[tuple[ReferenceOutputs, ...], tuple[ArtifactOutputs, ...]]:
    return tuple(one for one, _ in pairs), tuple(reply for _, reply in pairs)


def _without_measures(output: OutputVerdict) -> OutputVerdict:
    """The measures of a feed that does not count; what is wrong is kept as a reason alone."""
    reason = f"does not count: {output.reason}" if output.reason else ""
    return replace(output, passed=True, reason=reason, loose=True, form="", form_kind="")


def _beyond_notes(
    far: Sequence[tuple[ReferenceOutputs, ArtifactOutputs]], verdict: Verdict, precision: Precision
) -> Iterator[str]:
    """One line for what each feed did, the worst output of each.

    That 8-bit scales do not reach beyond what they were calibrated for is no news.
    """
    self_evident = precision is Precision.INT8
    least = verdict.tolerance.min_sqnr
    behind: dict[bool | None, list[str]] = {}  # by whether they differ in masked rows alone
    for reference, reply in far:
        masked = reference.feed.kind == "mask"
        why = _UNDEFINED if masked else "whose values lie beyond what is declared"
        where = f"on {describe_named_feed(reference.feed)}, {why}"
        mine = [one for one in verdict.outputs if one.feed == reference.feed.name]
        lost = [one for one in mine if one.nonfinite_artifact > one.nonfinite_eager]
        wrong = [one for one in mine if not one.passed]
        noisy = [one for one in mine if one.sqnr is not None and one.sqnr < least]
        if reply.outputs is None:
            yield f"refuses to run {where}: {' '.join(reply.error.split())}"
        elif lost:
            yield f"overflows {where}: output {lost[0].output!r} has NaN or Inf"
        elif masked and (wrong or noisy):
            apart = [one.output for one in mine if one in wrong or one in noisy]
            alone = differs_behind_masks(reference, reply, verdict.tolerance, apart)
            behind.setdefault(alone, []).append(reference.feed.name)
        elif wrong:
            yield f"wrong {where}: output {wrong[0].output!r}: {wrong[0].reason}"
        elif noisy and not self_evident:
            worst = min(noisy, key=lambda one: one.sqnr or 0.0)
            yield f"SQNR {worst.sqnr:.1f} dB {where}: output {worst.output!r}"
    for alone, names in behind.items():
        yield f"differs from eager on {', '.join(names)}{_MASKED_SUFFIX[alone]}"
