"""Where things lie in a store, and the lock that is held while names come and go.

entries/KEY/NAME.json   NAME is the SHA-256 of the entry; several where one key had several results
blobs/AB/SHA256         the files of all entries, each once
drafts/                 what is being written, each with the lock of whoever writes it
.lock                   the store's own; it ends with the process that holds it
"""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from .entry import Entry, FaultyError, decoded, is_digest

LOCK = ".lock"
_ENTRIES, _BLOBS, _DRAFTS = "entries", "blobs", "drafts"
_PATIENCE = 60.0  # seconds to wait for a lock that is held for moments
_MAY_NOT = (errno.EACCES, errno.EPERM, errno.EROFS)


@dataclass(frozen=True, kw_only=True)
class Layout:
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
        for place in folders_in(self.folder / _ENTRIES):
            for path in entries_in(place):
                with suppress(FileNotFoundError):
                    found.append((path, path.stat().st_mtime))
        return sorted(found, key=lambda one: one[1], reverse=True)

    def blobs(self) -> Iterator[Path]:
        """All files."""
        for place in folders_in(self.folder / _BLOBS):
            yield from place.iterdir()

    def size(self) -> int:
        """Bytes of all files and entries."""
        found = 0
        for path in (*self.blobs(), *(path for path, _ in self.entries())):
            with suppress(FileNotFoundError):
                found += path.stat().st_size
        return found

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the store. A folder that may only be read has no lock, and nobody to fear.

        Raises:
            OSError: another holds it for longer than anyone should.
        """
        from filelock import FileLock

        lock = FileLock(self.folder / LOCK, timeout=_PATIENCE)
        try:
            lock.acquire()
        except OSError as error:
            if error.errno not in _MAY_NOT:
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
        with self.locked():
            place.mkdir(parents=True, exist_ok=True)
            _clear(place)
            draft = Path(tempfile.mkdtemp(dir=place))
            lock = FileLock(draft / LOCK)
            lock.acquire()
        try:
            yield draft
        finally:
            lock.release()
            shutil.rmtree(draft, ignore_errors=True)

    def drop_empty(self) -> None:
        """Remove folders that nothing is in."""
        for room in (_ENTRIES, _BLOBS):
            for place in folders_in(self.folder / room):
                with suppress(OSError):  # something is in it
                    place.rmdir()


def _clear(drafts: Path) -> None:
    """Remove drafts whose writer is no more: its lock is free."""
    from filelock import FileLock, Timeout

    for draft in folders_in(drafts):
        lock = FileLock(draft / LOCK, timeout=0)
        try:
            lock.acquire()
        except Timeout:
            continue
        lock.release()
        shutil.rmtree(draft, ignore_errors=True)


def read(path: Path) -> Entry:
    """The entry in a file of the store.

    Raises:
        FaultyError: it is damaged, or no entry of ours.
        OSError: it is not there any more, or may not be read.
    """
    return decoded(path.read_bytes(), path.parent.name, path.stem)


def read_or_none(path: Path) -> Entry | None:
    """As `read`, None where it is faulty or gone."""
    try:
        return read(path)
    except (OSError, FaultyError):
        return None


def folders_in(place: Path) -> list[Path]:
    """The folders in a place that may not be there."""
    try:
        return sorted(path for path in place.iterdir() if path.is_dir())
    except OSError:
        return []


def entries_in(place: Path) -> list[Path]:
    """The files of entries in the folder of a key."""
    try:
        return sorted(place.glob("*.json"))
    except OSError:
        return []
