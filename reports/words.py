"""Figures and foreign text as the documents show them."""

from __future__ import annotations

import math
import re
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
