"""The eager side of an earlier run, found again from its manifest."""

from __future__ import annotations

from pathlib import Path

from ..core.digest import sha256_of
from ..core.errors import CheckpointError, UsageError
from ..core.manifest import Manifest
from ..core.records import Artifact, Checkpoint
from .manifest_file import FILE, read_manifest
from .order import Source


def manifest_of(folder: Path) -> Manifest:
    """The manifest of an output folder.

    Raises:
        UsageError: there is none.
    """
    if not folder.exists():
        raise UsageError(f"no such folder: {folder}", hint="give what modelc export -o wrote")
    manifest = read_manifest(folder)
    if manifest is None:
        raise UsageError(
            f"{folder} has no {FILE}", hint="give what modelc export -o wrote, or a model file"
        )
    return manifest


def record_beside(path: Path) -> tuple[Manifest, Artifact] | None:
    """The manifest in the file's folder and its record of this very file, if there is one."""
    manifest = read_manifest(path.parent)
    if manifest is None:
        return None
    named = [a for a in manifest.artifacts if a.files[0].name == path.name and not a.rejected]
    if not named or named[0].digest != sha256_of(path):
        return None
    return manifest, named[0]


def recorded_source(
    manifest: Manifest, folder: Path, *, checkpoint: Path | None = None, allow_pickle: bool = False
) -> Source:
    """The eager side as the manifest records it.

    Args:
        manifest: the record.
        folder: where the manifest stands; its paths are relative to it.
        checkpoint: where the checkpoint is now, when it has moved.
        allow_pickle: must be said again where the record says it was needed.

    Raises:
        CheckpointError: the checkpoint is not where it was.
        UsageError: a pickle must be allowed again.
    """
    recorded = manifest.checkpoint
    path = checkpoint or folder / recorded.path
    if not path.exists():
        raise CheckpointError(
            f"the checkpoint {path} is not there", hint="say where it is now: --checkpoint PATH"
        )
    if recorded.allow_pickle and not allow_pickle:
        raise UsageError(
            f"{folder} was made from a full pickle, which can run code when it is read",
            hint="add --allow-pickle if you trust its maker",
        )
    samples = manifest.feeds.samples
    return Source(
        checkpoint=path,
        model=recorded.factory,
        model_args=recorded.factory_args,
        strict=recorded.strict,
        allow_pickle=recorded.allow_pickle,
        samples=None if samples is None else folder / samples,
    )


def check_same(now: Checkpoint, manifest: Manifest, source: Source) -> None:
    """That the checkpoint and the samples are byte for byte the recorded ones.

    Raises:
        CheckpointError: one of them is not.
    """
    then = manifest.checkpoint.digest
    if now.digest != then:
        raise CheckpointError(
            f"{source.checkpoint} is not the recorded checkpoint: "
            f"sha256 {now.digest[:12]}… instead of {then[:12]}…",
            hint="give the right one with --checkpoint, or export again",
        )
    samples = manifest.feeds.samples_digest
    if source.samples is None or samples is None:
        return
    if not source.samples.exists() or sha256_of(source.samples) != samples:
        raise CheckpointError(
            f"the samples {source.samples} are gone or changed since the export",
            hint="put the file back, or export again",
        )
