"""The files of a result store: paths, lock, encoded entries, and the listing for users."""

from __future__ import annotations

import errno
import hashlib
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath

from ...core.errors import first_line
from ...core.manifest import Manifest
from ...core.records import FileRecord
from ..manifest_file import paths_in

STORE_LOCK = ".lock"
_ENTRIES, _BLOBS, _DRAFTS = "entries", "blobs", "drafts"
_STORE_LOCK_TIMEOUT = 60.0  # seconds to wait for a lock that is held for moments
_DIGITS = 64  # of a SHA-256
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
        """The folder of a key's entries."""
        if not is_digest(key):
            raise ValueError(f"{key!r} is no key")
        return self.folder / _ENTRIES / key

    def blob(self, digest: str) -> Path:
        """Where the file of that digest lies, or would."""
        if not is_digest(digest):
            raise ValueError(f"{digest!r} is no digest")
        return self.folder / _BLOBS / digest[:2] / digest

    def entries(self) -> list[tuple[Path, float]]:
        """All entries and when each was used, in seconds since 1970, the last first."""
        found = []
        for path in self._files(_ENTRIES):
            with suppress(FileNotFoundError):
                found.append((path, path.stat().st_mtime))
        return sorted(found, key=lambda one: one[1], reverse=True)

    def entries_of(self, key: str) -> list[Path]:
        """The files of a key's entries; reading them through a link is harmless."""
        return [
            path
            for path in _list_folder(self.place(key))
            if self._is_named(path) and path.is_file()
        ]

    def blobs(self) -> Iterator[Path]:
        """All files."""
        return self._files(_BLOBS)

    def remove(self, path: Path) -> None:
        """Remove an entry or a file of the store, but nothing behind a link or of another name."""
        places = (one for one in (path, *path.parents) if one.is_relative_to(self.folder))
        if self._is_named(path) and not any(one.is_symlink() for one in places):
            path.unlink(missing_ok=True)

    def _files(self, room: str) -> Iterator[Path]:
        for place in self._folders(room):
            for path in _list_folder(place):
                if self._is_named(path) and not path.is_symlink() and path.is_file():
                    yield path

    def _folders(self, room: str) -> list[Path]:
        """The store's own folders in a room."""
        place = self.folder / room
        if self.folder.is_symlink() or place.is_symlink():
            return []
        found = (path for path in _list_folder(place) if not path.is_symlink() and path.is_dir())
        return [path for path in found if self._is_named(path)]

    def _is_named(self, path: Path) -> bool:
        """Whether the store itself gives such a name."""
        return _OWN_PATH.fullmatch(path.relative_to(self.folder).as_posix()) is not None

    def size(self) -> int:
        """Bytes of all files and entries."""
        found = 0
        for path in (*self.blobs(), *(path for path, _ in self.entries())):
            with suppress(FileNotFoundError):
                found += path.stat().st_size
        return found

    @contextmanager
    def hold_lock(self) -> Iterator[None]:
        """Hold the store. A folder that may only be read has no lock, and nobody to fear.

        Raises:
            OSError: another holds it for longer than anyone should.
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
        """A folder to write in, on the same file system; what killed runs left beside it goes.

        Raises:
            OSError: it cannot be made.
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
        """Remove folders of the store that nothing is in."""
        for place in (*self._folders(_ENTRIES), *self._folders(_BLOBS)):
            with suppress(OSError):  # something is in it
                place.rmdir()

    def _clear_drafts(self) -> None:
        """Remove drafts whose writer is no more: its lock is free."""
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
    """The entry in a file of the store.

    Raises:
        FaultyError: it is damaged, or no entry of ours.
        OSError: it is not there any more, or may not be read.
    """
    return decode_entry(path.read_bytes(), path.parent.name, path.stem)


def read_entry_or_none(path: Path) -> CacheEntry | None:
    """As `read`, None where it is faulty or gone."""
    try:
        return read_entry(path)
    except (OSError, CorruptEntryError):
        return None


def _list_folder(place: Path) -> list[Path]:
    """What is in a folder that may not be there."""
    try:
        return sorted(place.iterdir())
    except OSError:
        return []


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


@dataclass(frozen=True, kw_only=True)
class ListedResult:
    """One result: whose, what, bytes of its files, and when it was used last (since 1970).

    `name` is the digest of its entry: one key has several results where what the model's code
    reads differed.
    """

    model: str
    artifact: str
    size: int
    used: float
    key: str
    name: str


def list_results(layout: StoreLayout) -> tuple[ListedResult, ...]:
    """The results in a store, the last used first; damaged ones are left to `verify`."""
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
