"""The address of a server is a URL without secrets, and headers are names with values."""

from __future__ import annotations

import pytest

from modelc.core.errors import ErrorCode, UsageError
from modelc.runtimes.v2_client import parse_address


@pytest.mark.parametrize(("url", "shown"), [
    ("http://host:8000", "http://host:8000"),
    ("http://host:8000/v2", "http://host:8000"),
    ("https://host/serving/", "https://host:443/serving"),
    ("grpc://127.0.0.1:8001", "grpc://127.0.0.1:8001"),
    ("grpcs://host", "grpcs://host:443"),
    ("http://[::1]:8000", "http://[::1]:8000"),
])  # fmt: skip
def test_an_address_is_read(url: str, shown: str) -> None:
    assert parse_address(url).url == shown


@pytest.mark.parametrize("url", [
    "", "host:8000", "ftp://host:1", "http://", "grpc://host", "grpc://host:1/path",
    "http://host:99999", "http://host:x", "http://user:secret@host", "http://host/?key=secret",
    "http://[::1", "http://host#a",
])  # fmt: skip
def test_another_text_is_refused(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_address(url)
    assert caught.value.code is ErrorCode.INVALID_VALUE
    assert caught.value.option == "served"


@pytest.mark.parametrize("url", [
    "http://user:secret@host", "user:secret@host", "ftp://user:secret@host", "http://u:secret@h:x",
])  # fmt: skip
def test_a_password_is_not_shown(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_address(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "header", ["", "no colon", "two words: x", "a: b\r\nc: d", ": x", "x#y: z", "x-Bin: z", "x: é"]
)
def test_another_header_is_refused_without_its_value(header: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_address("http://host", [header])
    assert caught.value.option == "header"
    assert not header or header not in str(caught.value)
