"""What the store holds under a key: the record of a result, and which files belong to it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath, PureWindowsPath

from ...core.errors import first_line
from ...core.manifest import Manifest
from ...core.records import FileRecord
from ..manifest_file import paths_in

_DIGEST_LENGTH = 64  # hexadecimal digits of a SHA-256


class CorruptEntryError(Exception):
    """An entry is damaged or not one of ours. It never leaves the cache: there it is a miss."""


@dataclass(frozen=True, kw_only=True)
class CachedQuantization:
    """A quantizer's result: the model's name among the files, and what the quantizer said."""

    model: str
    versions: dict[str, str]
    options: dict[str, str]
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class CacheEntry:
    """One result. `files` are named as they lie in the output folder, or in a quantizer's.

    `manifest` has the one artifact of a step, with its verdict and what it needed beside the key;
    `calibrated` is there in its place where it is a quantizer's result. `model` is whose.
    """

    key: str
    model: str
    artifact: str
    files: tuple[FileRecord, ...]
    manifest: Manifest | None = None
    calibrated: CachedQuantization | None = None

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return sum(file.size for file in self.files)


def encode_entry(entry: CacheEntry) -> bytes:
    """The entry as it is stored; once read and stored again it is the same text."""
    import msgspec

    # A whole number where a float is meant would come back as another text.
    read = msgspec.json.decode(msgspec.json.encode(entry), type=CacheEntry)
    return msgspec.json.encode(read)


def entry_name(raw: bytes) -> str:
    """The name that an entry is stored under: a changed byte is another name."""
    return hashlib.sha256(raw).hexdigest()


def decode_entry(raw: bytes, key: str, name: str) -> CacheEntry:
    """The entry that was stored as `name` under `key`.

    Raises:
        FaultyError: it is not that entry, or none, or its names lead out of a folder.
    """
    import msgspec

    if entry_name(raw) != name:
        raise CorruptEntryError("changed")
    try:
        entry = msgspec.json.decode(raw, type=CacheEntry)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptEntryError(f"unreadable ({first_line(error, limit=80)})") from error
    if entry.key != key:
        raise CorruptEntryError("another step's")
    if not all(map(_is_relative_inside, _entry_paths(entry))):
        raise CorruptEntryError("unsafe (it names a file outside its folder)")
    if entry.manifest is not None and not _is_consistent(entry, entry.manifest):
        raise CorruptEntryError("inconsistent")
    if not all(is_digest(file.sha256) and file.size >= 0 for file in entry.files):
        raise CorruptEntryError("unreadable (a digest is none)")
    return entry


def _is_consistent(entry: CacheEntry, manifest: Manifest) -> bool:
    """Whether it has one artifact, judged, with this key, and all the files that it consists of."""
    if len(manifest.artifacts) != 1 or len(manifest.verdicts) != 1:
        return False
    artifact, verdict = manifest.artifacts[0], manifest.verdicts[0]
    names = {artifact.name, verdict.artifact, entry.artifact}
    here = {(file.name, file.sha256, file.size) for file in entry.files}
    parts = [file for file in artifact.files if file.role != "debug"]
    whole = bool(parts) and all((file.name, file.sha256, file.size) in here for file in parts)
    return len(names) == 1 and artifact.key == entry.key and whole


def is_digest(text: str) -> bool:
    """Whether it can be a SHA-256 in hexadecimal digits, and so a file's name."""
    return len(text) == _DIGEST_LENGTH and set(text) <= set("0123456789abcdef")


def _entry_paths(entry: CacheEntry) -> Iterator[str]:
    yield from (file.name for file in entry.files)
    if entry.calibrated is not None:
        yield entry.calibrated.model
    if entry.manifest is not None:
        yield from filter(None, paths_in(entry.manifest))


def _is_relative_inside(name: str) -> bool:
    windows = PureWindowsPath(name)
    parts = {*PurePosixPath(name).parts, *windows.parts}
    rooted = PurePosixPath(name).is_absolute() or windows.drive or windows.root
    return bool(name) and not rooted and ".." not in parts and "\0" not in name
