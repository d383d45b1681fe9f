"""Which artifacts of an output folder hold for what is asked today, by its own record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from ...core.manifest import Manifest
from ...core.records import REJECTED, Artifact
from ...core.verdict import State
from ..manifest_file import read_manifest
from ..provenance.sealing import is_bound
from .digests import Digests
from .needs import unmet


def standing(
    folder: Path, keys: Mapping[str, str], *, root: Path, digests: Digests
) -> frozenset[str]:
    """The steps whose artifacts stand in a folder as they would be made and judged today.

    Args:
        folder: an output folder; it may not be there.
        keys: today's keys of the steps, by name.
        root: the folder that the run is started in.
        digests: what remembers digests of files.

    Raises:
        UsageError: the folder's manifest is none.
    """
    manifest = read_manifest(folder)
    return (
        frozenset()
        if manifest is None
        else standing_in(manifest, folder, keys, root=root, digests=digests)
    )


def standing_in(
    manifest: Manifest, folder: Path, keys: Mapping[str, str], *, root: Path, digests: Digests
) -> frozenset[str]:
    """As `standing`, by a manifest that was read."""
    found = tuple(_named(manifest, keys))
    if not found or unmet(manifest.needs, root, digests):
        return frozenset()
    return frozenset(step for step, one in found if not _changed(one, folder, digests))


def _named(manifest: Manifest, keys: Mapping[str, str]) -> Iterator[tuple[str, Artifact]]:
    """Judged artifacts with today's key, which nothing on record contradicts."""
    names = {artifact.name for artifact in manifest.artifacts}
    left = {one.step for one in manifest.failures} | {one.step for one in manifest.pending}
    for artifact in manifest.artifacts:
        step = artifact.step
        verdict = manifest.verdict_of(artifact.name)
        judged = verdict is not None and verdict.state is not State.ERROR
        # What was refused after it was proven, or ended otherwise, came later.
        alone = artifact.rejected or f"{REJECTED}/{step}" not in names
        keyed = bool(artifact.key) and artifact.key == keys.get(step)
        if keyed and judged and alone and step not in left and is_bound(artifact, manifest):
            yield step, artifact


def _changed(artifact: Artifact, folder: Path, digests: Digests) -> bool:
    """Whether a file of it is gone or another; a debug sidecar may stay behind."""
    for file in artifact.files:
        path = folder / file.name
        if not path.is_file() and file.role == "debug":
            continue
        try:
            if digests.of(path) != file.sha256:
                return True
        except OSError:
            return True
    return False
