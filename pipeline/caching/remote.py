"""A store elsewhere, by an fsspec URL: fetched from on a local miss, brought to after a store.

It has the layout of a local store. Nothing from there is believed: entries by their name, files by
their digest, names that lead out of a folder not at all. No failure of it ends a run.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.digest import sha256_of
from ...core.distribution import hint_for_extra
from ...core.errors import MissingError, UsageError, first_line
from ...core.events import Noted, Tell, silence
from ...core.records import FileRecord
from .entry import CacheEntry, CorruptEntryError, decode_entry, encode_entry, entry_name
from .store import ResultStore

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_MAX_LISTED_ENTRIES = 64  # entries of one key that are looked at


class RemoteStore:
    """What lies at an fsspec URL. Its faults are told once each; it is then done without."""

    def __init__(self, files: AbstractFileSystem, root: str, tell: Tell = silence) -> None:
        self._files: Any = files  # fsspec annotates little
        self._root = root.rstrip("/")
        self._tell = tell
        self._said: set[str] = set()

    def entries(self, key: str) -> Iterator[tuple[str, CacheEntry]]:
        """The sound entries of a key, with their names."""
        folder = f"{self._root}/entries/{key}"
        for path in self._tried("listed", partial(self._list_remote, folder)) or ():
            name = path.rsplit("/", 1)[-1].removesuffix(".json")
            raw = self._tried("read", partial(self._files.cat_file, path))
            if raw is None:
                continue
            try:
                yield name, decode_entry(bytes(raw), key, name)
            except CorruptEntryError as error:
                self._say(f"an entry of the remote cache was {error}: not used")
                self._tried("mended", partial(self._files.rm_file, path))

    def _list_remote(self, folder: str) -> list[str]:
        self._files.invalidate_cache()
        if not self._files.exists(folder):
            return []
        found = self._files.ls(folder, detail=False)
        return sorted(path for path in found if path.endswith(".json"))[:_MAX_LISTED_ENTRIES]

    def fetch(self, entry: CacheEntry, store: ResultStore) -> bool:
        """Bring an entry with its files into the local store; False where that cannot be done."""
        with tempfile.TemporaryDirectory(prefix="modelc-") as aside:
            sources: dict[str, Path] = {}
            for file in entry.files:
                here = store.layout.blob(file.sha256)
                sources[file.name] = here if here.is_file() else Path(aside) / file.sha256
                if not here.is_file() and not self._got(file, sources[file.name]):
                    return False
            return store.put(entry, sources)

    def _got(self, file: FileRecord, place: Path) -> bool:
        path = self._blob(file.sha256)
        self._tried("read", partial(self._files.get_file, path, str(place)))
        if not place.is_file():
            return False
        if sha256_of(place) == file.sha256:
            return True
        self._say(f"{file.name} in the remote cache was changed: not used")
        self._tried("mended", partial(self._files.rm_file, path))
        return False

    def bring(self, entry: CacheEntry, store: ResultStore) -> bool:
        """Bring an entry of the local store there, its files first; False where it cannot be."""
        done = self._tried("written", partial(self._all_put, entry, store))
        return done is not None

    def _all_put(self, entry: CacheEntry, store: ResultStore) -> bool:
        for file in entry.files:
            self._put(store.layout.blob(file.sha256), file)
        raw = encode_entry(entry)
        path = f"{self._root}/entries/{entry.key}/{entry_name(raw)}.json"
        self._files.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
        self._files.pipe_file(path, raw)
        return True

    def _put(self, local: Path, file: FileRecord) -> None:
        path = self._blob(file.sha256)
        if self._files.exists(path) and self._files.size(path) == file.size:
            return
        self._files.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
        self._files.put_file(str(local), path)

    def _blob(self, digest: str) -> str:
        return f"{self._root}/blobs/{digest[:2]}/{digest}"

    def _tried(self, what: str, work: Callable[[], Any]) -> Any:
        """What the work gives; None where it failed, which is told."""
        try:
            return work()
        except Exception as error:  # noqa: BLE001 - every file system raises errors of its own
            why = first_line(error) or type(error).__name__
            self._say(f"the remote cache cannot be {what}: {why}")
            return None

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._tell(Noted(text=text, warning=True))


def open_remote(url: str, tell: Tell = silence) -> RemoteStore:
    """The store at an fsspec URL, as `s3://bucket/modelc`, `file:///mnt/cache` or a folder.

    Raises:
        MissingError: what that kind of URL needs is not installed.
        UsageError: there is no such kind of URL, or it is not one.
    """
    try:
        import fsspec
    except ImportError as error:
        raise MissingError(
            "--remote-cache needs fsspec, which is not installed",
            hint=hint_for_extra("remote"),
            option="remote-cache",
        ) from error
    from fsspec.registry import known_implementations

    protocol = url.partition("://")[0] if "://" in url else "file"
    try:
        files, root = fsspec.url_to_fs(url)
    except ImportError as error:
        module = str(known_implementations.get(protocol, {}).get("class", "")).partition(".")[0]
        raise MissingError(
            f"--remote-cache {url} needs {module or protocol}, which is not installed",
            hint=f"pip install {module or protocol}",
            option="remote-cache",
        ) from error
    except Exception as error:
        raise UsageError(
            f"--remote-cache {url} cannot be opened: {first_line(error)}",
            hint="give an fsspec URL: s3://bucket/folder, gs://..., or a shared folder",
            option="remote-cache",
        ) from error
    return RemoteStore(files, str(root), tell)
