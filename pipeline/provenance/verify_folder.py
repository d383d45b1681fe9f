"""Verify an output folder without running a model: files, metadata, seals, signature."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from ...converters.registry import TARGETS
from ...core.contract import Target
from ...core.errors import UsageError
from ...core.manifest import Manifest
from ...core.nested_values import is_loader_spec
from ...core.records import joint_digest, sha256_of
from ..manifest_file import COMMIT_FOLDER, MANIFEST_FILE, decode_manifest
from ..output_folder import REPLACED_FOLDER
from .artifact_checks import (
    CheckOutcome,
    FolderVerification,
    ProvenanceCheck,
    VerifiedRecord,
    check_artifact,
    describe_change,
    resolve_links,
)
from .seals import seal_holds
from .signing import check_signature
from .unclaimed_files import ClaimedFiles, check_unclaimed, manifest_folders, real_place

if TYPE_CHECKING:
    from .signing import PublicKey

HOLDS, FAILED, LACKING, UNCHECKED = CheckOutcome


@dataclass(frozen=True, kw_only=True)
class ReadManifest:
    """The text of a manifest, and the subfolders with manifests of their own."""

    text: bytes
    apart: Collection[Path] = ()


def verify_folder(
    folder: Path,
    *,
    key: PublicKey | None = None,
    name: str = "",
    read: ReadManifest | None = None,
    targets: tuple[Target, ...] = TARGETS,
) -> FolderVerification:
    """Check all claims of a folder's manifest against its files.

    Args:
        folder: an output folder of `modelc export`; it is not changed.
        key: the key that must have signed the manifest; None requires no signature.
        name: the name of the model, if the folder is one of several.
        read: a manifest read earlier, so that all checks use the same text.
        targets: the table of formats.

    Raises:
        UsageError: the folder has no manifest.
        MissingError: the package for signatures is not installed.
    """
    path = folder / MANIFEST_FILE
    if not path.is_file():
        raise UsageError(
            f"{folder} has no {MANIFEST_FILE}", hint="give what modelc export or modelc run wrote"
        )
    if read is None:
        read = ReadManifest(text=path.read_bytes(), apart=manifest_folders(folder))
    text = read.text
    try:
        manifest = decode_manifest(text, path)
    except UsageError as error:
        wrong = ProvenanceCheck(of="manifest", what="form", found=FAILED, detail=error.message)
        return FolderVerification(folder=str(folder), checks=(wrong,), name=name)
    record = VerifiedRecord(folder, manifest, json.loads(text), targets)
    checks = (
        *_check_manifest(folder, text, record.raw, key),
        *_check_source(folder, manifest),
        *(check for artifact in manifest.artifacts for check in check_artifact(artifact, record)),
        *_check_unfinished(manifest),
        *_check_replaced(folder, manifest),
        *check_unclaimed(folder, _collect_claimed(folder, manifest, read), signed=key is not None),
    )
    return FolderVerification(folder=str(folder), checks=checks, name=name)


def _check_manifest(
    folder: Path, text: bytes, raw: dict[str, Any], key: PublicKey | None
) -> Iterator[ProvenanceCheck]:
    strange = sorted(set(raw) - {one.name for one in fields(Manifest)})
    if strange:
        detail = f"it has {', '.join(map(repr, strange))}, which this modelc does not write"
        yield ProvenanceCheck(of="manifest", what="form", found=FAILED, detail=detail)
    if (folder / COMMIT_FOLDER).exists():
        detail = "a run was ended in the middle of a change: run modelc here again"
        yield ProvenanceCheck(of="manifest", what="form", found=FAILED, detail=detail)
    holds = seal_holds(text)
    if holds is None and raw.get("seal"):
        holds = False
    yield ProvenanceCheck(
        of="manifest",
        what="seal",
        found=LACKING if holds is None else HOLDS if holds else FAILED,
        detail="" if holds else "it has none" if holds is None else "changed since it was written",
    )
    yield check_signature(folder / MANIFEST_FILE, text, key)


def _check_source(folder: Path, manifest: Manifest) -> Iterator[ProvenanceCheck]:
    """Check the checkpoint and the user's samples, if they exist."""
    yield _check_checkpoint(folder, manifest)
    samples, digest = manifest.feeds.samples, manifest.feeds.samples_digest
    if samples is None:
        return
    path = folder / samples
    if is_loader_spec(samples) or digest is None or not path.is_file():
        why = "a loader" if is_loader_spec(samples) else f"{samples} is not here"
        yield ProvenanceCheck(of="samples", what="files", found=UNCHECKED, detail=why)
    elif sha256_of(path) == digest:
        yield ProvenanceCheck(of="samples", what="files", found=HOLDS)
    else:
        detail = f"{samples} is not what was fed"
        yield ProvenanceCheck(of="samples", what="files", found=FAILED, detail=detail)


