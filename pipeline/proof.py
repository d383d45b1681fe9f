"""Runs a converted model on every reference feed and has it judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..core.contract import Advance, Deferred, Native, Runner, Target, Weighted, unheard
from ..core.precision import Precision
from ..core.signature import Signature
from ..core.verdict import ReasonCode, Tolerance, Verdict
from ..validators.judge import ArtifactOutputs, ReferenceOutputs, judge
from ..validators.model_identity import find_altered_weights
from .beyond import Evidence, beyond_feeds, reply_to
from .default_run import add_default_run
from .float64 import add_float64, note_missing_float64
from .held_out import loose_feeds, note_held_out
from .order import Judging
from .restricting import restrict_inputs, restrict_values
from .searching import search_worst_feed
from .stage import Progress
from .subject import EagerReference
from .sweep import find_rounding_origins, run_sweep
from .ties import judge_with_ties
from .undecided import mark_undecided_replies
from .worst import add_search_record, save_worst_feed


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A model file to be judged, under the name its verdict will carry.

    `precision` says within what; `settings` are options that only its format has. `aside` is a
    folder for its worst feed; None keeps none.
    """

    name: str
    target: Target
    precision: Precision
    path: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    aside: Path | None = None

    @property
    def log(self) -> str:
        """The name of its log."""
        return self.name.replace("/", "-")

    def open(self, device: str, signature: Signature) -> Runner:
        """Open it in its format's runtime."""
        target = self.target
        if isinstance(target, Deferred | Native):
            return target.open_runner(self.path, device, signature, self.settings)
        return target.open_runner(self.path, device, signature)


def judge_candidate(  # noqa: PLR0913 - what is judged, on what, and how
    candidate: Candidate,
    subject: EagerReference,
    judging: Judging,
    stage: Progress,
    *,
    held_out: tuple[ReferenceOutputs, ...] = (),
    restrict: bool = False,
) -> Verdict:
    """Open the candidate, run all feeds first, judge afterwards; then search, if that is asked.

    Where there are `held_out` samples of a calibration, its values are judged on them and on the
    user's own sample; on drawn feeds, which it was not calibrated for, only its form is. The
    worst feed is written where the candidate says. With `restrict`, a candidate that is wrong on
    wide integers alone is held to narrower ranges, where modelc chose them.

    Raises:
        RunnerError: the runtime would not open the model.
        MissingError: the device is not here.
    """
    title = f"validate {candidate.name}"
    case = JudgeCase.of(candidate, subject, judging, stage, held_out=held_out)
    tolerance, references = case.tolerance, case.references
    with stage.step(title, log=candidate.log, attempt=True) as clock:
        subject.eager.release_pages()  # the runtime holds weights of its own now
        asked = case.ask(lambda done, total: stage.advance(title, done, total))
        subject.eager.release_pages()  # and has given them back
        evidence, verdict = restrict_values(
            *judge_with_ties(asked, subject), subject, case.open, narrow=restrict
        )
        evidence, verdict = _judge_sweep(evidence, verdict, case, stage)
        notes = note_held_out(verdict, held_out, beyond_feeds(references, candidate.precision))
        notes = (*note_missing_float64(subject, tolerance), *verdict.notes, *notes)
        verdict = _check_weights(replace(verdict, notes=notes), candidate, subject)
        verdict = add_default_run(verdict, candidate, evidence, subject)
        clock.detail, clock.passed = str(verdict.state), verdict.passed
    verdict = replace(verdict, seconds=clock.seconds)
    found = search_worst_feed(
        evidence,
        verdict,
        opened=lambda: candidate.open(case.device, subject.signature),
        judging=judging,
        subject=subject,
        stage=stage,
    )
    if candidate.aside is None:
        return found.verdict
    return add_search_record(save_worst_feed(found.verdict, found.evidence, candidate.aside), found)


