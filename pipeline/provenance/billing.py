"""Reads the record of an output folder for a bill of materials, and writes the bill."""

from __future__ import annotations

import json
from pathlib import Path

from ...core.errors import UsageError
from ...core.whole import write_whole
from ..recorded import manifest_of
from .records import failed
from .sbom import sbom
from .verifying import verify_folder


def bill_of(folder: Path) -> bytes:
    """The bill of a folder whose files and record are as they were written.

    Raises:
        UsageError: there is no manifest, or something is not as recorded: a bill with its digests
            would name other files than those that are there.
        MissingError: the package that writes it is not here.
    """
    manifest = manifest_of(folder)
    wrong = failed(verify_folder(folder).checks)
    if wrong:
        first = wrong[0]
        raise UsageError(
            f"{folder} is not as it was recorded: {first.of}, {first.what}: {first.detail}",
            hint=f"see modelc verify {folder}, and export again",
        )
    return sbom(manifest)


def write_bill(bill: bytes, path: Path) -> Path:
    """Write a bill, whole or not at all, in place of nothing else than a bill.

    Raises:
        UsageError: another file is there, or it cannot be written.
    """
    hint = "give another -o"
    try:
        if path.exists() and not _is_bill(path):
            raise UsageError(f"{path} is there and no bill of materials", hint=hint)
        return write_whole(path, bill)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}", hint=hint) from error


def _is_bill(path: Path) -> bool:
    try:
        document = json.loads(path.read_bytes())
    except ValueError:
        return False
    return isinstance(document, dict) and document.get("bomFormat") == "CycloneDX"
