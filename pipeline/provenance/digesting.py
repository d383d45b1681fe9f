"""One digest for equal records, whichever modelc wrote them and however often they were read."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def plain_json(record: object) -> Any:
    """A record as it stands in a manifest's JSON."""
    import msgspec

    return json.loads(msgspec.json.encode(record))


def canonical_digest(value: Any) -> str:
    """SHA-256 over a JSON value: keys in order, without what is empty.

    What is empty is left out because a later modelc adds fields, which are empty in older records.
    A whole number is one text, whether it was written as 1 or 1.0.
    """
    text = json.dumps(
        _without_empty(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True
    )
    return hashlib.sha256(text.encode()).hexdigest()


def _without_empty(value: Any) -> Any:
    """Without the values of keys that are null, false, zero or empty: all that JSON has of false.

    A verdict has thousands of values, and a warm run digests each: hence no abstract classes.
    """
    if isinstance(value, dict):
        return {key: told for key, item in value.items() if (told := _without_empty(item))}
    if isinstance(value, list):
        return [_without_empty(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value
