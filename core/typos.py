"""Names of dims that stand once, without a range, and nearly are another's: most often typos."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable

from .dims import Dim
from .errors import UsageError

_MIN_LETTERS = 3  # of a name: shorter ones are near by chance


def check_typos(dims: Iterable[Dim], known: Iterable[str]) -> None:
    """Look at dims as they were written, ranges and relations not settled.

    Args:
        dims: those of all that was written.
        known: names that a sample or the checkpoint gives.

    Raises:
        UsageError: a name that stands once and has no range has the letters of another name, or
            one more or less.
    """
    dims = list(dims)
    bases = [dim.free for dim in dims if dim.relation is not None]
    plain = [dim for dim in dims if dim.relation is None and dim.name]
    said = {dim.name or "" for dim in dims if dim.relation is not None or dim.bounded}
    count = Counter([*(dim.name or "" for dim in (*plain, *bases)), *known])
    names = list(dict.fromkeys((*said, *count)))
    for dim in (*plain, *bases):
        name = dim.name or ""
        if count[name] > 1 or dim.bounded or name in said:
            continue
        near = difflib.get_close_matches(name, [n for n in names if _is_typo(name, n)], n=1)
        if near:
            raise UsageError(
                f"dim {name!r} stands once and has no range: did you mean {near[0]!r}?",
                hint=f"write {near[0]}, or give it a range, as {name}=1..8",
            )


def _is_typo(name: str, other: str) -> bool:
    """Whether one may be the other with letters swapped, or with one too many or too few.

    Another letter or digit in its place is most often meant: `q_len` and `k_len`, `seq1` and `seq`.
    """
    if min(len(name), len(other)) < _MIN_LETTERS or _letters_of(name) == _letters_of(other):
        return False
    short, long = sorted((name, other), key=len)
    if len(short) == len(long):
        return sorted(name) == sorted(other)
    return any(long[:at] + long[at + 1 :] == short for at in range(len(long)))


def _letters_of(name: str) -> str:
    return "".join(sign for sign in name if not sign.isdigit())
