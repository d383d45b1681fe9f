"""Verify an output folder without running a model: files, metadata, seals, signature."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from ...converters.registry import TARGETS
from ...core.contract import Target
from ...core.errors import ErrorCode, UsageError
from ...core.manifest import Manifest
from ...core.nested_values import is_loader_spec
from ...core.records import joint_digest, sha256_of
from ..hub_source import find_recorded_checkpoint
from ..image_samples import digest_samples
from ..manifest_file import COMMIT_FOLDER, MANIFEST_FILE, decode_manifest
from ..output_folder import REPLACED_FOLDER
from .artifact_checks import (
    CheckOutcome,
    FolderVerification,
    ProvenanceCheck,
    VerifiedRecord,
    check_artifact,
    check_external,
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
    """A manifest that was read once, and the folders below with records of their own."""

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
    """Check the claims of a folder's manifest against the current files.

    Args:
        folder: the output of `modelc export -o`; it is not changed.
        key: the public key of the signer; None does not require a signature.
        name: the model's name if the folder is one of several.
        read: an earlier read of the manifest, so that all checks use the same bytes.
        targets: the table of formats.

    Raises:
        UsageError: there is no manifest.
        MissingError: the cryptography package is not installed.
    """
    path = folder / MANIFEST_FILE
    if not path.is_file():
        raise UsageError(
            f"{folder} has no {MANIFEST_FILE}",
            hint="give an output folder of modelc export or modelc run",
            code=ErrorCode.NO_MANIFEST,
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
        *check_external(record),
        *_check_unfinished(manifest),
        *_check_pending(folder, manifest),
        *_check_replaced(folder, manifest),
        *check_unclaimed(folder, _collect_claimed(folder, manifest, read), signed=key is not None),
    )
    return FolderVerification(folder=str(folder), checks=checks, name=name)


def _check_manifest(
    folder: Path, text: bytes, raw: dict[str, Any], key: PublicKey | None
) -> Iterator[ProvenanceCheck]:
    unknown = sorted(set(raw) - {one.name for one in fields(Manifest)})
    if unknown:
        detail = f"it has the keys {', '.join(map(repr, unknown))}, which modelc does not write"
        yield ProvenanceCheck(of="manifest", what="form", found=FAILED, detail=detail)
    if (folder / COMMIT_FOLDER).exists():
        detail = "a run was killed during a commit: run modelc here again"
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
    """Check the checkpoint and the user's samples, if present."""
    yield _check_checkpoint(folder, manifest)
    yield from _check_tokenizer(folder, manifest)
    samples, digest = manifest.feeds.samples, manifest.feeds.samples_digest
    if samples is None:
        return
    path = folder / samples
    if is_loader_spec(samples) or digest is None or not path.exists():
        why = "a loader" if is_loader_spec(samples) else f"{samples} is not here"
        yield ProvenanceCheck(of="samples", what="files", found=UNCHECKED, detail=why)
    elif digest_samples(path) == digest:
        yield ProvenanceCheck(of="samples", what="files", found=HOLDS)
    else:
        detail = f"{samples} changed since the export"
        yield ProvenanceCheck(of="samples", what="files", found=FAILED, detail=detail)


def _check_tokenizer(folder: Path, manifest: Manifest) -> Iterator[ProvenanceCheck]:
    """Check the tokenizer's files, where they are beside the manifest or where they were."""
    tokens = manifest.meta.tokenizer
    if tokens is None or not tokens.files:
        return
    found, detail = HOLDS, f"{len(tokens.files)} as recorded"
    places = [place for place in (folder / tokens.source, Path(tokens.source)) if place.exists()]
    if not places:
        found, detail = UNCHECKED, f"{tokens.source} is not here"
    else:
        root = places[0] if places[0].is_dir() else places[0].parent
        changed = [
            name
            for name, digest in tokens.files.items()
            if not (root / name).is_file() or sha256_of(root / name) != digest
        ]
        if changed:
            found, detail = FAILED, f"{', '.join(changed)} changed"
    yield ProvenanceCheck(of="tokenizer", what="files", found=found, detail=detail)


def _check_checkpoint(folder: Path, manifest: Manifest) -> ProvenanceCheck:
    then = manifest.checkpoint
    path = find_recorded_checkpoint(then, folder)
    if joint_digest(then.files) != then.digest:
        detail = "its digest is not that of its files"
    elif path is None:
        detail = f"{then.path} is not {'in the cache' if then.hub else 'here'}"
        return ProvenanceCheck(of="checkpoint", what="files", found=UNCHECKED, detail=detail)
    else:
        root = path if path.is_dir() else path.parent
        changed = [
            file.name
            for file in then.files
            if not (root / file.name).is_file() or sha256_of(root / file.name) != file.sha256
        ]
        if not changed:
            return ProvenanceCheck(of="checkpoint", what="files", found=HOLDS, detail=then.digest)
        detail = f"{', '.join(changed)} changed"
    return ProvenanceCheck(of="checkpoint", what="files", found=FAILED, detail=detail)


def _check_unfinished(manifest: Manifest) -> Iterator[ProvenanceCheck]:
    """Yield the steps without an artifact: failed, pending or not executed."""
    ended = [(one.step, f"failed: {one.message}") for one in manifest.failures]
    ended += [(one.step, f"pending: {one.reason}") for one in manifest.pending]
    ended += [(step, "not executed") for step in manifest.unmade]
    for step, why in ended:
        yield ProvenanceCheck(
            of=step, what="verdict", found=UNCHECKED, detail=f"not claimed: {why}"
        )


def _check_pending(folder: Path, manifest: Manifest) -> Iterator[ProvenanceCheck]:
    """Check that files that are built and not judged yet, and references, are unchanged."""
    for step in (one for one in manifest.pending if one.files or one.references):
        files = (*step.files, *step.references)
        wrong = next(filter(None, (describe_change(file, folder) for file in files)), "")
        found = FAILED if wrong else HOLDS
        yield ProvenanceCheck(of=step.step, what="files", found=found, detail=wrong)


def _check_replaced(folder: Path, manifest: Manifest) -> Iterator[ProvenanceCheck]:
    """Check that replaced files of earlier models are unchanged; they may be removed."""
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
    """Return the files in the manifest: artifacts, replaced files, checkpoint, samples.

    A checkpoint that is not at its recorded path claims no file.
    """
    checkpoint = find_recorded_checkpoint(manifest.checkpoint, folder)
    given: list[Path] = []
    if checkpoint is not None and manifest.checkpoint.hub is None:
        root = checkpoint if checkpoint.is_dir() else checkpoint.parent
        given = [root / file.name for file in manifest.checkpoint.files]
    own = [folder / file.name for file in (*manifest.files, *manifest.replaced)]
    samples = [] if manifest.feeds.samples is None else [folder / manifest.feeds.samples]
    parents = {one.parent for one in manifest.artifacts}
    return ClaimedFiles(
        apart=frozenset(read.apart),
        places=frozenset(map(real_place, (*given, *own, *samples))),
        read=frozenset(resolve_links(path) for path in (*given, *samples)),
        digests=frozenset({*parents, manifest.checkpoint.digest}),
    )
