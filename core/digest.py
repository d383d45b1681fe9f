"""SHA-256 of files, the only identity that modelc trusts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from .records import FileRecord

_BLOCK = 1 << 20


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, read in blocks of 1 MiB."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def record_of(path: Path, *, name: str | None = None, role: str = "model") -> FileRecord:
    """A record of the file as it stands now."""
    return FileRecord(
        name=name or path.name, size=path.stat().st_size, sha256=sha256_of(path), role=role
    )


def is_as_recorded(path: Path, file: FileRecord) -> bool:
    """Whether a file is there with the recorded bytes."""
    there = path.is_file() and path.stat().st_size == file.size
    return there and sha256_of(path) == file.sha256


def joint_digest(files: Iterable[FileRecord]) -> str:
    """One digest for several files: of their sorted lines "name sha256"; of one file, its own."""
    records = sorted(files, key=lambda file: file.name)
    if len(records) == 1:
        return records[0].sha256
    text = "".join(f"{file.name} {file.sha256}\n" for file in records)
    return hashlib.sha256(text.encode()).hexdigest()
