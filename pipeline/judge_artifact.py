"""Runs a converted model on every reference feed and judges it.

Also as its runtime runs it by default.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ..core.contract import (
    Advance,
    Deferred,
    Feed,
    Native,
    Outputs,
    Runner,
    Target,
    Weighted,
    no_progress,
)
from ..core.errors import ModelcError
from ..core.findings import SIZED
from ..core.kinds import Precision, ReasonCode
from ..core.signature import Signature
from ..core.target_extensions import Carrying, SelfTuned
from ..core.verdict import DefaultRun, State, Tolerance, Verdict
from ..validators.feeds import SAMPLE
from ..validators.judge import ArtifactOutputs, ReferenceOutputs, judge
from ..validators.model_identity import find_altered_weights
from ..validators.tolerance import TOLERANCES
from .eager_reference import EagerReference
from .extra_sizes import find_rounding_origins, run_sweep
from .feed_search import search_worst_feed
from .float64_reference import add_float64, note_missing_float64
from .held_out import loose_feeds, note_held_out
from .order import Judging
from .reply_evidence import Evidence, beyond_feeds, reply_to
from .restrict_values import restrict_inputs, restrict_values
from .rounding_ties import judge_with_ties, mark_undecided_replies
from .run_progress import Progress
from .worst_feed import add_search_record, save_worst_feed

if TYPE_CHECKING:
    from .attempt import Trial
    from .plan import Step
    from .run_context import RunContext


_POSITION = re.compile(r"output(\.\d+)*")  # what modelc calls outputs that have no name


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A model file to be judged, under the name its verdict will carry.

    `precision` says within what; `settings` are options that only its format has. `aside` is a
    folder for its worst feed; None keeps none. `outputs` are eager's names for those of a file that
    has other ones, in its order.
    """

    name: str
    target: Target
    precision: Precision
    path: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    aside: Path | None = None
    outputs: tuple[str, ...] = ()

    @property
    def log(self) -> str:
        """The name of its log."""
        return self.name.replace("/", "-")

    def open(self, device: str, signature: Signature) -> Runner:
        """Open it in its format's runtime."""
        target = self.target
        if isinstance(target, Deferred | Native):
            runner = target.open_runner(self.path, device, signature, self.settings)
        else:
            runner = target.open_runner(self.path, device, signature)
        return _RenamingRunner(runner, self.outputs) if self.outputs else runner


class _RenamingRunner:
    """Runs a file under eager's names for its outputs."""

    def __init__(self, runner: Runner, names: tuple[str, ...]) -> None:
        self.inputs = runner.inputs
        self._runner, self._names = runner, names

    def run(self, feed: Feed) -> Outputs:
        """One feed, as the file's own runner gives it."""
        outputs = self._runner.run(feed)
        return dict(zip(self._names, outputs.values(), strict=True))

    def __enter__(self) -> Self:
        self._runner.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._runner.__exit__(kind, error, trace)


def match_outputs(candidate: Candidate, signature: Signature, progress: Progress) -> Candidate:
    """The file of another tool under eager's names, where these are only positions.

    A module that returns a tensor or a tuple names no output: `output.0` is modelc's name, and a
    file that modelc made has it.
    """
    target, ours = candidate.target, signature.outputs
    if not all(map(_POSITION.fullmatch, ours)):
        return candidate
    try:
        if isinstance(target, Carrying) and target.read_metadata(candidate.path):
            return candidate
        found = target.inspect(candidate.path).outputs
    except ModelcError:
        return candidate  # running it says what is wrong with it
    theirs = tuple(one.name for one in found)
    if len(theirs) != len(ours) or {*theirs} & {*ours}:
        return candidate
    progress.note(f"outputs are compared in their order: {', '.join(theirs)} as {', '.join(ours)}")
    return replace(candidate, outputs=ours)


