"""Everything that can stop the work, by the party who can act on it.

ModelcError
├── UsageError        2   the person at the command line
├── CheckpointError   3   whoever made the checkpoint or the model code
│   └── ConsentError  2   the person at the command line, who may trust that maker
├── MissingError      4   whoever installs packages, drivers and devices
├── ConversionError   5   a converter refused or broke
└── RunnerError       6   a runtime would not open or run an artifact

A failed verdict is a result, not an exception: it exits with 1. A bug of ours exits with 70.
"""

from __future__ import annotations

from typing import ClassVar

LOGGED = "the whole text is in the log"  # the hint where nothing better is known


class ModelcError(Exception):
    """Base of all errors that a user sees: what happened, and one hint that mends it.

    `lasting` says that it lies in the order and the model alone: the same again ends so again.
    """

    exit_code: ClassVar[int] = 70
    lasting: bool = False

    def __init__(self, message: str, *, hint: str) -> None:
        message = encodable(message)
        super().__init__(message)
        self.message = message
        self.hint = encodable(hint)


class UsageError(ModelcError):
    """The order itself is wrong: an option, a name, a path."""

    exit_code = 2


class CheckpointError(ModelcError):
    """The checkpoint, its factory or its eager model is unreadable, unsafe or unusable."""

    exit_code = 3


class ConsentError(CheckpointError):
    """Reading the checkpoint may run code, which the user has to allow."""

    exit_code = 2


class MissingError(ModelcError):
    """A package, driver or device that the order needs is not here."""

    exit_code = 4


class ConversionError(ModelcError):
    """A converter refused the model or broke on it."""

    exit_code = 5


class RunnerError(ModelcError):
    """A runtime would not open the artifact, or would not run a feed."""

    exit_code = 6


def encodable(text: str) -> str:
    """The text with lone surrogates, as names of files may hold them, as their escapes."""
    return text.encode(errors="backslashreplace").decode()


def text_of(error: BaseException) -> str:
    """What an exception says of itself; its class where saying that raises."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - the user's own code
        return type(error).__name__


def first_line(error: BaseException, *, limit: int = 240) -> str:
    """The first telling line of a framework's exception, for a one-line message.

    A line that ends with a colon only announces the next one.
    """
    lines = [line.strip() for line in text_of(error).splitlines() if line.strip()]
    telling = [line for line in lines if not line.endswith(":")]
    text = (telling or lines or [type(error).__name__])[0]
    return text if len(text) <= limit else text[: limit - 1] + "…"
