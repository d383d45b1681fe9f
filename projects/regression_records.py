"""What changed from another run of the project, as records."""

from __future__ import annotations

from dataclasses import dataclass

from ..reports.differences import Change


@dataclass(frozen=True, kw_only=True)
class MeasureChange:
    """One measure of one artifact that is not as it was; `change` is worse, better, new or told."""

    model: str
    artifact: str
    measure: str
    change: Change
    before: str
    after: str
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Regression:
    """All that changed from the run in `base`; what stayed or is noise is not listed.

    `compared` is how many measures were held beside each other. `notes` say what makes the runs
    hard to compare, `left_out` what was not compared, and why.
    """

    base: str
    changed: tuple[MeasureChange, ...]
    compared: int
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def worse(self) -> tuple[MeasureChange, ...]:
        """What got worse beyond its margin."""
        return tuple(one for one in self.changed if one.change is Change.WORSE)
