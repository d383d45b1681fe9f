"""Errors for names that are not in a list, that no file can have, or that are of no file."""

from __future__ import annotations

import difflib
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

from .errors import UsageError

_MAX_NAME_BYTES = 255  # bytes of a file's name


def is_file_name(name: str) -> bool:
    """Whether the system can have a file of that name, which is one part of a path."""
    return len(name.encode(errors="surrogatepass")) <= _MAX_NAME_BYTES and "\0" not in name


def nearest_names(name: str, names: Iterable[str], count: int = 1) -> list[str]:
    """The names that are most like `name`, whatever the case of the letters; may be none."""
    spelt = {one.casefold(): one for one in names}
    return [spelt[one] for one in difflib.get_close_matches(name.casefold(), spelt, n=count)]


def refuse_pipe(path: Path) -> None:
    """Refuse a named pipe or a socket: to open one waits for whoever is at its other end.

    Raises:
        UsageError: it is one.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return  # whoever opens it says what is wrong
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        raise UsageError(
            f"{path} is a named pipe or a socket, and no file", hint="save it as a file, give that"
        )


def unknown_name_error(noun: str, name: str, names: Sequence[str]) -> UsageError:
    """An error for a name that is not one of `names`, with the nearest one as its hint."""
    near = nearest_names(name, names)
    hint = f"did you mean {near[0]!r}?" if near else f"choose from: {', '.join(names)}"
    return UsageError(f"unknown {noun} {name!r}", hint=hint)
