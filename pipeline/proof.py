"""Runs a converted model on every reference feed and has it judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..converters.registry import deferred
from ..core.contract import Runner, Target
from ..core.precision import Precision
from ..core.signature import Signature
from ..core.verdict import Verdict
from ..validators.judge import Reference, Reply, judge
from .beyond import Evidence, beyond_of, reply_of
from .float64 import float64_notes, with_float64
from .held_out import loose_feeds, notes_on
from .order import Judging
from .searching import searched
from .stage import Stage
from .undecided import with_undecided
from .worst import keep_worst, with_search

if TYPE_CHECKING:
    from .subject import Subject


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
    """Open the candidate, run all feeds first, judge afterwards; then search, if that is asked.

    Where there are `held_out` samples of a calibration, its values are judged on them and on the
    user's own sample; on drawn feeds, which it was not calibrated for, only its form is. The
    worst feed is written where the candidate says.

    Raises:
        RunnerError: the runtime would not open the model.
        MissingError: the device is not here.
    """
    title = f"validate {candidate.name}"
    tolerance = judging.tolerance_for(candidate.precision)
    references = (*subject.references, *held_out)
    if tolerance.floor_factor is not None:
        references = with_float64(references, subject, stage)
    device = judging.device_for(candidate.target)
    with stage.step(title, log=candidate.name.replace("/", "-")) as clock:
        replies: list[Reply] = []
        with candidate.open(device, subject.signature) as runner:
            taken = runner.inputs
            for done, reference in enumerate(references, start=1):
                replies.append(reply_of(runner, reference))
                stage.advance(title, done, len(references))

        def judge_on(references: Sequence[Reference], replies: Sequence[Reply]) -> Verdict:
            return judge(
                artifact=candidate.name,
                references=references,
                replies=replies,
                tolerance=tolerance,
                device=device,
                artifact_inputs=taken,
                signature=subject.signature,
                loose=loose,
                by_channel=candidate.precision is not Precision.INT8,
            )

        loose = loose_feeds(subject, held_out) | beyond_of(references, candidate.precision)
        evidence = Evidence(
            references=references,
            replies=tuple(with_undecided(references, replies, candidate.precision, subject)),
            precision=candidate.precision,
            judge_on=judge_on,
            loose=loose,
        )
        verdict = evidence.verdict()
        clock.detail, clock.passed = str(verdict.state), verdict.passed
    notes = (*float64_notes(subject, tolerance), *verdict.notes, *notes_on(verdict, held_out))
    verdict = replace(verdict, notes=notes, seconds=clock.seconds)
    found = searched(
        evidence,
        verdict,
        opened=lambda: candidate.open(device, subject.signature),
        judging=judging,
        subject=subject,
        stage=stage,
    )
    if candidate.aside is None:
        return found.verdict
    return with_search(keep_worst(found.verdict, found.evidence, candidate.aside), found)
