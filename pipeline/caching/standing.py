"""What of an output folder holds for what is asked today, by its own record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ...core.manifest import Failure, Manifest
from ...core.records import REJECTED, Artifact
from ...core.verdict import State
from ..provenance.sealing import is_bound
from .digests import FileDigests
from .needs import find_unmet_dependency


@dataclass(frozen=True, kw_only=True)
class UpToDate:
    """By step: artifacts as they would be made and judged today, failures that would come again."""

    artifacts: Mapping[str, Artifact] = field(default_factory=dict)
    failures: Mapping[str, Failure] = field(default_factory=dict)


def find_up_to_date(
    manifest: Manifest, folder: Path, keys: Mapping[str, str], *, root: Path, digests: FileDigests
) -> UpToDate:
    """What stands in a folder.

    Args:
        manifest: the folder's record.
        folder: an output folder.
        keys: today's keys of the steps, by name.
        root: the folder that the run is started in.
        digests: what remembers digests of files.
    """
    artifacts = {one.step: one for one in _iter_judged_artifacts(manifest, keys)}
    waiting = {one.step for one in manifest.pending}
    failures = {
        one.step: one
        for one in manifest.failures
        if _has_current_key(one.key, one.step, keys) and one.step not in waiting
    }
    if not (artifacts or failures) or find_unmet_dependency(manifest.needs, root, digests):
        return UpToDate()
    whole = {
        step: one for step, one in artifacts.items() if not _has_changed_file(one, folder, digests)
    }
    return UpToDate(artifacts=whole, failures=failures)


def _iter_judged_artifacts(manifest: Manifest, keys: Mapping[str, str]) -> Iterator[Artifact]:
    """Judged artifacts with today's key, which nothing on record contradicts."""
    names = {artifact.name for artifact in manifest.artifacts}
    left = {one.step for one in manifest.failures} | {one.step for one in manifest.pending}
    for artifact in manifest.artifacts:
        step = artifact.step
        verdict = manifest.verdict_of(artifact.name)
        judged = verdict is not None and verdict.state is not State.ERROR
        # What was refused after it was proven, or ended otherwise, came later.
        alone = artifact.rejected or f"{REJECTED}/{step}" not in names
        keyed = _has_current_key(artifact.key, step, keys)
        if keyed and judged and alone and step not in left and is_bound(artifact, manifest):
            yield artifact


def _has_current_key(key: str, step: str, keys: Mapping[str, str]) -> bool:
    return bool(key) and key == keys.get(step)


def _has_changed_file(artifact: Artifact, folder: Path, digests: FileDigests) -> bool:
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
