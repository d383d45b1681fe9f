"""Verify `parts.json`: its seal and signature, and that the parts beside it are those it is on."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...checkpoints.user_code import code_folders
from ...core.errors import UsageError
from ...core.manifest import Manifest
from ...core.part_records import PARTS_FILE, WHOLE, PartRecord, PartsManifest
from ...core.records import sha256_of
from ..manifest_file import MANIFEST_FILE, decode_manifest
from ..provenance.artifact_checks import CheckOutcome, ProvenanceCheck
from ..provenance.seals import seal_holds
from ..provenance.signing import check_signature
from .joined_manifest import join_parts
from .part_calibration import digest_held_out
from .parts_file import BuiltPart, decode_parts

if TYPE_CHECKING:
    from ..provenance.signing import PublicKey


@dataclass(frozen=True, kw_only=True)
class ReadRecords:
    """The records below a folder, each read once so that all checks use the same bytes.

    `manifests` and `wholes` are by folder: the manifests, None where it cannot be read, and those
    of several parts.
    """

    root: Path
    manifests: Mapping[Path, bytes | None]
    wholes: Mapping[Path, bytes]

    def prefix(self, folder: Path) -> str:
        """Return what names in a folder begin with: the folder, relative to the root."""
        return "" if folder == self.root else f"{folder.relative_to(self.root).as_posix()}/"

    def manifest_of(self, folder: Path) -> Manifest | bool:
        """Return a folder's manifest or that of its parts; True if it is invalid, False if none."""
        whole, text = self.wholes.get(folder), self.manifests.get(folder)
        if whole is None and text is None:
            return False
        try:
            if text is not None:
                return decode_manifest(text, folder / MANIFEST_FILE)
            record = decode_parts(whole or b"", folder / PARTS_FILE)
        except UsageError:
            return True
        parts = {one.name: self.manifest_of(folder / one.name) for one in record.parts}
        return join_parts(
            record, {name: one for name, one in parts.items() if isinstance(one, Manifest)}
        )


def is_parts_record(text: bytes) -> bool:
    """Whether a `parts.json` is one of modelc; what is damaged counts."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return True
    return not isinstance(document, dict) or not {"modelc", "verdicts"}.isdisjoint(document)


def check_seal(text: bytes, of: str, *, sealed: bool) -> ProvenanceCheck:
    """Check the seal of a record, which may have been removed."""
    well = seal_holds(text)
    if well is None and (sealed or b'"seal"' in text):
        well = False
    found = {None: CheckOutcome.LACKING, True: CheckOutcome.HOLDS, False: CheckOutcome.FAILED}[well]
    detail = {None: "not sealed", True: "", False: "changed since it was written"}[well]
    return ProvenanceCheck(of=of, what="seal", found=found, detail=detail)


def verify_parts(
    folder: Path, records: ReadRecords, key: PublicKey | None
) -> Iterator[ProvenanceCheck]:
    """Check the record of several parts, and that the parts are those that it names.

    Args:
        folder: the folder of `parts.json`; the manifests of its parts are checked apart.
        records: the records as read.
        key: the public key of the signer; None does not require a signature.
    """
    before, text = records.prefix(folder), records.wholes[folder]
    of = f"{before}{PARTS_FILE}"
    try:
        whole = decode_parts(text, folder / PARTS_FILE)
    except UsageError as error:
        yield _fail(of, "form", error.message)
        return
    yield check_seal(text, of, sealed=bool(whole.seal))
    yield check_signature(folder / PARTS_FILE, text, key, of=of)
    for part in whole.parts:
        text_of_part = records.manifest_of(folder / part.name)
        name = f"{before}{part.name}"
        detail = f"{MANIFEST_FILE} is missing" if text_of_part is False else ""
        if isinstance(text_of_part, Manifest):
            detail = _find_difference(part, folder / part.name, text_of_part, whole)
        if detail:
            yield _fail(name, "lineage", detail)
        elif isinstance(text_of_part, Manifest):
            yield ProvenanceCheck(of=name, what="lineage", found=CheckOutcome.HOLDS)
    yield _check_compose(whole, before)
    if whole.held_out:
        yield _check_held_out(whole, folder, before)
    yield from _check_verdicts(whole, before)


def _check_compose(whole: PartsManifest, before: str) -> ProvenanceCheck:
    """Check the file of the user's function, if it is here: the verdicts are on what it did."""
    module = whole.compose.partition(":")[0]
    of, stem = f"{before}{WHOLE}", module.replace(".", "/")
    places = [Path(folder or ".") for folder in (*code_folders(), *sys.path)]
    files = (place / name for place in places for name in (f"{stem}.py", f"{stem}/__init__.py"))
    file = next((one for one in files if one.is_file()), None)
    found, detail = CheckOutcome.HOLDS, ""
    if not whole.compose_sha256:
        found, detail = CheckOutcome.LACKING, f"{whole.compose} was in no file"
    elif file is None:
        found, detail = CheckOutcome.UNCHECKED, f"{module}, which has --compose, is not here"
    elif sha256_of(file) != whole.compose_sha256:
        found = CheckOutcome.FAILED
        detail = f"{file.name} is not the one that the whole was judged with: run modelc validate"
    return ProvenanceCheck(of=of, what="files", found=found, detail=detail)