def judge_candidate(  # noqa: PLR0913 - what is judged, on what, and how
    candidate: Candidate,
    eager: EagerReference,
    judging: Judging,
    progress: Progress,
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
    case = JudgeCase.of(candidate, eager, judging, progress, held_out=held_out)
    tolerance, references = case.tolerance, case.references
    with progress.step(title, log=candidate.log, attempt=True, runs_artifact=True) as clock:
        eager.model.release_pages()  # the runtime holds weights of its own now
        asked = case.ask(lambda done, total: progress.advance(title, done, total))
        eager.model.release_pages()  # and has given them back
        evidence, verdict = restrict_values(
            *judge_with_ties(asked, eager), eager, case.open, narrow=restrict
        )
        evidence, verdict = _judge_sweep(evidence, verdict, case, progress)
        notes = note_held_out(verdict, held_out, beyond_feeds(references, candidate.precision))
        notes = (*note_missing_float64(eager, tolerance), *verdict.notes, *notes)
        verdict = _check_weights(replace(verdict, notes=notes), candidate, eager)
        verdict = add_default_run(verdict, candidate, evidence, eager)
        clock.detail, clock.passed = str(verdict.state), verdict.passed
    verdict = replace(verdict, seconds=clock.seconds)
    found = search_worst_feed(
        evidence,
        verdict,
        opened=lambda: candidate.open(case.device, eager.signature),
        judging=judging,
        eager=eager,
        progress=progress,
    )
    if candidate.aside is None:
        return found.verdict
    return add_search_record(save_worst_feed(found.verdict, found.evidence, candidate.aside), found)


@dataclass(frozen=True, kw_only=True)
class JudgeCase:
    """A candidate, the feeds with eager's answers, and what it is held to on them."""

    candidate: Candidate
    eager: EagerReference
    references: tuple[ReferenceOutputs, ...]
    tolerance: Tolerance
    device: str
    loose: frozenset[str]

    @classmethod
    def of(
        cls,
        candidate: Candidate,
        eager: EagerReference,
        judging: Judging,
        progress: Progress,
        *,
        held_out: tuple[ReferenceOutputs, ...] = (),
    ) -> JudgeCase:
        """The case of a candidate, with eager in float64 where it is held to that."""
        tolerance = judging.tolerance_for(candidate.precision)
        references = (*eager.references, *held_out)
        if tolerance.floor_factor is not None:
            references = add_float64(references, eager, progress)
        beyond = beyond_feeds(references, candidate.precision)
        return cls(
            candidate=candidate,
            eager=eager,
            references=references,
            tolerance=tolerance,
            device=judging.device_for(candidate.target),
            loose=loose_feeds(eager, held_out) | beyond,
        )

    def open(self) -> Runner:
        """Open the candidate in its format's runtime."""
        return self.candidate.open(self.device, self.eager.signature)

    def ask(self, advance: Advance = no_progress) -> Evidence:
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
                signature=self.eager.signature,
                loose=self.loose,
                by_channel=precision is not Precision.INT8,
            )

        return Evidence(
            references=self.references,
            replies=tuple(mark_undecided_replies(self.references, replies, precision, self.eager)),
            precision=precision,
            judge_on=judge_on,
            loose=self.loose,
        )


def _judge_sweep(
    evidence: Evidence, verdict: Verdict, case: JudgeCase, progress: Progress
) -> tuple[Evidence, Verdict]:
    """The verdict of an FP32 artifact with what a sweep over sizes and integers finds wrong."""
    if not verdict.passed or case.candidate.precision is not Precision.FP32:
        return evidence, verdict
    eager = case.eager
    if not find_rounding_origins(evidence, eager):
        return evidence, verdict
    inputs = restrict_inputs(eager.signature.inputs, verdict.restricted_values)
    within = replace(eager, signature=replace(eager.signature, inputs=inputs))
    with case.open() as runner:
        found = run_sweep(evidence, within, runner)
    if not found.differing:
        return evidence, verdict
    known = len(evidence.references)
    fresh = found.evidence.references[known:]
    if case.tolerance.floor_factor is not None:
        fresh = add_float64(fresh, eager, progress)
    references = (*evidence.references, *fresh)
    replies = mark_undecided_replies(
        references, found.evidence.replies, case.candidate.precision, eager
    )
    asked = replace(found.evidence, references=references, replies=tuple(replies))
    swept, now = judge_with_ties(asked, eager)
    text = f"{found.differing} of {found.count} sizes and values that were swept differ"
    if now.passed:
        text += ", by what ties or noise explain"
        return evidence, replace(verdict, notes=(*verdict.notes, text))
    return swept, replace(now, notes=(*now.notes, text))


