"""Sizes and times as people write them: `50 MB`, `2 GiB`, `90 s`, `10 min`."""

from __future__ import annotations

import re

from ..core.errors import UsageError

_QUANTITY = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([A-Za-z]*)", re.ASCII)
_BYTE_UNITS = {
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
}  # fmt: skip
_TIME_UNITS = {"": 1, "s": 1, "min": 60, "h": 3600, "d": 86400}


def parse_bytes(text: str, *, least: int = 1) -> int:
    """`50 MB` as bytes; kB, MB, GB are powers of 1000, KiB, MiB, GiB of 1024.

    Raises:
        UsageError: it is no size, or less than `least` bytes.
    """
    hint = "write it as 50 MB, 2 GiB or a number of bytes"
    return int(_parse_quantity(text, _BYTE_UNITS, "a size", hint, least=least))


def parse_seconds(text: str) -> float:
    """`10 min` as seconds.

    Raises:
        UsageError: it is no time.
    """
    return _parse_quantity(
        text, _TIME_UNITS, "a time", "write it as 90 s, 10 min, 2 h or a number of seconds"
    )


def _parse_quantity(
    text: str, units: dict[str, int], what: str, hint: str, *, least: float = 1
) -> float:
    found = _QUANTITY.fullmatch(text.strip())
    unit = units.get(found.group(2).lower()) if found else None
    if found is None or unit is None or not float(found.group(1)) * unit >= least:
        raise UsageError(f"{text!r} is not {what}", hint=hint)
    return float(found.group(1)) * unit
