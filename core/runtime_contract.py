"""What a format offers beside its contract: the settings of its runtime, and how users open it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from .contract import Runner, Target
from .signature import Signature


@runtime_checkable
class Settled(Target, Protocol):
    """A target whose artifacts are judged under settings of its runtime that can be named."""

    def judging_settings(self, device: str) -> Mapping[str, str]:
        """The settings, by the runtime's own names."""
        ...


@dataclass(frozen=True, kw_only=True)
class OpenedByDefault:
    """A model opened without settings, where its runtime then computes in less precision.

    `compute` is what it computes in, as `bf16`; `advice` the line of code that opens it as it is
    judged, with `PATH` for the model file.
    """

    runner: Runner
    compute: str
    advice: str


@runtime_checkable
class SelfTuned(Target, Protocol):
    """A target whose runtime may pick a lower precision by itself where nobody sets one."""

    def open_by_default(
        self, path: Path, device: str, signature: Signature
    ) -> OpenedByDefault | None:
        """Open a model file without settings; None where it then computes as it is judged.

        Raises:
            RunnerError: the runtime would not open it.
        """
        ...
