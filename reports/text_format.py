"""Formats figures, sizes, dims and foreign text for reports and the terminal."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from datetime import datetime

# What would break XML or reorder what is read: control characters but tab and newline, lone
# surrogates, marks of writing direction, the two noncharacters of every plane's end.
_CONTROL_CHARACTERS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
_LINE_BREAKS = re.compile("[\n\u2028\u2029]")
NO_VALUE = "-"  # where a figure is not defined
_KILO = 1000
_MINUTE = 60.0
_SMALL = 1e-3  # seconds


def escape_control(text: str) -> str:
    """The text with what cannot be shown made visible: the escape of its code point."""
    return _CONTROL_CHARACTERS.sub(lambda found: ascii(found.group())[1:-1], text)


def escape_control_line(text: str) -> str:
    """As `escape_control`, of text that is one line or part of one: line breaks are shown as well.

    Where a forge would read the line as one of its commands (`::error::`), a bar stands before it.
    """
    line = _LINE_BREAKS.sub(lambda found: ascii(found.group())[1:-1], escape_control(text))
    return f"| {line}" if line.lstrip().startswith("::") else line


def one_line(text: str, limit: int = 400) -> str:
    """The text, cleaned, on one line, cut at `limit` characters."""
    line = " ".join(escape_control(text).split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def size_text(size: float) -> str:
    """Bytes as people read them, in powers of 1000."""
    amount = float(size)
    for unit in ("B", "kB", "MB"):
        if abs(amount) < _KILO:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= _KILO
    return f"{amount:.2f} GB"


def figure_text(value: float | None, form: str = ".1e") -> str:
    """A figure, or a dash where it is not defined."""
    return NO_VALUE if value is None else format(value, form)


def decibel_text(value: float | None) -> str:
    """A signed figure in dB, or a dash."""
    if value is None:
        return NO_VALUE
    return f"{value:+.1f} dB"


def ratio(value: float | None) -> str:
    """An unsigned figure in dB, or a dash."""
    return NO_VALUE if value is None else f"{value:.1f} dB"


def percent_text(share: float, digits: int = 1) -> str:
    """A share of one as per cent."""
    return f"{share:.{digits}%}" if math.isfinite(share) else NO_VALUE


def milliseconds_text(value: float) -> str:
    """Milliseconds with three figures."""
    return f"{value:.0f} ms" if value >= 100 else f"{value:.3g} ms"  # noqa: PLR2004 - three figures


def seconds_text(value: float) -> str:
    """A duration."""
    if value >= _MINUTE:
        return f"{int(value // _MINUTE)} min {value % _MINUTE:.0f} s"
    return f"{value:.1f} s" if value >= _SMALL else "0 s"


def count_text(count: int, noun: str) -> str:
    """`1 feed`, `2 feeds`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def day_text(created: str) -> str:
    """An ISO date and time as people read it; what is none stays as it is."""
    try:
        return datetime.fromisoformat(created).strftime("%Y-%m-%d %H:%M %Z").strip()
    except ValueError:
        return one_line(created)


def digest_text(digest: str) -> str:
    """The first twelve characters of a digest."""
    return one_line(digest, 64)[:12]


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
