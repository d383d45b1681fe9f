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

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import ClassVar, Self

LOGGED = "the whole text is in the log"  # the hint, or its last part, where nothing better is known


class ErrorCode(StrEnum):
    """What happened, where a program has to know it; people read the message."""

    NO_EFFECT = "no-effect"  # an option that nothing here uses
    FEED_REJECTED = "feed-rejected"  # eager raised on a feed


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where something was said: a line of a file, or the name of an option or a variable."""

    file: str = ""
    line: int = 0
    key: str = ""

    def of(self, name: str) -> Place:
        """The place of a key by its name, within this table."""
        return replace(self, key=" ".join(filter(None, (self.key, name))))

    def __str__(self) -> str:
        file = f"{self.file}:{self.line}" if self.line else self.file
        return " ".join(filter(None, (file, self.key)))


@dataclass(frozen=True)
class Option:
    """An option in a hint, with what is given to it: `Option("calib", "DIR")` is `--calib DIR`."""

    name: str
    value: str = ""

    def __str__(self) -> str:
        return f"--{self.name} {self.value}".rstrip()


class Hint:
    """A hint that names options, so that modelc.toml and Python can spell them in their way."""

    def __init__(self, *parts: str | Option) -> None:
        self.parts = parts

    @property
    def names_log(self) -> bool:
        """Whether it says to read the log."""
        return LOGGED in self.parts

    def __str__(self) -> str:
        return "".join(map(str, self.parts))


class ModelcError(Exception):
    """Base of all errors that a user sees: what happened, and one hint that fixes it.

    `code` says what happened where a program has to know, `option` which option it is about
    (without dashes), `place` where that was said. `lasting` says that the order and the model alone
    are the cause: the same again ends so again.
    """

    exit_code: ClassVar[int] = 70
    lasting: bool = False

    def __init__(
        self,
        message: str,
        *,
        hint: str | Hint,
        code: ErrorCode | None = None,
        option: str = "",
        place: Place | None = None,
    ) -> None:
        self.message = encodable(message)
        self.advice = hint if isinstance(hint, Hint) else Hint(hint)
        self.code = code
        self.option = option
        self.place = place
        super().__init__(self.message)

    def at(self, place: Place | None, *, hint: Hint | None = None) -> Self:
        """The same error with its place, and another hint if one is given."""
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.args, other.__cause__ = self.args, self.__cause__
        other.place, other.advice = place, hint or self.advice
        return other

    @property
    def hint(self) -> str:
        """The hint as one types it on the command line."""
        return encodable(str(self.advice))

    @property
    def text(self) -> str:
        """The message, after its place."""
        return f"{encodable(str(self.place))}: {self.message}" if self.place else self.message

    def __str__(self) -> str:
        return self.text


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