def _check_weights(verdict: Verdict, candidate: Candidate, eager: EagerReference) -> Verdict:
    """The verdict, refused where an FP32 artifact holds a weight with some elements altered."""
    target = candidate.target
    if candidate.precision is not Precision.FP32 or not isinstance(target, Weighted):
        return verdict
    model, feed = eager.model, eager.references[0].feed.arrays
    faults = find_altered_weights(
        model.weights(),
        target.weights(candidate.path),
        computed=lambda test: model.computes(feed, test),
    )
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return (
        verdict.with_fault(ReasonCode.WEIGHT_ALTERED, f"{faults[0]}{more}") if faults else verdict
    )


# By whose limits a runtime's own precision is judged: TF32 has as many digits as FP16.
_PRECISION_OF_LIMITS = {"bf16": Precision.BF16, "fp16": Precision.FP16, "tf32": Precision.FP16}
_MAX_DEFAULT_FEEDS = 8  # feeds: the figure is of roundoff, which differs little between them
_LOWER_PRECISION_DB = 1.0  # dB below the figure as judged, from which on it is news


def add_default_run(
    verdict: Verdict, candidate: Candidate, evidence: Evidence, eager: EagerReference
) -> Verdict:
    """The verdict with what the artifact gives by default, where its runtime computes in less then.

    It does not decide: who opens the artifact as it was judged gets what was judged. The figure and
    the line of code that does so are noted.
    """
    target = candidate.target
    if not verdict.passed or not isinstance(target, SelfTuned):
        return verdict
    opened = target.open_by_default(candidate.path, verdict.device, eager.signature)
    counted = [one for one in evidence.references if _is_compared(one, evidence)][
        :_MAX_DEFAULT_FEEDS
    ]
    if opened is None or not counted:
        return verdict
    with opened.runner as runner:
        replies = [reply_to(runner, one) for one in counted]
        inputs = runner.inputs
    limits = TOLERANCES[_PRECISION_OF_LIMITS[opened.compute]]
    found = judge(
        artifact=verdict.artifact,
        references=counted,
        replies=replies,
        tolerance=limits,
        device=verdict.device,
        artifact_inputs=inputs,
        signature=eager.signature,
        by_channel=False,
    )
    run = DefaultRun(
        compute=opened.compute,
        state=found.state,
        sqnr=found.sqnr,
        max_abs=found.max_abs,
        advice=opened.advice.replace("PATH", candidate.path.name),
        reason=found.reason,
    )
    return replace(
        verdict, by_default=run, notes=(*verdict.notes, *_default_run_notes(run, verdict))
    )


def _is_compared(reference: ReferenceOutputs, evidence: Evidence) -> bool:
    feed = reference.feed
    return feed.kind in (*SIZED, SAMPLE) and feed.name not in evidence.loose


def _default_run_notes(run: DefaultRun, verdict: Verdict) -> tuple[str, ...]:
    """One line where it is less than what was judged."""
    if run.sqnr is None or (
        verdict.sqnr is not None and run.sqnr > verdict.sqnr - _LOWER_PRECISION_DB
    ):
        return () if run.state is State.PASSED else (_default_run_note(run, run.reason),)
    beyond = "" if run.state is State.PASSED else f", beyond the limits of {run.compute}"
    return (_default_run_note(run, f"SQNR {run.sqnr:.1f} dB{beyond}"),)


def _default_run_note(run: DefaultRun, told: str) -> str:
    return f"by its runtime's default it computes in {run.compute}: {told}; as judged: {run.advice}"


def trial_candidate(step: Step, trial: Trial, run: RunContext) -> Candidate:
    """The file of a trial, to be opened once more."""
    return Candidate(
        name=step.name,
        target=step.target,
        precision=trial.converted.judged_as or step.wanted.precision,
        path=trial.workplace / trial.files[0].name,
        settings=dict(run.order.settings),
    )
