"""Runs a converted model on every reference feed and has it judged."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..converters.registry import deferred
from ..core.contract import Branch, Runner, Target
from ..core.errors import RunnerError
from ..core.precision import Precision
from ..core.signature import Signature
from ..core.verdict import Verdict
from ..validators.judge import Reference, Reply, judge
from .float64 import float64_notes, with_float64
from .held_out import loose_feeds, notes_on
from .order import Judging
from .stage import Stage
from .undecided import with_undecided

if TYPE_CHECKING:
    from .subject import Subject


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A model file to be judged, under the name its verdict will carry.

    `precision` says within what; `settings` are options that only its format has.
    """

    name: str
    target: Target
    precision: Precision
    path: Path
    settings: Mapping[str, str] = field(default_factory=dict)

    def open(self, device: str, signature: Signature) -> Runner:
        """Open it in its format's runtime."""
        special = deferred(self.target)
        if special is None:
            return self.target.open_runner(self.path, device, signature)
        return special.open_runner(self.path, device, signature, self.settings)


def prove(
    candidate: Candidate,
    subject: Subject,
    judging: Judging,
    stage: Stage,
    *,
    held_out: tuple[Reference, ...] = (),
) -> Verdict:
    """Open the candidate, run all feeds first, judge afterwards.

    Where there are `held_out` samples of a calibration, its values are judged on them and on the
    user's own sample; on drawn feeds, which it was not calibrated for, only its form is.

    Raises:
        RunnerError: the runtime would not open the model.
        MissingError: the device is not here.
    """
    title = f"validate {candidate.name}"
    tolerance = judging.tolerance_for(candidate.precision)
    references = (*subject.references, *held_out)
    if tolerance.floor_factor is not None:
        references = with_float64(references, subject, stage)
    with stage.step(title, log=candidate.name.replace("/", "-")) as clock:
        replies: list[Reply] = []
        device = judging.device_for(candidate.target)
        with candidate.open(device, subject.signature) as runner:
            taken = runner.inputs
            for done, reference in enumerate(references, start=1):
                try:
                    replies.append(Reply(outputs=runner.run(reference.feed.arrays)))
                except RunnerError as error:
                    replies.append(Reply(outputs=None, error=error.message))
                stage.advance(title, done, len(references))
        verdict = judge(
            artifact=candidate.name,
            references=references,
            replies=with_undecided(references, replies, candidate.precision, subject),
            tolerance=tolerance,
            device=device,
            artifact_inputs=taken,
            signature=subject.signature,
            loose=loose_feeds(subject, held_out),
            by_channel=candidate.precision is not Precision.INT8,
        )
        notes = (*float64_notes(subject, tolerance), *verdict.notes, *notes_on(verdict, held_out))
        verdict = replace(verdict, notes=notes)
        clock.detail, clock.passed = str(verdict.state), verdict.passed
    return replace(verdict, seconds=clock.seconds)


@dataclass(frozen=True, kw_only=True)
class Frozen:
    """A branch that a trace froze, and the feeds that take another arm than the traced one."""

    branch: Branch
    others: tuple[str, ...]

    @property
    def place(self) -> str:
        """The branch's file and line, as short as it can be told."""
        return _short(self.branch)


def frozen_arms(subject: Subject, branches: Sequence[Branch]) -> tuple[Frozen, ...]:
    """Which feeds take another arm of a frozen branch than the feed that was traced.

    Measured, not guessed: eager runs again under a line tracer.
    """
    if not branches:
        return ()
    traced = subject.eager.arms(subject.example, branches)
    ways = [
        (reference.feed.name, subject.eager.arms(reference.feed.arrays, branches))
        for reference in subject.references
    ]
    return tuple(
        Frozen(
            branch=branch, others=tuple(name for name, way in ways if way[index] != traced[index])
        )
        for index, branch in enumerate(branches)
    )


def tell_frozen(frozen: Sequence[Frozen]) -> tuple[str, ...]:
    """The frozen branches in words: those whose other arm a feed took, then the untested."""
    lines = [
        f"the trace froze the branch at {one.place}; on its other arm: {', '.join(one.others)}"
        for one in frozen
        if one.others
    ]
    untested = [one.place for one in frozen if not one.others]
    if untested:
        many = "branches" if len(untested) > 1 else "the branch"
        lines.append(f"the trace froze {many} at {', '.join(untested)}; no feed took another arm")
    return tuple(lines)


def _short(branch: Branch) -> str:
    """The place relative to the current folder or to the installed packages, if it lies there."""
    path = Path(branch.file)
    for root in (Path.cwd(), *map(Path, sys.path)):
        if root.is_absolute() and path.is_relative_to(root):
            return f"{path.relative_to(root).as_posix()}:{branch.line}"
    return f"{path}:{branch.line}"
