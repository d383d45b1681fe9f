"""Where things lie in a store, and the lock that is held while names come and go.

entries/KEY/NAME.json   NAME is the SHA-256 of the entry; several where one key had several results
blobs/AB/SHA256         the files of all entries, each once
drafts/                 what is being written, each with the lock of whoever writes it
.lock                   the store's own; it ends with the process that holds it

A draft's folder is 64 random hexadecimal digits, as KEY, NAME and SHA256 are. The folder of a cache
may be any folder of the user's: what has another name, or lies behind a link, is not the store's
and is neither counted nor removed.
"""

from __future__ import annotations

import errno
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from .entry import CacheEntry, CorruptEntryError, decode_entry, is_digest

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
