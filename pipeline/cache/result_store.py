"""A content-addressed store of results, with garbage collection and integrity checks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import copyfileobj
from typing import BinaryIO

from ...core.atomic_write import flush_folder
from ...core.errors import ErrorCode, UsageError, first_line
from ...core.events import Noted, Tell, ignore_events
from ...core.records import FileRecord, sha256_of
from .store_layout import (
    CacheEntry,
    CorruptEntryError,
    StoreLayout,
    encode_entry,
    entry_name,
    read_entry,
    read_entry_or_none,
)

RESULTS_FOLDER = "results"  # in the cache folder: the store of steps and quantizers
DEFAULT_CACHE_LIMIT = 10 * 10**9  # bytes of all files; the least recently used are removed first


@dataclass(frozen=True, kw_only=True)
class StoredEntry:
    """An entry in the store, and its last use (seconds since 1970)."""

    entry: CacheEntry
    path: Path
    used: float


class ResultStore:
    """Results by key, up to `limit` bytes.

    Faults of an entry or of the folder are reported once each and never raised; without a usable
    folder, nothing is stored.
    """

    def __init__(
        self, folder: Path, limit: int = DEFAULT_CACHE_LIMIT, tell: Tell = ignore_events
    ) -> None:
        self.layout = StoreLayout(folder=folder)
        self._limit = limit
        self._warn = warn_once(tell)

    def entries(self, key: str) -> Iterator[StoredEntry]:
        """Yield the entries of a key, most recently used first; remove and report damaged ones."""
        paths = self.layout.entries_of(key)
        found = [one for path in paths if (one := self._read(path)) is not None]
        yield from sorted(found, key=lambda one: one.used, reverse=True)

    def _read(self, path: Path) -> StoredEntry | None:
        try:
            return StoredEntry(entry=read_entry(path), path=path, used=path.stat().st_mtime)
        except OSError:  # removed by another run, or not readable
            return None
        except CorruptEntryError as error:
            self._drop(path, str(error))
            return None

    def take(self, stored: StoredEntry, folder: Path) -> bool:
        """Copy an entry's files into a folder and verify their digests; False if one is damaged.

        A damaged entry is removed with its damaged file, and reported.

        Raises:
            OSError: the folder cannot be written.
        """
        with ExitStack() as held:
            try:
                streams = self._open_files(stored, held)
            except OSError as error:
                self._drop(stored.path, f"incomplete ({_describe_os_error(error)})")
                return False
            for file, stream in streams:
                if copy_hashed(stream, folder / file.name) != file.sha256:
                    self._drop(stored.path, f"changed ({file.name})", blob=file.sha256)
                    return False
        return True

    def _open_files(
        self, stored: StoredEntry, held: ExitStack
    ) -> list[tuple[FileRecord, BinaryIO]]:
        """Open the entry's files, and mark it as used now."""
        with self.layout.hold_lock():
            with suppress(OSError):  # a read-only folder works too
                os.utime(stored.path)
            return [
                (file, held.enter_context(self.layout.blob(file.sha256).open("rb")))
                for file in stored.entry.files
            ]

    def put(self, entry: CacheEntry, sources: Mapping[str, Path]) -> bool:
        """Store an entry with its files, which are read from `sources` by name.

        Returns:
            Whether it was stored: False if a file does not match its record, or the folder cannot
            be written.
        """
        try:
            with self.layout.draft() as draft:
                drafts = self._draft_entry(entry.files, sources, draft)
                if drafts is None:
                    return False
                self._settle(entry, drafts, draft)
        except OSError as error:
            self._warn(
                f"cannot write to the cache {self.layout.folder}: {_describe_os_error(error)}"
            )
            return False
        return True

    def _draft_entry(
        self, files: Sequence[FileRecord], sources: Mapping[str, Path], draft: Path
    ) -> dict[str, Path] | None:
        """Copy the files to drafts, by digest; None if one does not match its record."""
        drafts: dict[str, Path] = {}
        for file in files:
            copy = draft / file.sha256
            with sources[file.name].open("rb") as stream:
                if copy_hashed(stream, copy) != file.sha256:
                    self._warn(f"{file.name} changed since it was recorded: not cached")
                    return None
            drafts[file.sha256] = copy
        return drafts

    def _settle(self, entry: CacheEntry, drafts: Mapping[str, Path], draft: Path) -> None:
        """Move files and entry into place; keep existing files of the same name and size."""
        raw = encode_entry(entry)
        written = draft / "entry"
        with written.open("wb") as stream:
            stream.write(raw)
            stream.flush()
            os.fsync(stream.fileno())
        with self.layout.hold_lock():
            for digest, copy in drafts.items():
                place = self.layout.blob(digest)
                if not place.is_file() or place.stat().st_size != copy.stat().st_size:
                    _move_into_place(copy, place)
            path = self.layout.place(entry.key) / f"{entry_name(raw)}.json"
            _move_into_place(written, path)
            if self.layout.size() > self._limit:
                shrink_to(self.layout, self._limit, path)

    def touch(self, stored: StoredEntry) -> bool:
        """Mark an entry as used now; False if one of its files is missing."""
        with suppress(OSError):
            os.utime(stored.path)
        return all(self.layout.blob(file.sha256).is_file() for file in stored.entry.files)

    def _drop(self, path: Path, fault: str, *, blob: str = "") -> None:
        """Remove a damaged result, so that it is built again."""
        self._warn(f"a cached result is {fault}: rebuilt")
        with suppress(OSError), self.layout.hold_lock():
            self.layout.remove(path)
            if blob:
                self.layout.remove(self.layout.blob(blob))


