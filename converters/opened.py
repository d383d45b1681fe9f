"""What all runners share: they are context managers, and most hold nothing to give back."""

from __future__ import annotations

from types import TracebackType
from typing import TypeVar

from ..core.errors import RunnerError, first_line

Opened = TypeVar("Opened", bound="OpenedModel")


class OpenedModel:
    """Base of the runners: enters as itself, drops what it holds on the way out."""

    inputs: tuple[str, ...] = ()

    def __enter__(self: Opened) -> Opened:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give back what the runtime holds."""


def refused(runtime: str, error: BaseException) -> RunnerError:
    """The error for a runtime that would not run a feed or open a file."""
    return RunnerError(f"{runtime}: {first_line(error)}", hint="the whole text is in the log")
