"""Sizes and conditions on them as torch writes them, in words that a reader knows."""

from __future__ import annotations

import re
from collections.abc import Collection

# What torch calls a size that no input has by itself: u0 follows from data, s77 from an input.
_SIZE_SYMBOL = re.compile(r"(?<![\w.'\"])[suz]\d+(?![\w.'\"])")
_SIZE_CALL = re.compile(
    r"\b(Mod|PythonMod|FloorDiv|CleanDiv|Eq|Ne|Min|Max)\(([^(),]+), ([^(),]+)\)"
)
_SIZE_OPERATORS = {"Mod": "%", "PythonMod": "%", "FloorDiv": "//", "CleanDiv": "//", "Eq": "==",
              "Ne": "!="}  # fmt: skip
_LEFT_MARK, _RIGHT_MARK, _COMMA_MARK = (
    "\x02",
    "\x03",
    "\x04",
)  # of what is done: no call ends in them
_SIZE_BOUND = re.compile(r"\b(Min|Max)\((?:(\d+), .*|.*, (\d+))\)")
_BOUND_WORDS = {"Min": "at most", "Max": "at least"}


def has_size_symbols(text: str, names: Collection[str] = ()) -> bool:
    """Whether the text has a symbol of torch's in it; `names` are dims that users call so."""
    return any(found not in names for found in _SIZE_SYMBOL.findall(text))


def readable_sizes(text: str) -> str:
    """`Eq(Mod(seq, 2), 0)` as `seq % 2 == 0`, wherever it stands in the text."""
    before = ""
    while before != text:
        before, text = text, _SIZE_CALL.sub(_to_infix, text)
    return text.replace(_LEFT_MARK, "(").replace(_RIGHT_MARK, ")").replace(_COMMA_MARK, ",")


def _to_infix(call: re.Match[str]) -> str:
    name, *sides = call.groups()
    if name not in _SIZE_OPERATORS:
        return f"{name.lower()}{_LEFT_MARK}{sides[0]}{_COMMA_MARK} {sides[1]}{_RIGHT_MARK}"
    operator = _SIZE_OPERATORS[name]
    if operator in ("%", "//"):
        sides = [f"{_LEFT_MARK}{one}{_RIGHT_MARK}" if " " in one else one for one in sides]
    return f"{sides[0]} {operator} {sides[1]}"


def readable_dim(dim: str, names: Collection[str] = ()) -> str:
    """`at most 100` for `Min(100, u0)` and `..100`, `any` for `u0`; what is plain stays."""
    low, between, high = dim.partition("..")
    if between and not (low and high):
        return f"at most {high}" if high else f"at least {low}" if low else "any"
    if not has_size_symbols(dim, names):
        return readable_sizes(dim)
    bound = _SIZE_BOUND.fullmatch(dim.strip())
    if bound is None:
        return "any"
    return f"{_BOUND_WORDS[bound[1]]} {bound[2] or bound[3]}"
