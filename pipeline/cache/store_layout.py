"""The layout of a result store: paths, lock, encoded entries and the list of results."""

from __future__ import annotations

import errno
import hashlib
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ...core.errors import first_line
from ...core.manifest import Manifest
from ...core.records import FileRecord
from ...core.untrusted_files import is_path_inside
from ..manifest_file import paths_in

STORE_LOCK = ".lock"
_ENTRIES, _BLOBS, _DRAFTS = "entries", "blobs", "drafts"
_STORE_LOCK_TIMEOUT = 60.0  # seconds; the lock is normally held for moments
_DIGITS = 64  # hexadecimal digits of a SHA-256
_OWN_PATH = re.compile(
    r"entries/[0-9a-f]{64}(/[0-9a-f]{64}\.json)?"
    r"|blobs/([0-9a-f]{2})(/\2[0-9a-f]{62})?"
    r"|drafts/[0-9a-f]{64}"
)
_NO_PERMISSION = (errno.EACCES, errno.EPERM, errno.EROFS)


@dataclass(frozen=True, kw_only=True)
class StoreLayout:
    """The paths of a store in a folder."""

    folder: Path

    def place(self, key: str) -> Path:
        """Return the folder of a key's entries."""
        if not is_digest(key):
            raise ValueError(f"{key!r} is not a key")
        return self.folder / _ENTRIES / key

    def blob(self, digest: str) -> Path:
        """Return the path of the file with that digest."""
        if not is_digest(digest):
            raise ValueError(f"{digest!r} is not a digest")
        return self.folder / _BLOBS / digest[:2] / digest

    def entries(self) -> list[tuple[Path, float]]:
        """Return all entries and their last use in seconds since 1970, most recent first."""
        found = []
        for path in self._files(_ENTRIES):
            with suppress(FileNotFoundError):
                found.append((path, path.stat().st_mtime))
        return sorted(found, key=lambda one: one[1], reverse=True)

    def entries_of(self, key: str) -> list[Path]:
        """Return the files of a key's entries; reading through a link is harmless."""
        return [
            path
            for path in _list_folder(self.place(key))
            if self._is_named(path) and path.is_file()
        ]

    def blobs(self) -> Iterator[Path]:
        """Yield all blobs."""
        return self._files(_BLOBS)

    def remove(self, path: Path) -> None:
        """Remove a file of the store; ignore links and names that the store does not use."""
        places = (one for one in (path, *path.parents) if one.is_relative_to(self.folder))
        if self._is_named(path) and not any(one.is_symlink() for one in places):
            path.unlink(missing_ok=True)

    def _files(self, room: str) -> Iterator[Path]:
        for place in self._folders(room):
            for path in _list_folder(place):
                if self._is_named(path) and not path.is_symlink() and path.is_file():
                    yield path

    def _folders(self, room: str) -> list[Path]:
        """Return the store's own subfolders."""
        place = self.folder / room
        if self.folder.is_symlink() or place.is_symlink():
            return []
        found = (path for path in _list_folder(place) if not path.is_symlink() and path.is_dir())
        return [path for path in found if self._is_named(path)]

    def _is_named(self, path: Path) -> bool:
        """Whether the path matches the naming scheme of the store."""
        return _OWN_PATH.fullmatch(path.relative_to(self.folder).as_posix()) is not None

    def size(self) -> int:
        """Return the bytes of all files and entries."""
        found = 0
        for path in (*self.blobs(), *(path for path, _ in self.entries())):
            with suppress(FileNotFoundError):
                found += path.stat().st_size
        return found

    @contextmanager
    def hold_lock(self) -> Iterator[None]:
        """Hold the lock of the store; a read-only folder needs none.

        Raises:
            OSError: another process holds it for too long.
        """
        from filelock import FileLock

        lock = FileLock(self.folder / STORE_LOCK, timeout=_STORE_LOCK_TIMEOUT)
        try:
            lock.acquire()
        except OSError as error:
            if error.errno not in _NO_PERMISSION:
                raise
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def draft(self) -> Iterator[Path]:
        """Create a draft folder on the same file system; remove drafts of killed runs.

        Raises:
            OSError: it cannot be created.
        """
        from filelock import FileLock

        place = self.folder / _DRAFTS
        with self.hold_lock():
            place.mkdir(parents=True, exist_ok=True)
            self._clear_drafts()
            draft = place / secrets.token_hex(_DIGITS // 2)
            draft.mkdir(mode=0o700)
            lock = FileLock(draft / STORE_LOCK)
            lock.acquire()
        try:
            yield draft
        finally:
            lock.release()
            shutil.rmtree(draft, ignore_errors=True)

    def drop_empty(self) -> None:
        """Remove empty folders of the store."""
        for place in (*self._folders(_ENTRIES), *self._folders(_BLOBS)):
            with suppress(OSError):  # not empty
                place.rmdir()

    def _clear_drafts(self) -> None:
        """Remove drafts whose lock is free because their writer ended."""
        from filelock import FileLock, Timeout

        for draft in self._folders(_DRAFTS):
            lock = FileLock(draft / STORE_LOCK, timeout=0)
            try:
                lock.acquire()
            except Timeout:
                continue
            lock.release()
            shutil.rmtree(draft, ignore_errors=True)


def read_entry(path: Path) -> CacheEntry:
    """Read the entry in a file of the store.

    Raises:
        CorruptEntryError: it is damaged, or not an entry of modelc.
        OSError: it was removed, or cannot be read.
    """
    return decode_entry(path.read_bytes(), path.parent.name, path.stem)


def read_entry_or_none(path: Path) -> CacheEntry | None:
    """Read an entry like `read_entry`; None if it is corrupt or removed."""
    try:
        return read_entry(path)
    except (OSError, CorruptEntryError):
        return None


def _list_folder(place: Path) -> list[Path]:
    """List a folder; empty if it does not exist."""
    try:
        return sorted(place.iterdir())
    except OSError:
        return []


class CorruptEntryError(Exception):
    """An entry is damaged or not modelc's. The cache treats it as a miss and never raises it."""


@dataclass(frozen=True, kw_only=True)
class CachedQuantization:
    """A quantizer's result: the name of the model file, and what the quantizer reported."""

    model: str
    versions: dict[str, str]
    options: dict[str, str]
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class CacheEntry:
    """One result; `files` are named as in the output folder, or in a quantizer's.

    `manifest` has the artifact of the step, with its verdict and dependencies. `calibrated`
    replaces it for a quantizer's result. `model` is the name of the model.
    """

    key: str
    model: str
    artifact: str
    files: tuple[FileRecord, ...]
    manifest: Manifest | None = None
    calibrated: CachedQuantization | None = None

    @property
    def size(self) -> int:
        """Return the bytes of its files."""
        return sum(file.size for file in self.files)


def encode_entry(entry: CacheEntry) -> bytes:
    """Encode the entry so that decoding and encoding it again gives the same bytes."""
    import msgspec

    # An integer in a float field would be encoded differently after a round trip.
    read = msgspec.json.decode(msgspec.json.encode(entry), type=CacheEntry)
    return msgspec.json.encode(read)


def entry_name(raw: bytes) -> str:
    """Return the name of an encoded entry, which is its digest."""
    return hashlib.sha256(raw).hexdigest()


def decode_entry(raw: bytes, key: str, name: str) -> CacheEntry:
    """Decode the entry stored as `name` under `key`.

    Raises:
        CorruptEntryError: it is another entry or invalid, or its names point outside of its folder.
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
    if not all(map(is_path_inside, _entry_paths(entry))):
        raise CorruptEntryError("unsafe (it names a file outside its folder)")
    if entry.manifest is not None and not _is_consistent(entry, entry.manifest):
        raise CorruptEntryError("inconsistent")
    if not all(is_digest(file.sha256) and file.size >= 0 for file in entry.files):
        raise CorruptEntryError("unreadable (invalid digest)")
    return entry


def _is_consistent(entry: CacheEntry, manifest: Manifest) -> bool:
    """Whether it has one judged artifact with this key, and all files of that artifact."""
    if len(manifest.artifacts) != 1 or len(manifest.verdicts) != 1:
        return False
    artifact, verdict = manifest.artifacts[0], manifest.verdicts[0]
    names = {artifact.name, verdict.artifact, entry.artifact}
    here = {(file.name, file.sha256, file.size) for file in entry.files}
    parts = [file for file in artifact.files if file.role != "debug"]
    whole = bool(parts) and all((file.name, file.sha256, file.size) in here for file in parts)
    return len(names) == 1 and artifact.key == entry.key and whole


def is_digest(text: str) -> bool:
    """Whether the text is a SHA-256 in hexadecimal digits, and so a valid file name."""
    return len(text) == _DIGITS and set(text) <= set("0123456789abcdef")


def _entry_paths(entry: CacheEntry) -> Iterator[str]:
    yield from (file.name for file in entry.files)
    if entry.calibrated is not None:
        yield entry.calibrated.model
    if entry.manifest is not None:
        yield from filter(None, paths_in(entry.manifest))


@dataclass(frozen=True, kw_only=True)
class ListedResult:
    """One result: model, artifact, bytes of its files, and last use (seconds since 1970).

    `name` is the digest of its entry: a key has several results if the model's code read different
    files.
    """

    model: str
    artifact: str
    size: int
    used: float
    key: str
    name: str


def list_results(layout: StoreLayout) -> tuple[ListedResult, ...]:
    """Return the results in a store, most recently used first; `verify` handles damaged ones."""
    rows = []
    for path, used in layout.entries():
        entry = read_entry_or_none(path)
        if entry is not None:
            rows.append(
                ListedResult(
                    model=entry.model, artifact=entry.artifact, size=entry.size, used=used,
                    key=entry.key, name=path.stem,
                )
            )  # fmt: skip
    return tuple(rows)
