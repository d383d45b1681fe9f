"""The inputs that modelc itself recorded in an archive of torch's when it made it."""

from __future__ import annotations

import json
import zipfile
import zlib
from pathlib import Path

from ..core.contract import RECORD
from ..core.errors import UsageError
from ..core.grammar import parse_input
from ..core.signature import InputSpec, resolve

# The inputs that modelc itself recorded in an archive of torch's when it made it.


_ARCHIVE_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, OSError)
_MAX_RECORD_BYTES = 1 << 20  # bytes; a record is a few hundred


def read_recorded_inputs(path: Path) -> dict[str, InputSpec]:
    """The input specs by name, in order; nothing where the archive has no readable record."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = [i for i in archive.infolist() if i.filename.endswith(f"/extra/{RECORD}")]
            if not entries or entries[0].file_size > _MAX_RECORD_BYTES:
                return {}
            text = archive.read(entries[0])
        specs = json.loads(text).get("signature", [])
        signature = resolve([parse_input(str(spec)) for spec in specs], {})
    except (ValueError, AttributeError, TypeError, RecursionError, UsageError, *_ARCHIVE_ERRORS):
        return {}  # somebody else's record: the archive's own types say what they can
    return {spec.name: spec for spec in signature.inputs}
