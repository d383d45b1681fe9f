"""Sizes and times as people write them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from modelc.core.errors import ErrorCode, UsageError
from modelc.projects.setting_values import parse_bytes, parse_seconds

from ..reasons import has_code


@pytest.mark.parametrize(
    ("text", "size"),
    [("50 MB", 50_000_000), ("1.5kB", 1500), ("2 GiB", 2 << 30), ("7", 7), ("8 gb", 8 * 10**9)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


def test_nothing_is_a_size_where_that_is_allowed() -> None:
    assert parse_bytes("0", least=0) == 0


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90 s", 90), ("1.5 min", 90), ("2h", 7200)]
)
def test_times(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        *((parse_bytes, text) for text in ("", "0", "-1 MB", "50 M", "MB", "1e9", "0.1 B", "٣")),
        (parse_bytes, "1" * 20),
        *((parse_seconds, text) for text in ("", "0", "5 m", "inf", "nan", "1:30")),
    ],
)
def test_an_invalid_quantity_is_named(parse: Callable[[str], float], text: str) -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.INVALID_VALUE, naming=repr(text))):
        parse(text)
