"""What is judged: a model file, the feeds with eager's outputs, and the rest that rules ask for."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
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
    no_progress,
)
from ..core.domain import Domain
from ..core.errors import ModelcError
from ..core.findings import Accuracy, WorstFeed
from ..core.kinds import Precision
from ..core.records import Latency
from ..core.signature import Signature
from ..core.target_extensions import Carrying
from ..core.verdict import Tolerance, Verdict
from ..validators.judge import ArtifactOutputs, ReferenceOutputs, judge
from .branch_coverage import CaptureEvidence
from .eager_reference import EagerReference
from .float64_reference import add_float64
from .held_out import loose_feeds
from .labelled_accuracy import LabelledFeeds
from .order import Judging
from .reply_evidence import Evidence, beyond_feeds, reply_to
from .rounding_ties import mark_undecided_replies
from .run_progress import Progress

if TYPE_CHECKING:
    from .attempt import Trial
    from .run_context import StepWork


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


@dataclass(frozen=True, kw_only=True)
class JudgeRequest:
    """A candidate to judge, and what the rules need for it; what costs is asked for lazily.

    Args:
        candidate: the file; its worst feed is saved in `candidate.aside`.
        eager: the eager side.
        judging: tolerances, device, search.
        progress: where progress is reported.
        held_out: samples of a calibration that no quantizer saw. Values are judged on them and on
            the user's own sample; on drawn feeds, which the candidate was not calibrated for, only
            their form is.
        restrict: hold a candidate that is wrong on wide integers alone to narrower ranges, where
            modelc chose them.
        until_restricted: ask no further rule then: the candidate is made again for these ranges.
        capture: what is known of how it was captured.
        labelled: labelled data, where accuracy is measured.
        recorded_accuracy: the accuracy on record, by which an unchanged file is held to its gate.
        latency: measures the latency beside the parent's.
        recorded_worst: the worst feed on record.
        notes: further notes.
        sensitive: plant faults in copies of what passed.
        shown: a feed that the figures are of alone.
        states_accuracy: note the accuracy, as no record will hold it.
        domain: what the verdict is a statement about, by the ranges that it was restricted to.
    """

    candidate: Candidate
    eager: EagerReference
    judging: Judging
    progress: Progress
    held_out: tuple[ReferenceOutputs, ...] = ()
    restrict: bool = False
    until_restricted: bool = False
    capture: Callable[[], CaptureEvidence] | None = None
    labelled: LabelledFeeds | None = None
    recorded_accuracy: Accuracy | None = None
    latency: Callable[[], Latency | None] | None = None
    recorded_worst: WorstFeed | None = None
    notes: tuple[str, ...] = ()
    sensitive: bool = False
    shown: str = ""
    states_accuracy: bool = False
    domain: Callable[[Mapping[str, tuple[int, int]]], Domain | None] | None = None

    @cached_property
    def case(self) -> JudgeCase:
        """The candidate on every feed, with eager in float64 where it is held to that."""
        return JudgeCase.of(
            self.candidate, self.eager, self.judging, self.progress, held_out=self.held_out
        )

    @cached_property
    def capture_evidence(self) -> CaptureEvidence | None:
        """What is known of how it was captured; looked at when a rule first asks."""
        return None if self.capture is None else self.capture()


def trial_candidate(work: StepWork, trial: Trial) -> Candidate:
    """The file of a trial, to be opened once more."""
    step = work.step
    return Candidate(
        name=step.name,
        target=step.target,
        precision=trial.converted.judged_as or step.wanted.precision,
        path=trial.workplace / trial.files[0].name,
        settings=dict(work.run.order.settings),
    )
