"""One digest for equal records, whichever modelc wrote them and however often they were read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any


def plain(record: object) -> Any:
    """A record as it stands in a manifest's JSON."""
    import msgspec

    return json.loads(msgspec.json.encode(record))


def digest_of(value: object) -> str:
    """SHA-256 over a JSON value: keys in order, without what is empty.

    What is empty is left out because a later modelc adds fields, which are empty in older records.
    A whole number is one text, whether it was written as 1 or 1.0.
    """
    text = json.dumps(_told(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _told(value: object) -> object:
    if isinstance(value, Mapping):
        told = {str(key): _told(item) for key, item in value.items()}
        return {key: item for key, item in told.items() if not _is_empty(item)}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_told(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _is_empty(value: object) -> bool:
    return value is None or value is False or value in ("", 0) or value in ([], {})
