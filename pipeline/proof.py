"""Runs a converted model on every reference feed and has it judged."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.contract import Branch, Target
from ..core.errors import RunnerError
from ..core.precision import Precision
from ..core.verdict import Verdict
from ..validators.judge import Reply, judge
from ..validators.tolerance import tolerance_for
from .order import Judging
from .stage import Stage

if TYPE_CHECKING:
    from .subject import Subject


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A model file to be judged, under the name its verdict will carry."""

    name: str
    target: Target
    precision: Precision
    path: Path


def prove(candidate: Candidate, subject: Subject, judging: Judging, stage: Stage) -> Verdict:
    """Open the candidate, run all feeds first, judge afterwards.

    Raises:
        RunnerError: the runtime would not open the model.
        MissingError: the device is not here.
    """
    title = f"validate {candidate.name}"
    with stage.step(title, log=candidate.name.replace("/", "-")) as clock:
        replies: list[Reply] = []
        target = candidate.target
        with target.open_runner(candidate.path, judging.device, subject.signature) as runner:
            taken = runner.inputs
            for done, reference in enumerate(subject.references, start=1):
                try:
                    replies.append(Reply(outputs=runner.run(reference.feed.arrays)))
                except RunnerError as error:
                    replies.append(Reply(outputs=None, error=error.message))
                stage.advance(title, done, len(subject.references))
        verdict = judge(
            artifact=candidate.name,
            references=subject.references,
            replies=replies,
            tolerance=tolerance_for(
                candidate.precision,
                atol=judging.atol,
                rtol=judging.rtol,
                min_sqnr=judging.min_sqnr,
            ),
            device=judging.device,
            artifact_inputs=taken,
            signature=subject.signature,
        )
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
