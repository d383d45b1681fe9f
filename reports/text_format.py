"""Format figures, sizes, dims and untrusted text for reports and the terminal."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from datetime import datetime

# Characters that break XML or reorder text: control characters other than tab and newline, lone
# surrogates, direction marks, and noncharacters.
_CONTROL_CHARACTERS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
_LINE_BREAKS = re.compile("[\n\u2028\u2029]")
NO_VALUE = "-"  # an undefined figure
_MINUTE = 60.0
_SMALL = 1e-3  # seconds


def escape_control(text: str) -> str:
    """Replace control characters by their escapes."""
    return _CONTROL_CHARACTERS.sub(lambda found: ascii(found.group())[1:-1], text)


def escape_control_line(text: str) -> str:
    """Replace control characters and line breaks by their escapes.

    A line that CI services would read as a command (`::error::`) gets a leading bar.
    """
    line = _LINE_BREAKS.sub(lambda found: ascii(found.group())[1:-1], escape_control(text))
    return f"| {line}" if line.lstrip().startswith("::") else line


def one_line(text: str, limit: int = 400) -> str:
    """Return the text on one line, without control characters, of at most `limit` characters."""
    line = " ".join(escape_control(text).split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def figure_text(value: float | None, form: str = ".1e") -> str:
    """Format a figure; None is a dash."""
    return NO_VALUE if value is None else format(value, form)


def decibel_text(value: float | None) -> str:
    """Format a signed figure in dB; None is a dash."""
    return NO_VALUE if value is None else f"{value:+.1f} dB"


def ratio(value: float | None) -> str:
    """Format an unsigned figure in dB; None is a dash."""
    return NO_VALUE if value is None else f"{value:.1f} dB"


def percent_text(share: float, digits: int = 1) -> str:
    """Format a share as per cent."""
    return f"{share:.{digits}%}" if math.isfinite(share) else NO_VALUE


def milliseconds_text(value: float) -> str:
    """Format milliseconds with three significant digits."""
    return f"{value:.0f} ms" if value >= 100 else f"{value:.3g} ms"  # noqa: PLR2004 - three figures


def seconds_text(value: float) -> str:
    """Format a duration."""
    if value >= _MINUTE:
        return f"{int(value // _MINUTE)} min {value % _MINUTE:.0f} s"
    return f"{value:.1f} s" if value >= _SMALL else "0 s"


def count_text(count: int, noun: str, suffix: str = "s") -> str:
    """Format `1 feed`, `2 feeds`."""
    return f"{count} {noun}{'' if count == 1 else suffix}"


def day_text(created: str) -> str:
    """Format an ISO date and time; other text is returned unchanged."""
    try:
        return datetime.fromisoformat(created).strftime("%Y-%m-%d %H:%M %Z").strip()
    except ValueError:
        return one_line(created)


def digest_text(digest: str) -> str:
    """Return the first twelve characters of a digest."""
    return one_line(digest, 64)[:12]


# torch's names of symbolic sizes: u0 depends on data, s77 on an input.
_SIZE_SYMBOL = re.compile(r"(?<![\w.'\"])[suz]\d+(?![\w.'\"])")
_SIZE_CALL = re.compile(
    r"\b(Mod|PythonMod|FloorDiv|CleanDiv|Eq|Ne|Min|Max)\(([^(),]+), ([^(),]+)\)"
)
_SIZE_OPERATORS = {"Mod": "%", "PythonMod": "%", "FloorDiv": "//", "CleanDiv": "//", "Eq": "==",
              "Ne": "!="}  # fmt: skip
_LEFT_MARK, _RIGHT_MARK, _COMMA_MARK = "\x02\x03\x04"  # in calls that are already rewritten
_SIZE_BOUND = re.compile(r"\b(Min|Max)\((?:(\d+), .*|.*, (\d+))\)")
_BOUND_WORDS = {"Min": "at most", "Max": "at least"}


def has_size_symbols(text: str, names: Collection[str] = ()) -> bool:
    """Whether the text contains a symbolic size; `names` are the user's own dims."""
    return any(found not in names for found in _SIZE_SYMBOL.findall(text))


def readable_sizes(text: str) -> str:
    """Rewrite expressions such as `Eq(Mod(seq, 2), 0)` as `seq % 2 == 0`."""
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
    """Format a dim: `at most 100` for `Min(100, u0)` and `..100`, `any` for `u0`."""
    low, between, high = dim.partition("..")
    if between and not (low and high):
        return f"at most {high}" if high else f"at least {low}" if low else "any"
    if not has_size_symbols(dim, names):
        return readable_sizes(dim)
    bound = _SIZE_BOUND.fullmatch(dim.strip())
    if bound is None:
        return "any"
    return f"{_BOUND_WORDS[bound[1]]} {bound[2] or bound[3]}"
