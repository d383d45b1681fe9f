"""What all runners share: they are context managers, and most hold nothing to give back."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TypeVar

from ..core.contract import Array, Feed
from ..core.errors import LOGGED, RunnerError, first_line

Opened = TypeVar("Opened", bound="OpenedModel")


class RunnerBase:
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


def order_inputs(feed: Feed, names: Sequence[str]) -> list[Array]:
    """The feed's arrays in the order of `names`.

    Raises:
        RunnerError: the model takes an input that the feed does not have.
    """
    for name in names:
        if name not in feed:
            raise RunnerError(
                f"the model takes {name!r}, which no input of the signature gives",
                hint=f"name the inputs as the model does: {', '.join(names)}",
            )
    return [feed[name] for name in names]


def runner_error(runtime: str, error: BaseException, telling: str = "") -> RunnerError:
    """The error for a runtime that would not run a feed or open a file.

    Args:
        runtime: as the message names it.
        error: what it raised.
        telling: what of the error's text says why, where that is not its first line.
    """
    line = first_line(RuntimeError(telling) if telling else error)
    return RunnerError(f"{runtime}: {line}", hint=LOGGED)


def text_lines(error: BaseException) -> list[str]:
    """The lines of an error's text that hold anything."""
    return [line.strip() for line in str(error).splitlines() if line.strip()]
