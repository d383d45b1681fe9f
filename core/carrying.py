"""The contract of a format whose files say inside where they came from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

from .contract import Target


@runtime_checkable
class Carrying(Target, Protocol):
    """A target whose artifacts carry the metadata of their job, to be read without a framework."""

    def read_metadata(self, path: Path) -> Mapping[str, str]:
        """The metadata of the job that made the file; empty where it says nothing of it.

        Raises:
            RunnerError: it cannot be read.
        """
        ...
