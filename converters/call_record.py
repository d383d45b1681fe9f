"""What an archive of torch's says of itself: how to call it, and where it came from."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core.contract import RECORD, Job
from ..core.errors import RunnerError, first_line

_MAX_RECORD_BYTES = 1 << 26  # bytes of a record; that of a large model has a few thousand names


def build_call_record(job: Job, form: str) -> str:
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


def parse_call_record(text: str) -> dict[str, Any]:
    """The record that `build_call_record` wrote; empty where an archive has none."""
    record: dict[str, Any] = json.loads(text) if text else {}
    return record


def read_torch_metadata(path: Path) -> dict[str, str]:
    """Where an archive of torch's says that its model came from; nothing of it is loaded.

    Raises:
        RunnerError: it is no archive, or its record is none.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            inside = [e for e in archive.infolist() if e.filename.endswith(f"/extra/{RECORD}")]
            if not inside:
                return {}
            if len(inside) > 1 or inside[0].file_size > _MAX_RECORD_BYTES:
                raise RunnerError(
                    f"{path.name} has {len(inside)} records of {inside[0].file_size} bytes",
                    hint="make it again: modelc writes one, and a short one",
                )
            record = json.loads(archive.read(inside[0]))
    except (OSError, zipfile.BadZipFile, zlib.error, ValueError, NotImplementedError) as error:
        raise RunnerError(f"{path.name}: {first_line(error)}", hint="make it again") from error
    if not isinstance(record, dict):
        raise RunnerError(f"the record in {path.name} is none", hint="make it again")
    return record_origin(record)


def record_origin(record: Mapping[str, Any]) -> dict[str, str]:
    """What a record says of where the model came from: all but how it is called."""
    form = ("call", "inputs", "outputs", "signature")
    return {key: str(value) for key, value in record.items() if key not in form}
