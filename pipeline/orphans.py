"""The end of a step whose parent was refused: there is nothing to make it from."""

from __future__ import annotations

from ..core.manifest import Failure, Manifest
from ..core.records import REJECTED
from .plan import Step


def make_skipped_failure(step: Step, manifest: Manifest) -> Failure:
    """The record of such a step; its exit code is the parent's."""
    codes = [f.exit_code for f in manifest.failures if f.step == step.parent]
    verdict = manifest.verdict_of(f"{REJECTED}/{step.parent}")
    code = codes[0] if codes else (1 if verdict is None else verdict.exit_code)
    return Failure(
        step=step.name,
        message=f"not made: its parent {step.parent} was refused",
        hint=f"see the verdict of {step.parent}",
        exit_code=code,
        orphan_of=step.parent or "",
    )
