"""The digest of modelc's own source: between two releases code changes under one version."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from .digests import FileDigests

PACKAGE_ROOT = Path(__file__).resolve().parents[2]
ARTIFACT_PACKAGES = ("calibration", "converters", "core", "pipeline", "sources", "validators")
# What these ask is in the order, and what they draw is no part of a result.
OUTPUT_PACKAGES = ("cli", "projects", "reports", "testing")


def digest_of_code(digests: FileDigests, root: Path = PACKAGE_ROOT) -> str:
    """One digest over the source files of the rooms that make and judge artifacts."""
    return digests.once(f"code in {root}", lambda: _digest_of_code(digests, root))


def _digest_of_code(digests: FileDigests, root: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(_source_files(root)):
        digest.update(f"{path.relative_to(root).as_posix()}\0{digests.of(path)}\n".encode())
    return digest.hexdigest()


def _source_files(root: Path) -> Iterator[Path]:
    for room in ARTIFACT_PACKAGES:
        yield from (root / room).rglob("*.py")


def is_own_code(path: Path, root: Path = PACKAGE_ROOT) -> bool:
    """Whether a file is modelc's own; sample models are what users have."""
    if not path.is_relative_to(root) or path == root:
        return False
    first = path.relative_to(root).parts[0]
    return first in (*ARTIFACT_PACKAGES, *OUTPUT_PACKAGES) or (
        path.parent == root and path.suffix == ".py"
    )
