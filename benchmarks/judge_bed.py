"""A model of judge.py: opened, converted and judged as a user's run does it.

Its eager side is opened once more and shared by all measurements of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from modelc.benchmarks.judge_exact import exactly, runs
from modelc.calibration.calibration_options import CalibrationOptions
from modelc.converters.registry import target_named
from modelc.core.contract import Feed, Outputs, Runner
from modelc.core.errors import RunnerError
from modelc.core.events import ignore_events
from modelc.core.kinds import Precision
from modelc.core.manifest import Manifest
from modelc.core.signature import Signature
from modelc.core.verdict import Verdict
from modelc.pipeline import api
from modelc.pipeline.eager_reference import EagerReference, open_reference, read_checkpoint
from modelc.pipeline.judge_case import Candidate, JudgeRequest
from modelc.pipeline.order import Judging, Lowering, Source
from modelc.pipeline.run_progress import Progress
from modelc.pipeline.verdict_rules import judge_candidate
from modelc.tests.nets import zoo

if TYPE_CHECKING:
    from torch import nn

CALIBRATION = CalibrationOptions(source="random", samples=32, hold_out=8)


@dataclass(frozen=True, kw_only=True)
class Bed:
    """One model: what its user would give, its eager side, and what is exact on each feed."""

    name: str
    source: Source
    folder: Path
    stage: Progress
    subject: EagerReference
    exact: tuple[Outputs, ...]

    @property
    def feeds(self) -> list[Feed]:
        """The arrays of each drawn feed."""
        return [reference.feed.arrays for reference in self.subject.references]

    @property
    def module(self) -> nn.Module:
        """The user's module; whoever changes it takes a copy."""
        return self.subject.model.module

    def exports(self, to: Sequence[str], folder: str, *, capture: str = "auto") -> Manifest:
        """What `modelc export --to ...` makes and says."""
        int8 = any(name.endswith(":int8") for name in to)
        return api.export(
            self.source.checkpoint,
            to=to,
            out=self.folder / folder,
            model=self.source.model,
            model_args=self.source.model_args,
            inputs=self.source.inputs,
            capture=capture,
            lowering=Lowering(calibration=CALIBRATION) if int8 else None,
        ).manifest

    def judge_file(self, path: Path, target: str, precision: Precision) -> Judged:
        """The verdict of a run on a model file, and what the file answered."""
        candidate = RecordingCandidate(
            name=path.name, target=target_named(target), precision=precision, path=path
        )
        asked = JudgeRequest(
            candidate=candidate, eager=self.subject, judging=Judging(), progress=self.stage
        )
        verdict = judge_candidate(asked).verdict
        answers = candidate.recorded[: len(self.subject.references)]
        return Judged(verdict=verdict, answers=answers)

    def answers(self, path: Path, target: str) -> list[Outputs]:
        """What a model file answers on each drawn feed."""
        found: list[Outputs] = []
        opened = target_named(target).open_runner(path, "cpu", self.subject.signature)
        with opened as runner:
            for feed in self.feeds:
                try:
                    found.append(runner.run(feed))
                except RunnerError:
                    found.append({})
        return found

    def exactly(self, module: nn.Module, feeds: Sequence[Feed] | None = None) -> list[Outputs]:
        """What an altered copy of the module computes in float64."""
        return exactly(module, self.subject.signature, self.feeds if feeds is None else feeds)

    def eagerly(self, feeds: Sequence[Feed]) -> list[Outputs]:
        """What eager gives on other feeds."""
        return runs(self.module, self.subject.signature, feeds)


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A verdict, and the answers that it is about; one that was rejected is empty."""

    verdict: Verdict
    answers: Sequence[Outputs]


def bed(name: str, folder: Path, *, seed: int = 0, layers: int = 2) -> Bed:
    """Draw the weights, write the checkpoint, open it, run eager and the float64 twin once."""
    place = folder / f"{name}-{seed}-{layers}"
    place.mkdir(parents=True, exist_ok=True)
    source = zoo.checkpoint(name, place, seed=seed, layers=layers)
    stage = Progress(tell=ignore_events, logs=place / "logs")
    subject = open_reference(source, read_checkpoint(source, stage), Judging(), stage)
    feeds = [reference.feed.arrays for reference in subject.references]
    exact = exactly(subject.model.module, subject.signature, feeds)
    return Bed(
        name=name,
        source=source,
        folder=place,
        stage=stage,
        subject=subject,
        exact=tuple(exact),
    )


@dataclass(frozen=True, kw_only=True)
class RecordingCandidate(Candidate):
    """A candidate whose answers are kept, so that the peers' measures are of the very same."""

    recorded: list[Outputs] = field(default_factory=list)

    def open(self, device: str, signature: Signature) -> Runner:
        """Open it, with its outputs recorded."""
        return _RecordingRunner(super().open(device, signature), self.recorded)


class _RecordingRunner:
    """Records what a runner returns."""

    def __init__(self, runner: Runner, recorded: list[Outputs]) -> None:
        self.inputs = runner.inputs
        self._runner, self._recorded = runner, recorded

    def run(self, feed: Feed) -> Outputs:
        """Run one feed; a rejected feed is recorded without outputs."""
        try:
            found = self._runner.run(feed)
        except RunnerError:
            self._recorded.append({})
            raise
        self._recorded.append(found)
        return found

    def __enter__(self) -> _RecordingRunner:
        self._runner.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._runner.__exit__(kind, error, trace)
