"""The errors that users see, by the party who can act; texts of names and of the system."""

from __future__ import annotations

import difflib
import errno
import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self

from .kinds import ErrorCode as ErrorCode  # noqa: PLC0414 - read with the errors

LOGGED = "the whole text is in the log"  # the hint, or its last part, where nothing better is known


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where something was written: a line of a file, or the name of an option or variable."""

    file: str = ""
    line: int = 0
    key: str = ""

    def of(self, name: str) -> Place:
        """Return the place of a key of this table."""
        return replace(self, key=" ".join(filter(None, (self.key, name))))

    def __str__(self) -> str:
        file = f"{self.file}:{self.line}" if self.line else self.file
        return " ".join(filter(None, (file, self.key)))


@dataclass(frozen=True)
class Option:
    """An option in a hint with its value: `Option("calib", "DIR")` is `--calib DIR`."""

    name: str
    value: str = ""

    def __str__(self) -> str:
        return f"--{self.name} {self.value}".rstrip()


class Hint:
    """A hint that names options, which modelc.toml and Python spell in their own way."""

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

    `code` identifies the error for programs, `option` the option that it is about (without dashes),
    `place` where that was written. `lasting` means that only the request and the model cause it:
    the same request fails again.
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
        """Return the error with its place, and another hint if given."""
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.args, other.__cause__ = self.args, self.__cause__
        other.place, other.advice = place, hint or self.advice
        return other

    @property
    def options(self) -> tuple[str, ...]:
        """The names of options that it is about: its own, then those of the hint."""
        hinted = (part.name for part in self.advice.parts if isinstance(part, Option))
        return (self.option, *hinted) if self.option else tuple(hinted)

    @property
    def hint(self) -> str:
        """The hint as typed on the command line."""
        return encodable(str(self.advice))

    @property
    def text(self) -> str:
        """The message after its place."""
        return f"{encodable(str(self.place))}: {self.message}" if self.place else self.message

    def __str__(self) -> str:
        return self.text


class UsageError(ModelcError):
    """The request itself is wrong: an option, a name, a path."""

    exit_code = 2


class CheckpointError(ModelcError):
    """The checkpoint, its factory or its eager model is unreadable, unsafe or unusable."""

    exit_code = 3


class ConsentError(CheckpointError):
    """Reading the checkpoint may run code, which requires the user's consent."""

    exit_code = 2


class MissingError(ModelcError):
    """A package, driver or device that the request requires is missing."""

    exit_code = 4


class ConversionError(ModelcError):
    """A converter rejected the model or crashed on it."""

    exit_code = 5


class RunnerError(ModelcError):
    """A runtime cannot open the artifact, or cannot run a feed."""

    exit_code = 6


def encodable(text: str) -> str:
    """Escape lone surrogates, which file names may contain."""
    return text.encode(errors="backslashreplace").decode()


def text_of(error: BaseException) -> str:
    """Return an exception's text; its class if formatting it raises."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - the user's own code
        return type(error).__name__


def first_line(error: BaseException, *, limit: int = 240) -> str:
    """Return the first meaningful line of a framework's exception, for a one-line message.

    Skips a line that ends with a colon, which only announces the next one.
    """
    lines = [line.strip() for line in text_of(error).splitlines() if line.strip()]
    complete = [line for line in lines if not line.endswith(":")]
    text = (complete or lines or [type(error).__name__])[0]
    return text if len(text) <= limit else text[: limit - 1] + "…"


_MAX_NAME_BYTES = 255  # bytes of a file name


def is_file_name(name: str) -> bool:
    """Return whether the system can have a file of that name, which is one part of a path."""
    return len(name.encode(errors="surrogatepass")) <= _MAX_NAME_BYTES and "\0" not in name


def nearest_names(name: str, names: Iterable[str], count: int = 1) -> list[str]:
    """Return the names most similar to `name`, ignoring case; may be empty."""
    spelt = {one.casefold(): one for one in names}
    return [spelt[one] for one in difflib.get_close_matches(name.casefold(), spelt, n=count)]


def nearest_files(path: Path, count: int = 1) -> list[Path]:
    """Return the entries of the path's folder with the most similar names; may be empty.

    Hidden files are no candidates for a plain name.
    """
    names = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    if not path.name.startswith("."):
        names = [name for name in names if not name.startswith(".")]
    return [path.parent / name for name in difflib.get_close_matches(path.name, names, n=count)]


def refuse_pipe(path: Path) -> None:
    """Reject a named pipe or a socket, which blocks until another process opens it.

    Raises:
        UsageError: it is one.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return  # the caller's open reports it
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        raise UsageError(
            f"{path} is a named pipe or a socket, not a file",
            hint="save it as a file and give that",
        )


def unknown_name_error(noun: str, name: str, names: Sequence[str]) -> UsageError:
    """Return the error for a name that is not in `names`, with the nearest one as hint."""
    near = nearest_names(name, names)
    hint = f"did you mean {near[0]!r}?" if near else f"choose from: {', '.join(names)}"
    return UsageError(f"unknown {noun} {name!r}", hint=hint, code=ErrorCode.UNKNOWN_NAME)


def join_some(texts: Sequence[str], most: int, separator: str = ", ") -> str:
    """Join the first `most` texts, and count the others: `a, b and 3 more`."""
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return f"{separator.join(texts[:most])}{more}"


_MAX_PATH_SHOWN = 120  # characters of a path
_PATH_ERRORS = (
    errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOTDIR, errno.EISDIR,
    errno.ENAMETOOLONG, errno.ELOOP,
)  # fmt: skip
_ERRNO_HINTS = {
    **dict.fromkeys(_PATH_ERRORS, "give a path that you may read and write"),
    errno.ENOSPC: "free space on the disk, or give another folder",
    errno.EDQUOT: "free space in your quota, or give another folder",
    errno.EIO: "check the disk, or give another folder",
    errno.EFBIG: "raise the limit on file size: ulimit -f unlimited",
    errno.EMFILE: "raise the limit on open files: ulimit -n 4096",
    errno.ENFILE: "close other programs: the system has no file handles left",
}
_SYMLINK_LOOP = "Symlink loop from "  # pathlib before Python 3.13 has no class for it


def is_user_error(error: OSError) -> bool:
    """Return whether the user can act on an error of the system."""
    return error.errno in _ERRNO_HINTS


def system_error_hint(error: OSError) -> str:
    """Return the hint for an error that the user can act on."""
    return _ERRNO_HINTS[error.errno or 0]


def as_usage_error(error: BaseException) -> UsageError | None:
    """Return the system's error as a UsageError with its path; None for a possible bug."""
    if isinstance(error, RuntimeError) and str(error).startswith(_SYMLINK_LOOP):
        path = str(error).removeprefix(_SYMLINK_LOOP)
        return UsageError(f"cannot use {path}: it is a link to itself", hint="give another path")
    if isinstance(error, FileNotFoundError) and _is_working_folder_lost():
        return UsageError("the current folder was removed", hint="cd to another folder")
    if not isinstance(error, OSError) or error.errno is None or not is_user_error(error):
        return None
    path = "" if error.filename is None else os.fsdecode(error.filename)
    short = path if len(path) <= _MAX_PATH_SHOWN else f"{path[:_MAX_PATH_SHOWN]}…"
    what = f"cannot use {short}" if short else "the system reported an error"
    return UsageError(f"{what}: {os.strerror(error.errno)}", hint=system_error_hint(error))


def _is_working_folder_lost() -> bool:
    try:
        os.getcwd()  # noqa: PTH109 - as pathlib does
    except FileNotFoundError:
        return True
    return False