def _check_held_out(whole: PartsManifest, folder: Path, before: str) -> ProvenanceCheck:
    """Check the samples that INT8 was judged on end to end; they need not be here."""
    now = digest_held_out(folder, whole.held_out)
    changed = next((name for name in now if now[name] != whole.held_out[name]), None)
    missing = next((name for name in whole.held_out if name not in now), None)
    found, detail = CheckOutcome.HOLDS, ""
    if changed is not None:
        found, detail = CheckOutcome.FAILED, f"{changed} is not the sample that INT8 was judged on"
    elif missing is not None:
        found, detail = CheckOutcome.UNCHECKED, f"{missing}, which INT8 was judged on, is not here"
    return ProvenanceCheck(of=f"{before}{WHOLE}", what="samples", found=found, detail=detail)


def _find_difference(
    part: PartRecord, folder: Path, manifest: Manifest, whole: PartsManifest
) -> str:
    """Return why a part is not the one that the whole was judged with; empty if it is."""
    built = BuiltPart(name=part.name, method=part.method, folder=folder, manifest=manifest)
    now = built.record().artifacts
    for name, digest in part.artifacts.items():
        faults = built.list_faults(name, whole.checkpoint.digest)
        fault = next((one.text for one in faults), "")
        if fault:
            return fault
        if now.get(name) != digest:
            state = "is not the one" if name in now else "is missing, and was one"
            return f"{name} {state} that was judged end to end: run modelc validate {folder.parent}"
    return ""


def _check_verdicts(whole: PartsManifest, before: str) -> Iterator[ProvenanceCheck]:
    """Yield the verdicts on all parts together, which hold if they are passed."""
    for verdict in whole.verdicts:
        found = CheckOutcome.HOLDS if verdict.passed else CheckOutcome.UNCHECKED
        detail = "" if verdict.passed else f"not claimed: {verdict.reason or verdict.state}"
        name = f"{before}{WHOLE}/{verdict.artifact}"
        yield ProvenanceCheck(of=name, what="verdict", found=found, detail=detail)
    for failure in whole.failures:
        yield ProvenanceCheck(
            of=f"{before}{WHOLE}/{failure.step}", what="verdict", found=CheckOutcome.UNCHECKED,
            detail=f"not claimed: failed: {failure.message}",
        )  # fmt: skip


def _fail(of: str, what: str, detail: str) -> ProvenanceCheck:
    return ProvenanceCheck(of=of, what=what, found=CheckOutcome.FAILED, detail=detail)
