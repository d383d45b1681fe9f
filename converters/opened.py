"""What all runners share: they are context managers, and most hold nothing to give back."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TypeVar

from ..core.contract import Array, Feed
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


_PREAMBLE = ("Exception from ", "Check '")  # where in OpenVINO's own sources it was thrown


def present(feed: Feed, names: Sequence[str]) -> list[Array]:
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


def refused(runtime: str, error: BaseException) -> RunnerError:
    """The error for a runtime that would not run a feed or open a file."""
    return RunnerError(f"{runtime}: {_telling(error)}", hint="the whole text is in the log")


def _telling(error: BaseException) -> str:
    """What says why: TorchScript and OpenVINO put a trace before it, ONNX Runtime uses lines."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if any(line.startswith("Traceback of TorchScript") for line in lines):
        lines = lines[-1:]
    elif lines and lines[0].startswith("[ONNXRuntimeError]"):
        lines = [" ".join(lines)]
    told = [line for line in lines if not line.startswith(_PREAMBLE)]
    return first_line(RuntimeError("\n".join(told)) if told else error)