def _check_checkpoint(folder: Path, manifest: Manifest) -> ProvenanceCheck:
    then = manifest.checkpoint
    path = folder / then.path
    root = path if path.is_dir() else path.parent
    if joint_digest(then.files) != then.digest:
        detail = "the digest of the whole is not that of its files"
    elif not path.exists():
        detail = f"{then.path} is not here"
        return ProvenanceCheck(of="checkpoint", what="files", found=UNCHECKED, detail=detail)
    else:
        changed = [
            file.name
            for file in then.files
            if not (root / file.name).is_file() or sha256_of(root / file.name) != file.sha256
        ]
        if not changed:
            return ProvenanceCheck(of="checkpoint", what="files", found=HOLDS, detail=then.digest)
        detail = f"{', '.join(changed)}: not the recorded bytes"
    return ProvenanceCheck(of="checkpoint", what="files", found=FAILED, detail=detail)


def _check_unfinished(manifest: Manifest) -> Iterator[ProvenanceCheck]:
    """Yield a check for each step without an artifact."""
    ended = [(one.step, f"failed: {one.message}") for one in manifest.failures]
    ended += [(one.step, f"pending: {one.reason}") for one in manifest.pending]
    ended += [(step, "not come to") for step in manifest.unmade]
    for step, why in ended:
        yield ProvenanceCheck(
            of=step, what="verdict", found=UNCHECKED, detail=f"not claimed: {why}"
        )


def _check_replaced(folder: Path, manifest: Manifest) -> Iterator[ProvenanceCheck]:
    """Check files that a run moved to `replaced/`: they may be missing but not changed."""
    there = [file for file in manifest.replaced if (folder / file.name).exists()]
    for file in there:
        wrong = describe_change(file, folder)
        if wrong:
            yield ProvenanceCheck(of=file.name, what="files", found=FAILED, detail=wrong)
    if there:
        names = sorted({PurePosixPath(file.name).parts[0] for file in there})
        detail = f"not claimed: {len(there)} files of earlier models in {', '.join(names)}"
        yield ProvenanceCheck(of=REPLACED_FOLDER, what="verdict", found=UNCHECKED, detail=detail)


def _collect_claimed(folder: Path, manifest: Manifest, read: ReadManifest) -> ClaimedFiles:
    """Collect the files that the record covers: artifacts, replaced files, checkpoint, samples.

    A checkpoint that does not exist claims no path.
    """
    checkpoint = folder / manifest.checkpoint.path
    root = checkpoint if checkpoint.is_dir() else checkpoint.parent
    given = [root / file.name for file in manifest.checkpoint.files] if checkpoint.exists() else []
    own = [folder / file.name for file in (*manifest.files, *manifest.replaced)]
    samples = [] if manifest.feeds.samples is None else [folder / manifest.feeds.samples]
    parents = {one.parent for one in manifest.artifacts}
    return ClaimedFiles(
        apart=frozenset(read.apart),
        places=frozenset(map(real_place, (*given, *own, *samples))),
        read=frozenset(resolve_links(path) for path in (*given, *samples)),
        digests=frozenset({*parents, manifest.checkpoint.digest}),
    )
