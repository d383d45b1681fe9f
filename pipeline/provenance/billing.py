"""Reads the record of an output folder for a bill of materials, and writes the bill."""

from __future__ import annotations

import json
from pathlib import Path

from ...core.errors import UsageError
from ...core.whole import write_whole
from ..recorded import load_manifest
from .records import list_failed_checks
from .sbom import make_sbom
from .verifying import verify_folder


def make_bill(folder: Path) -> bytes:
    """The bill of a folder whose files and record are as they were written.

    Raises:
        UsageError: there is no manifest, or something is not as recorded: a bill with its digests
            would name other files than those that are there.
        MissingError: the package that writes it is not here.
    """
    manifest = load_manifest(folder)
    wrong = list_failed_checks(verify_folder(folder).checks)
    if wrong:
        first = wrong[0]
        raise UsageError(
            f"{folder} is not as it was recorded: {first.of}, {first.what}: {first.detail}",
            hint=f"see modelc verify {folder}, and export again",
        )
    return make_sbom(manifest)


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
