"""What an artifact gives where its runtime is left to its defaults, as most users run it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ..core.findings import SIZED
from ..core.precision import Precision
from ..core.runtime_contract import SelfTuned
from ..core.verdict import DefaultRun, State, Verdict
from ..validators.feeds import SAMPLE
from ..validators.judge import ReferenceOutputs, judge
from ..validators.tolerance import TOLERANCES
from .beyond import Evidence, reply_to

if TYPE_CHECKING:
    from .proof import Candidate
    from .subject import EagerReference

# By whose limits a runtime's own precision is judged: TF32 has as many digits as FP16.
_PRECISION_OF_LIMITS = {"bf16": Precision.BF16, "fp16": Precision.FP16, "tf32": Precision.FP16}
_MAX_DEFAULT_FEEDS = 8  # feeds: the figure is of roundoff, which differs little between them
_LOWER_PRECISION_DB = 1.0  # dB below the figure as judged, from which on it is news


def add_default_run(
    verdict: Verdict, candidate: Candidate, evidence: Evidence, subject: EagerReference
) -> Verdict:
    """The verdict with what the artifact gives by default, where its runtime computes in less then.

    It does not decide: who opens the artifact as it was judged gets what was judged. The figure and
    the line of code that does so are noted.
    """
    target = candidate.target
    if not verdict.passed or not isinstance(target, SelfTuned):
        return verdict
    opened = target.open_by_default(candidate.path, verdict.device, subject.signature)
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
        signature=subject.signature,
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
