"""What a check of provenance found, as records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

VERIFICATION_SCHEMA_VERSION = 1


class CheckOutcome(StrEnum):
    """How one thing was found. Only FAILED says that something is wrong."""

    HOLDS = "holds"
    FAILED = "failed"
    LACKING = "lacking"  # an older modelc did not write it
    UNCHECKED = "unchecked"  # what it would be compared with is not here, or was not asked for


@dataclass(frozen=True, kw_only=True)
class ProvenanceCheck:
    """One thing that was looked at: of an artifact, of the `manifest` or of the `checkpoint`."""

    of: str
    what: str
    found: CheckOutcome
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class FolderVerification:
    """All that was looked at in a folder of one model."""

    folder: str
    checks: tuple[ProvenanceCheck, ...]
    name: str = ""  # of the model in a run of several

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong."""
        return not list_failed_checks(self.checks)


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What `modelc verify` found: by model, and of the run itself where it is one of several."""

    models: tuple[FolderVerification, ...]
    run: tuple[ProvenanceCheck, ...] = ()
    passed: bool = False
    schema_version: int = VERIFICATION_SCHEMA_VERSION

    @property
    def exit_code(self) -> int:
        """0 nothing is wrong, 1 something is."""
        return 0 if self.passed else 1


def list_failed_checks(checks: Sequence[ProvenanceCheck]) -> tuple[ProvenanceCheck, ...]:
    """Those that say that something is wrong."""
    return tuple(check for check in checks if check.found is CheckOutcome.FAILED)


def make_verification(
    models: Sequence[FolderVerification], run: Sequence[ProvenanceCheck] = ()
) -> Verification:
    """The whole, and whether it holds: without a model nothing does."""
    well = bool(models) and all(model.passed for model in models) and not list_failed_checks(run)
    return Verification(models=tuple(models), run=tuple(run), passed=well)
