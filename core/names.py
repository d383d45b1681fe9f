"""Errors for names that are not in a list."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from .errors import UsageError

_LONGEST = 255  # bytes of a file's name


def fits_a_file(name: str) -> bool:
    """Whether the system can have a file of that name, which is one part of a path."""
    return len(name.encode(errors="surrogatepass")) <= _LONGEST and "\0" not in name


def unknown(noun: str, name: str, names: Sequence[str]) -> UsageError:
    """An error for a name that is not one of `names`, with the nearest one as its hint."""
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"choose from: {', '.join(names)}"
    return UsageError(f"unknown {noun} {name!r}", hint=hint)
