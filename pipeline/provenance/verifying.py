"""Checks an output folder again without running a model: files, what they say, seals, signature."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from ...converters.registry import TARGETS
from ...core.contract import Target
from ...core.digest import joint_digest, sha256_of
from ...core.errors import UsageError
from ...core.loading import is_loader
from ...core.manifest import Manifest
from ..committing import COMMIT
from ..folder import REPLACED
from ..manifest_file import FILE, decode_manifest
from .artifacts import Subject, changed, checks_of, end_of
from .records import Check, Finding, Verified
from .sealing import seal_holds
from .signing import check_signature
from .unclaimed import Claimed, manifest_folders, place_of, unclaimed_models

if TYPE_CHECKING:
    from .signing import PublicKey

HOLDS, FAILED, LACKING, UNCHECKED = Finding


@dataclass(frozen=True, kw_only=True)
class Read:
    """A manifest as it was read once, and the folders below that answer for themselves."""

    text: bytes
    apart: Collection[Path] = ()


def verify_folder(
    folder: Path,
    *,
    key: PublicKey | None = None,
    name: str = "",
    read: Read | None = None,
    targets: tuple[Target, ...] = TARGETS,
) -> Verified:
    """Check all that a folder's manifest claims against the files as they are now.

    Args:
        folder: what `modelc export -o` wrote; nothing in it is changed.
        key: of whoever must have signed the manifest; None does not ask for a signature.
        name: of the model, where the folder is one of several.
        read: where it was read before: whatever is checked is of that one reading.
        targets: the table of formats.

    Raises:
        UsageError: there is no manifest.
        MissingError: the package for signatures is not here.
    """
    path = folder / FILE
    if not path.is_file():
        raise UsageError(
            f"{folder} has no {FILE}", hint="give what modelc export or modelc run wrote"
        )
    if read is None:
        read = Read(text=path.read_bytes(), apart=manifest_folders(folder))
    text = read.text
    try:
        manifest = decode_manifest(text, path)
    except UsageError as error:
        wrong = Check(of="manifest", what="form", found=FAILED, detail=error.message)
        return Verified(folder=str(folder), checks=(wrong,), name=name)
    subject = Subject(folder, manifest, json.loads(text), targets)
    checks = (
        *_of_manifest(folder, text, subject.raw, key),
        *_of_source(folder, manifest),
        *(check for artifact in manifest.artifacts for check in checks_of(artifact, subject)),
        *_not_claimed(manifest),
        *_of_replaced(folder, manifest),
        *unclaimed_models(folder, _claimed(folder, manifest, read), signed=key is not None),
    )
    return Verified(folder=str(folder), checks=checks, name=name)


def _of_manifest(
    folder: Path, text: bytes, raw: dict[str, Any], key: PublicKey | None
) -> Iterator[Check]:
    strange = sorted(set(raw) - {one.name for one in fields(Manifest)})
    if strange:
        detail = f"it has {', '.join(map(repr, strange))}, which this modelc does not write"
        yield Check(of="manifest", what="form", found=FAILED, detail=detail)
    if (folder / COMMIT).exists():
        detail = "a run was ended in the middle of a change: run modelc here again"
        yield Check(of="manifest", what="form", found=FAILED, detail=detail)
    holds = seal_holds(text)
    if holds is None and raw.get("seal"):
        holds = False
    yield Check(
        of="manifest",
        what="seal",
        found=LACKING if holds is None else HOLDS if holds else FAILED,
        detail="" if holds else "it has none" if holds is None else "changed since it was written",
    )
    yield check_signature(folder / FILE, text, key)


def _of_source(folder: Path, manifest: Manifest) -> Iterator[Check]:
    """The checkpoint and the user's samples, where they are."""
    yield _checkpoint(folder, manifest)
    samples, digest = manifest.feeds.samples, manifest.feeds.samples_digest
    if samples is None:
        return
    path = folder / samples
    if is_loader(samples) or digest is None or not path.is_file():
        why = "a loader" if is_loader(samples) else f"{samples} is not here"
        yield Check(of="samples", what="files", found=UNCHECKED, detail=why)
    elif sha256_of(path) == digest:
        yield Check(of="samples", what="files", found=HOLDS)
    else:
        detail = f"{samples} is not what was fed"
        yield Check(of="samples", what="files", found=FAILED, detail=detail)


def _checkpoint(folder: Path, manifest: Manifest) -> Check:
    then = manifest.checkpoint
    path = folder / then.path
    root = path if path.is_dir() else path.parent
    if joint_digest(then.files) != then.digest:
        detail = "the digest of the whole is not that of its files"
    elif not path.exists():
        detail = f"{then.path} is not here"
        return Check(of="checkpoint", what="files", found=UNCHECKED, detail=detail)
    else:
        changed = [
            file.name
            for file in then.files
            if not (root / file.name).is_file() or sha256_of(root / file.name) != file.sha256
        ]
        if not changed:
            return Check(of="checkpoint", what="files", found=HOLDS, detail=then.digest)
        detail = f"{', '.join(changed)}: not the recorded bytes"
    return Check(of="checkpoint", what="files", found=FAILED, detail=detail)


def _not_claimed(manifest: Manifest) -> Iterator[Check]:
    """Steps that left nothing to claim."""
    ended = [(one.step, f"failed: {one.message}") for one in manifest.failures]
    ended += [(one.step, f"pending: {one.reason}") for one in manifest.pending]
    ended += [(step, "not come to") for step in manifest.unmade]
    for step, why in ended:
        yield Check(of=step, what="verdict", found=UNCHECKED, detail=f"not claimed: {why}")


def _of_replaced(folder: Path, manifest: Manifest) -> Iterator[Check]:
    """What an order moved aside: it may be removed, but not be another than it was."""
    there = [file for file in manifest.replaced if (folder / file.name).exists()]
    for file in there:
        wrong = changed(file, folder)
        if wrong:
            yield Check(of=file.name, what="files", found=FAILED, detail=wrong)
    if there:
        names = sorted({PurePosixPath(file.name).parts[0] for file in there})
        detail = f"not claimed: {len(there)} files of earlier models in {', '.join(names)}"
        yield Check(of=REPLACED, what="verdict", found=UNCHECKED, detail=detail)


def _claimed(folder: Path, manifest: Manifest, read: Read) -> Claimed:
    """What the record accounts for: artifacts, what was moved aside, the checkpoint, samples.

    A checkpoint that is not where the record says claims no place.
    """
    checkpoint = folder / manifest.checkpoint.path
    root = checkpoint if checkpoint.is_dir() else checkpoint.parent
    given = [root / file.name for file in manifest.checkpoint.files] if checkpoint.exists() else []
    own = [folder / file.name for file in (*manifest.files, *manifest.replaced)]
    samples = [] if manifest.feeds.samples is None else [folder / manifest.feeds.samples]
    parents = {one.parent for one in manifest.artifacts}
    return Claimed(
        apart=frozenset(read.apart),
        places=frozenset(map(place_of, (*given, *own, *samples))),
        read=frozenset(end_of(path) for path in (*given, *samples)),
        digests=frozenset({*parents, manifest.checkpoint.digest}),
    )