def warn_once(tell: Tell) -> Callable[[str], None]:
    """Return a function that reports a warning, each text once."""
    reported: set[str] = set()

    def warn(text: str) -> None:
        if text not in reported:
            reported.add(text)
            tell(Noted(text=text, warning=True))

    return warn


def _describe_os_error(error: OSError) -> str:
    return error.strerror or first_line(error)


def _move_into_place(draft: Path, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    draft.replace(place)
    flush_folder(place.parent)


def collect_garbage(layout: StoreLayout, *, limit: int, older_than: float | None = None) -> int:
    """Remove entries unused for `older_than` seconds, and the oldest beyond `limit` bytes.

    Returns:
        The number of bytes freed.

    Raises:
        UsageError: the folder cannot be written.
    """
    with _translate_os_errors(layout), layout.hold_lock():
        before = layout.size()
        now = time.time()
        for path, used in layout.entries():
            if older_than is not None and now - used > older_than:
                layout.remove(path)
        shrink_to(layout, limit)
        return before - layout.size()


def shrink_to(layout: StoreLayout, limit: int, newest: Path | None = None) -> None:
    """Keep `newest` and the most recently used entries within the limit.

    Files that entries share count once. Damaged entries and unreferenced files are removed.
    """
    kept: dict[str, int] = {}
    total, full = 0, False
    for path, _ in sorted(layout.entries(), key=lambda one: one[0] != newest):
        entry = read_entry_or_none(path)
        files = () if entry is None else entry.files
        more = {file.sha256: file.size for file in files if file.sha256 not in kept}
        added = sum(more.values()) + path.stat().st_size
        full = full or total + added > limit
        if entry is None or (full and path != newest):
            layout.remove(path)
        else:
            kept.update(more)
            total += added
    for blob in layout.blobs():
        if blob.name not in kept:
            layout.remove(blob)
    layout.drop_empty()


def verify_store(layout: StoreLayout) -> tuple[str, ...]:
    """Verify the digest of every file and remove damaged ones; return one line per fault.

    Raises:
        UsageError: the folder cannot be written.
    """
    with _translate_os_errors(layout):
        faults = (_remove_if_corrupt(layout, path) for path in list(layout.blobs()))
        found = list(filter(None, faults))
    with _translate_os_errors(layout), layout.hold_lock():
        for path, _ in layout.entries():
            entry = read_entry_or_none(path)
            if entry is None:
                layout.remove(path)
                found.append(f"entry {path.stem[:12]}: damaged, or of another version of modelc")
                continue
            lost = [file.name for file in entry.files if not layout.blob(file.sha256).is_file()]
            if lost:
                layout.remove(path)
                found.append(f"{entry.artifact} of {entry.model}: {', '.join(lost)} is missing")
    return tuple(found)


@contextmanager
def _translate_os_errors(layout: StoreLayout) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"cannot write to the cache {layout.folder}: {_describe_os_error(error)}",
            hint="give a writable folder with --cache-dir",
            code=ErrorCode.NOT_WRITABLE,
        ) from error


def _remove_if_corrupt(layout: StoreLayout, blob: Path) -> str:
    """Remove a file whose digest does not match, and describe the fault."""
    try:
        if sha256_of(blob) == blob.name:
            return ""
    except FileNotFoundError:  # another run removed it
        return ""
    layout.remove(blob)
    return f"file {blob.name[:12]}: changed, its digest differs"


_COPY_BLOCK = 1 << 24


def copy_hashed(source: BinaryIO, target: Path) -> str:
    """Copy an open file, flush it to the disk and return the SHA-256 of the copy.

    Never creates a hard link: writing to one file would change the other.

    Raises:
        OSError: the target cannot be written.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as stream:
        if not _copy_in_kernel(source, stream):
            source.seek(0)
            stream.seek(0)
            stream.truncate()
            copyfileobj(source, stream, _COPY_BLOCK)
        stream.flush()
        os.fsync(stream.fileno())
    return sha256_of(target)


def _copy_in_kernel(source: BinaryIO, target: BinaryIO) -> bool:
    """Copy in the kernel, which may share blocks; False if it does not support that."""
    if not hasattr(os, "copy_file_range"):
        return False
    left = os.fstat(source.fileno()).st_size
    try:
        while left > 0:
            done = os.copy_file_range(source.fileno(), target.fileno(), left)
            if done == 0:
                return False
            left -= done
    except OSError:  # across file systems, or on one without support
        return False
    return True
