"""Checks on what a verdict rests on: values that were compared, and the file that ships.

Where a copy was judged, the file itself is run in its runtime with default options.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ..core.findings import SIZED
from ..core.kinds import ReasonCode
from ..core.target_extensions import DefaultChecked, DefaultOutputs
from ..core.verdict import Verdict
from ..validators.feeds import SAMPLE
from ..validators.judge import ArtifactOutputs, ReferenceOutputs

if TYPE_CHECKING:
    from .judge_artifact import Candidate
    from .reply_evidence import Evidence


def check_default_session(verdict: Verdict, candidate: Candidate, evidence: Evidence) -> Verdict:
    """Return the verdict, rejected where the file crashes or differs in a default session.

    A device that lacks an operator of the model is noted: the file is then made for another one.
    """
    target = candidate.target
    if not verdict.passed or candidate.outputs or not isinstance(target, DefaultChecked):
        return verdict
    counted = [one for one in evidence.references if is_compared(one, evidence)]
    found = target.run_by_default(
        candidate.path, verdict.device, [one.feed.arrays for one in counted]
    )
    if found is None:
        return verdict
    if found.unsupported:
        note = f"does not run on {verdict.device} as it is; a copy was judged: {found.failure}"
        return replace(verdict, notes=(*verdict.notes, note))
    fault = found.failure or _find_difference(found, counted, evidence)
    if not fault:
        return verdict
    return verdict.with_fault(ReasonCode.DEFAULT_SESSION, f"with default session options: {fault}")


def check_compared(verdict: Verdict, evidence: Evidence) -> Verdict:
    """Return the verdict, rejected where every output is empty on every feed.

    A detector that finds nothing gives the right shapes whatever its weights are.
    """
    arrays = [array for one in evidence.references for array in one.outputs.values()]
    if not verdict.passed or any(array.size for array in arrays):
        return verdict
    text = "all outputs are empty on every feed, so no value was compared: give --samples with"
    return verdict.with_fault(ReasonCode.NOT_MEASURED, f"{text} inputs that give some")


def is_compared(reference: ReferenceOutputs, evidence: Evidence) -> bool:
    """Whether a feed's values count: a sample, or a drawn feed that is not judged by form."""
    feed = reference.feed
    return feed.kind in (*SIZED, SAMPLE) and feed.name not in evidence.loose


def _find_difference(
    found: DefaultOutputs, counted: list[ReferenceOutputs], evidence: Evidence
) -> str:
    """Return why the outputs are rejected; empty where they pass."""
    if not counted:
        return ""
    replies = [ArtifactOutputs(outputs=one) for one in found.outputs]
    verdict = evidence.judge_on(counted, replies)
    return "" if verdict.passed else verdict.reason
