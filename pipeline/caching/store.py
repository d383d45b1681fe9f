"""A content-addressed store of results: entries by key, and their files by SHA-256.

Files are copied aside, flushed and renamed, the entry last: it is there whole or not at all.
Whoever takes an entry opens its files under the lock and copies afterwards: what is removed can be
read until then. Nothing that is taken out is believed before its digest is compared.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ...core.errors import first_line
from ...core.events import Noted, Tell, silence
from ...core.records import FileRecord
from ...core.whole import flush_folder
from .copying import copy_hashed
from .entry import CacheEntry, CorruptEntryError, encode_entry, entry_name
from .housekeeping import shrink_to
from .layout import StoreLayout, read_entry

RESULTS_FOLDER = "results"  # of the cache folder: the store of steps and quantizers
DEFAULT_CACHE_LIMIT = 10 * 10**9  # bytes of all files; what was used least recently goes first


@dataclass(frozen=True, kw_only=True)
class StoredEntry:
    """An entry as it lies in the store, and when it was used last (seconds since 1970)."""

    entry: CacheEntry
    path: Path
    used: float


class ResultStore:
    """Results by key, up to `limit` bytes; where the folder cannot be used it does without.

    What is wrong with an entry or with the folder is told, each thing once, and is never an error.
    """

    def __init__(
        self, folder: Path, limit: int = DEFAULT_CACHE_LIMIT, tell: Tell = silence
    ) -> None:
        self.layout = StoreLayout(folder=folder)
        self._limit = limit
        self._tell = tell
        self._said: set[str] = set()

    def entries(self, key: str) -> Iterator[StoredEntry]:
        """The entries of a key, the last used first; damaged ones are removed and told."""
        paths = self.layout.entries_of(key)
        found = [one for path in paths if (one := self._read(path)) is not None]
        yield from sorted(found, key=lambda one: one.used, reverse=True)

    def _read(self, path: Path) -> StoredEntry | None:
        try:
            return StoredEntry(entry=read_entry(path), path=path, used=path.stat().st_mtime)
        except OSError:  # another run has removed it, or it may not be read
            return None
        except CorruptEntryError as error:
            self._drop(path, str(error))
            return None

    def take(self, stored: StoredEntry, folder: Path) -> bool:
        """Copy an entry's files into a folder and compare their digests; False where it is faulty.

        A faulty entry is removed with its damaged file, and told.

        Raises:
            OSError: the folder cannot be written.
        """
        with ExitStack() as held:
            try:
                opened = self._opened(stored, held)
            except OSError as error:
                self._drop(stored.path, f"incomplete ({_describe_os_error(error)})")
                return False
            for file, stream in opened:
                if copy_hashed(stream, folder / file.name) != file.sha256:
                    self._drop(stored.path, f"changed ({file.name})", blob=file.sha256)
                    return False
        return True

    def _opened(self, stored: StoredEntry, held: ExitStack) -> list[tuple[FileRecord, BinaryIO]]:
        """The entry's files, opened; it counts as used now."""
        with self.layout.hold_lock():
            with suppress(OSError):  # a folder that may only be read serves as well
                os.utime(stored.path)
            return [
                (file, held.enter_context(self.layout.blob(file.sha256).open("rb")))
                for file in stored.entry.files
            ]

    def put(self, entry: CacheEntry, sources: Mapping[str, Path]) -> bool:
        """Store an entry with its files, which are read from `sources` by their names.

        Returns:
            Whether it is there now: a file that is not what the entry says is not stored, nor
            anything where the folder cannot be written.
        """
        try:
            with self.layout.draft() as draft:
                drafts = self._draft_entry(entry.files, sources, draft)
                if drafts is None:
                    return False
                self._settle(entry, drafts, draft)
        except OSError as error:
            self._say(
                f"nothing is kept in the cache {self.layout.folder}: {_describe_os_error(error)}"
            )
            return False
        return True

    def _draft_entry(
        self, files: Sequence[FileRecord], sources: Mapping[str, Path], draft: Path
    ) -> dict[str, Path] | None:
        """The files copied aside, by digest; None where one is not what its record says."""
        drafts: dict[str, Path] = {}
        for file in files:
            copy = draft / file.sha256
            with sources[file.name].open("rb") as stream:
                if copy_hashed(stream, copy) != file.sha256:
                    self._say(f"{file.name} is not what was recorded of it: not kept")
                    return None
            drafts[file.sha256] = copy
        return drafts

    def _settle(self, entry: CacheEntry, drafts: Mapping[str, Path], draft: Path) -> None:
        """Give files and entry their names. A file of the same name and size serves as it is."""
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
        """Have an entry count as used now; False where one of its files is not there."""
        with suppress(OSError):
            os.utime(stored.path)
        return all(self.layout.blob(file.sha256).is_file() for file in stored.entry.files)

    def _drop(self, path: Path, fault: str, *, blob: str = "") -> None:
        """Remove what is damaged, so that it is found missing and made anew."""
        self._say(f"a result in the cache was {fault}: made anew")
        with suppress(OSError), self.layout.hold_lock():
            self.layout.remove(path)
            if blob:
                self.layout.remove(self.layout.blob(blob))

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._tell(Noted(text=text, warning=True))


def _describe_os_error(error: OSError) -> str:
    return error.strerror or first_line(error)


def _move_into_place(draft: Path, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    draft.replace(place)
    flush_folder(place.parent)
