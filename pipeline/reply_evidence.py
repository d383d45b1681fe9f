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
        references, replies = _split_by_failure(pairs)
        return replace(self, references=references, replies=replies)

    @property
    def pairs(self) -> list[tuple[ReferenceOutputs, ArtifactOutputs]]:
        """Each feed with its reply."""
        return list(zip(self.references, self.replies, strict=True))

    def verdict(self) -> Verdict:
        """Judge: on all feeds in FP32, on less in less.

        Of masks that are 0 in front, what they show counts in FP32, and the rest is told: attention
        leaves it undefined. What lies beyond may well overflow in 16 bits, and 8-bit scales do not
        reach there. It is run all the same, and what is wrong there is said.
        """
        verdict = self._with_empty(self._with_wide(self._without_wide()))
        return replace(verdict, notes=(*verdict.notes, *self.notes))

    def wide_faults(self) -> tuple[str, ...]:
        """What is wrong on feeds of wide integers, each judged by itself."""
        return tuple(one.reason for one in map(self._judge_alone, self._wide) if not one.passed)

    @property
    def _wide(self) -> list[tuple[ReferenceOutputs, ArtifactOutputs]]:
        return [pair for pair in self.pairs if pair[0].feed.kind == WIDE]

    def _judge_alone(self, pair: tuple[ReferenceOutputs, ArtifactOutputs]) -> Verdict:
        """The verdict on one feed of wide integers: the scale of others says nothing of it."""
        verdict = self.judge_on(*_split_by_failure([pair]))
        reference, reply = pair
        if reply.outputs is not None:
            return verdict
        why = f"refused feed {describe_named_feed(reference.feed)}: {' '.join(reply.error.split())}"
        fault = Reason(code=ReasonCode.FEED_REFUSED, text=why, fault=True, feed=reference.feed.name)
        return replace(verdict, state=State.FAILED, reasons=(fault,))

    def _with_wide(self, verdict: Verdict) -> Verdict:
        """The verdict with those on feeds of wide integers."""
        found = list(map(self._judge_alone, self._wide))
        wrong = [one for one in found if not one.passed]
        reasons = wrong[0].reasons if wrong else ()
        if len(wrong) > 1:
            last = replace(reasons[-1], text=f"{reasons[-1].text} (and {len(wrong) - 1} more)")
            reasons = (*reasons[:-1], last)
        return replace(
            verdict,
            state=max((verdict.state, *(one.state for one in wrong)), key=_rank_badness),
            reasons=(*verdict.reasons, *reasons),
            feeds=(*verdict.feeds, *(name for one in found for name in one.feeds)),
            outputs=(
                *verdict.outputs,
                *(replace(output, apart=True) for one in found for output in one.outputs),
            ),
        )

    def _with_empty(self, verdict: Verdict) -> Verdict:
        """The verdict with what is wrong beside a row that a mask hides, in the other rows.

        Of an artifact that is held to samples alone, drawn feeds say nothing there either.
        """
        for found in self._beside_empty().values():
            if not found.passed:
                verdict = verdict.with_fault(ReasonCode.BESIDE_MASK, found.reason)
        return verdict

    def find_failed(self) -> frozenset[str]:
        """The feeds that count and on which an output is beyond its limits."""
        outputs = self.verdict().outputs
        beside = {name for name, found in self._beside_empty().items() if not found.passed}
        return frozenset(o.feed for o in outputs if not o.passed and not o.loose) | beside

    def _beside_empty(self) -> dict[str, Verdict]:
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
            verdict = self.judge_on(*_split_by_failure([shown]))
            if self.precision is Precision.FP32 or not all(one.passed for one in verdict.outputs):
                found[reference.feed.name] = verdict
        return found

    def _without_wide(self) -> Verdict:
        pairs = [pair for pair in self.pairs if pair[0].feed.kind != WIDE]
        if len(pairs) < len(self.references):
            return self.of(pairs)._without_wide()
        apart = beyond_feeds(self.references, self.precision)
        far = [pair for pair in self.pairs if pair[0].feed.name in apart]
        if not far:
            return self._with_rows(self.judge_on(self.references, self.replies))
        near = [pair for pair in self.pairs if pair[0].feed.name not in apart]
        verdict = self._with_rows(self.judge_on(*_split_by_failure(near)))
        beyond = self.judge_on(*_split_by_failure(far))
        if self.precision is Precision.FP32:
            for fault in _faults_where_shown(far, beyond):
                verdict = verdict.with_fault(ReasonCode.OUTPUT_DIFFERS, fault)
        return replace(
            verdict,
            feeds=(*verdict.feeds, *beyond.feeds),
            outputs=(*verdict.outputs, *map(_without_measures, beyond.outputs)),
            notes=(*verdict.notes, *_beyond_notes(far, beyond, self.precision)),
        )

    def _with_rows(self, verdict: Verdict) -> Verdict:
        """The verdict with the faults of rows that should be equal."""
        faults = [
            fault
            for reference, reply in self.pairs
            if reference.feed.name == REPEATED and reference.feed.name not in self.loose
            for fault in find_unequal_rows(reference, reply, verdict.tolerance)
        ]
        return verdict.with_fault(ReasonCode.EQUAL_ROWS_DIFFER, *faults) if faults else verdict


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


def _rank_badness(state: State) -> int:
    return (State.PASSED, State.FAILED, State.ERROR).index(state)


def redraw_and_judge(evidence: Evidence, eager: EagerReference) -> tuple[Evidence, Verdict]:
    """The verdict; where eager's luck may have refused it, that with float64, then more draws.

    Once the feeds that were over are within, channels may be over that are pooled over all feeds:
    those are looked at in the same way.
    Feeds on which eager itself is none are left out, where the artifact failed there; none that
    takes another arm of a branch on data: there it is the arm that noise moves, and what was
    captured may have no other.
    """
    verdict = evidence.verdict()
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
    return evidence, verdict


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


def _split_by_failure(
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
