"""How the models of a project ended, and what that makes of the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..core.errors import ModelcError
from ..core.manifest import Manifest
from ..core.records import artifact_names
from .gates import Breach

BREACH_EXIT_CODE = 1  # as a verdict that failed


@dataclass(frozen=True, kw_only=True)
class ModelOutcome:
    """One model: its record, or what stopped it before there was one.

    `kept` are steps whose artifacts stood in the folder as they would be made today, or that failed
    as they would again; `restored` came from the cache; the rest was made. `seconds` is the wall
    time of its own work. `started` is False for a model that was not come to.
    """

    name: str
    folder: str
    manifest: Manifest | None = None
    error: ModelcError | None = None
    breaches: tuple[Breach, ...] = ()
    kept: tuple[str, ...] = ()
    restored: tuple[str, ...] = ()
    seconds: float = 0.0
    started: bool = True

    @property
    def exit_code(self) -> int:
        """Of this model, as `modelc export` would end; 1 where a gate is not kept to."""
        if self.error is not None:
            return self.error.exit_code
        code = 0 if self.manifest is None else self.manifest.exit_code
        return code or (BREACH_EXIT_CODE if self.breaches else 0)


def combine_exit_codes(ended: Sequence[ModelOutcome], *, prepare_only: bool = False) -> int:
    """1 where an artifact is wrong or breaks a gate; else the first other code; 0 where all hold.

    With `prepare_only` a model that only waits for another host is none.
    """
    codes = [one.exit_code for one in ended if not (prepare_only and is_only_pending(one))]
    return 1 if 1 in codes else next((code for code in codes if code), 0)


def is_only_pending(one: ModelOutcome) -> bool:
    """Whether nothing is wrong but that a step needs another host."""
    manifest = one.manifest
    if one.error is not None or one.breaches or manifest is None:
        return False
    mine = artifact_names(manifest.steps)
    judged = all(v.passed for v in manifest.verdicts if v.artifact in mine)
    return bool(manifest.pending) and not manifest.failures and judged
