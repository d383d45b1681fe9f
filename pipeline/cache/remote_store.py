"""Results of steps at an fsspec URL that several hosts share."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from ...core.errors import first_line
from ...core.events import Tell, ignore_events
from ...core.records import FileRecord
from .claims import StepClaims
from .remote_files import RemoteFiles, open_remote_files
from .result_store import ResultStore, warn_once
from .store_layout import CacheEntry, CorruptEntryError, decode_entry, encode_entry, entry_name

_MAX_LISTED_ENTRIES = 64  # maximum number of entries to read per key


class RemoteStore:
    """Entries of results; faults are reported once each and treated as a miss."""

    def __init__(self, files: RemoteFiles, tell: Tell = ignore_events) -> None:
        self.files = files
        self.claims = StepClaims(files, tell)
        self._warn = warn_once(tell)

    def entries(self, key: str) -> Iterator[tuple[str, CacheEntry]]:
        """Yield the valid entries of a key, with their names."""
        folder = f"entries/{key}"
        found = self._try("list", partial(self.files.names, folder)) or ()
        for file in [one for one in found if one.endswith(".json")][:_MAX_LISTED_ENTRIES]:
            path = f"{folder}/{file}"
            raw = self._try("read", partial(self.files.read, path))
            if raw is None:
                continue
            name = file.removesuffix(".json")
            try:
                yield name, decode_entry(raw, key, name)
            except CorruptEntryError as error:
                self._warn(f"an entry of the remote cache is {error}: ignored")
                self._try("remove", partial(self.files.remove, path))

    def fetch(self, entry: CacheEntry, store: ResultStore) -> bool:
        """Fetch an entry with its files into the local store; False on failure."""
        with tempfile.TemporaryDirectory(prefix="modelc-") as aside:
            sources: dict[str, Path] = {}
            for file in entry.files:
                here = store.layout.blob(file.sha256)
                sources[file.name] = here if here.is_file() else Path(aside) / file.sha256
                if not here.is_file() and not self._fetch_file(file, sources[file.name]):
                    return False
            return store.put(entry, sources)

    def _fetch_file(self, file: FileRecord, place: Path) -> bool:
        found = self._try("read", partial(self.files.get_blob, file, place))
        if found is False:
            self._warn(f"{file.name} in the remote cache is changed: ignored")
        return bool(found)

    def upload(self, entry: CacheEntry, store: ResultStore) -> None:
        """Upload an entry of the local store, files first."""
        self._try("write", partial(self._upload_all, entry, store))

    def _upload_all(self, entry: CacheEntry, store: ResultStore) -> None:
        for file in entry.files:
            self.files.put_blob(store.layout.blob(file.sha256), file)
        raw = encode_entry(entry)
        self.files.write(f"entries/{entry.key}/{entry_name(raw)}.json", raw)

    def _try(self, what: str, work: Callable[[], Any]) -> Any:
        """Return the result of `work`; None if it failed, which is reported."""
        try:
            return work()
        except Exception as error:  # noqa: BLE001 - each file system raises its own errors
            why = first_line(error) or type(error).__name__
            self._warn(f"cannot {what} the remote cache: {why}")
            return None


def open_remote(url: str, tell: Tell = ignore_events) -> RemoteStore:
    """Open the store at an fsspec URL: `s3://bucket/modelc`, `file:///mnt/cache` or a folder.

    Raises:
        MissingError: a package that this kind of URL requires is not installed.
        UsageError: the URL is invalid or of an unknown kind.
    """
    return RemoteStore(open_remote_files(url), tell)
