"""What an archive of torch's says of itself: how to call it, and where it came from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..core.contract import Job


def call_record(job: Job, form: str) -> str:
    """What an archive of torch's says of itself, as JSON: how to call it, what it came from."""
    return json.dumps(
        {
            **job.metadata,
            "call": form,
            "inputs": [spec.name for spec in job.signature.inputs],
            "outputs": list(job.signature.outputs),
            "signature": [str(spec) for spec in job.signature.inputs],
        }
    )


def parse_record(text: str) -> dict[str, Any]:
    """The record that `call_record` wrote; empty where an archive has none."""
    record: dict[str, Any] = json.loads(text) if text else {}
    return record


def origin_of(record: Mapping[str, Any]) -> dict[str, str]:
    """What a record says of where the model came from: all but how it is called."""
    form = ("call", "inputs", "outputs", "signature")
    return {key: str(value) for key, value in record.items() if key not in form}