@dataclass(frozen=True, kw_only=True)
class JudgeCase:
    """A candidate, the feeds with eager's answers, and what it is held to on them."""

    candidate: Candidate
    subject: EagerReference
    references: tuple[ReferenceOutputs, ...]
    tolerance: Tolerance
    device: str
    loose: frozenset[str]

    @classmethod
    def of(
        cls,
        candidate: Candidate,
        subject: EagerReference,
        judging: Judging,
        stage: Progress,
        *,
        held_out: tuple[ReferenceOutputs, ...] = (),
    ) -> JudgeCase:
        """The case of a candidate, with eager in float64 where it is held to that."""
        tolerance = judging.tolerance_for(candidate.precision)
        references = (*subject.references, *held_out)
        if tolerance.floor_factor is not None:
            references = add_float64(references, subject, stage)
        beyond = beyond_feeds(references, candidate.precision)
        return cls(
            candidate=candidate,
            subject=subject,
            references=references,
            tolerance=tolerance,
            device=judging.device_for(candidate.target),
            loose=loose_feeds(subject, held_out) | beyond,
        )

    def open(self) -> Runner:
        """Open the candidate in its format's runtime."""
        return self.candidate.open(self.device, self.subject.signature)

    def ask(self, advance: Advance = unheard) -> Evidence:
        """Run it on every feed, the smallest first.

        A runtime may keep what it found at its first run: OpenVINO 2026.4 is wrong at all lengths
        after it ran first with one token, and right after it ran first with a sample.
        """
        replies: dict[int, ArtifactOutputs] = {}
        sizes = [sum(a.size for a in one.feed.arrays.values()) for one in self.references]
        smallest = sizes.index(min(sizes))
        numbers = range(len(sizes))
        with self.open() as runner:
            taken = runner.inputs
            for number in (smallest, *(one for one in numbers if one != smallest)):
                replies[number] = reply_to(runner, self.references[number])
                advance(len(replies), len(sizes))
        return self.evidence([replies[number] for number in numbers], taken)

    def evidence(self, replies: Sequence[ArtifactOutputs], taken: Sequence[str]) -> Evidence:
        """What it answered on every feed, given the inputs that it takes."""
        precision = self.candidate.precision

        def judge_on(
            references: Sequence[ReferenceOutputs], replies: Sequence[ArtifactOutputs]
        ) -> Verdict:
            return judge(
                artifact=self.candidate.name,
                references=references,
                replies=replies,
                tolerance=self.tolerance,
                device=self.device,
                artifact_inputs=taken,
                signature=self.subject.signature,
                loose=self.loose,
                by_channel=precision is not Precision.INT8,
            )

        return Evidence(
            references=self.references,
            replies=tuple(
                mark_undecided_replies(self.references, replies, precision, self.subject)
            ),
            precision=precision,
            judge_on=judge_on,
            loose=self.loose,
        )


def _judge_sweep(
    evidence: Evidence, verdict: Verdict, case: JudgeCase, stage: Progress
) -> tuple[Evidence, Verdict]:
    """The verdict of an FP32 artifact with what a sweep over sizes and integers finds wrong."""
    if not verdict.passed or case.candidate.precision is not Precision.FP32:
        return evidence, verdict
    subject = case.subject
    if not find_rounding_origins(evidence, subject):
        return evidence, verdict
    inputs = restrict_inputs(subject.signature.inputs, verdict.restricted_values)
    within = replace(subject, signature=replace(subject.signature, inputs=inputs))
    with case.open() as runner:
        found = run_sweep(evidence, within, runner)
    if not found.differing:
        return evidence, verdict
    known = len(evidence.references)
    fresh = found.evidence.references[known:]
    if case.tolerance.floor_factor is not None:
        fresh = add_float64(fresh, subject, stage)
    references = (*evidence.references, *fresh)
    replies = mark_undecided_replies(
        references, found.evidence.replies, case.candidate.precision, subject
    )
    asked = replace(found.evidence, references=references, replies=tuple(replies))
    swept, now = judge_with_ties(asked, subject)
    text = f"{found.differing} of {found.count} sizes and values that were swept differ"
    if now.passed:
        text += ", by what ties or noise explain"
        return evidence, replace(verdict, notes=(*verdict.notes, text))
    return swept, replace(now, notes=(*now.notes, text))


def _check_weights(verdict: Verdict, candidate: Candidate, subject: EagerReference) -> Verdict:
    """The verdict, refused where an FP32 artifact holds a weight with some elements altered."""
    target = candidate.target
    if candidate.precision is not Precision.FP32 or not isinstance(target, Weighted):
        return verdict
    eager, feed = subject.eager, subject.references[0].feed.arrays
    faults = find_altered_weights(
        eager.weights(),
        target.weights(candidate.path),
        computed=lambda test: eager.computes(feed, test),
    )
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return (
        verdict.with_fault(ReasonCode.WEIGHT_ALTERED, f"{faults[0]}{more}") if faults else verdict
    )
