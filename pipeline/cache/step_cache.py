"""Results of steps by key, in the local store and in a remote one at an fsspec URL."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.errors import ErrorCode, MissingError, UsageError, first_line
from ...core.events import Tell, ignore_events
from ...core.installation import hint_for_extra
from ...core.manifest import Manifest
from ...core.records import Artifact, FileRecord, record_of, sha256_of
from ...core.verdict import State, Verdict
from .result_store import DEFAULT_CACHE_LIMIT, RESULTS_FOLDER, ResultStore, StoredEntry, warn_once
from .store_layout import CacheEntry, CorruptEntryError, decode_entry, encode_entry, entry_name

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

WORST_ROLE = "worst"  # role of the worst feed in an entry, which is not a file of the artifact


class StepCache:
    """Judged artifacts by the key of their step, in a local folder and optionally a remote.

    Args:
        folder: the cache folder; if it is unusable, nothing is cached.
        limit: maximum bytes of the local folder.
        tell: event listener for faults, which are never raised.
        remote: where to fetch entries that are not local, and to upload new ones.
    """

    def __init__(
        self,
        folder: Path,
        limit: int = DEFAULT_CACHE_LIMIT,
        *,
        tell: Tell = ignore_events,
        remote: RemoteStore | None = None,
    ) -> None:
        self.tell = tell
        self.store = ResultStore(folder / RESULTS_FOLDER, limit, tell)
        self._remote = remote

    def candidates(self, key: str, suits: Callable[[Manifest], bool]) -> Iterator[StoredEntry]:
        """Yield suitable entries of the key: local ones, most recently used first, then remote."""
        for stored in self.store.entries(key):
            if _is_suitable(stored.entry, suits):
                yield stored
        if self._remote is None:
            return
        for name, entry in self._remote.entries(key):
            if _is_suitable(entry, suits) and self._remote.fetch(entry, self.store):
                yield from (one for one in self.store.entries(key) if one.path.stem == name)

    def keep(self, manifest: Manifest, folder: Path, model: str) -> int:
        """Store results of a manifest that have keys and are not stored yet; return their number.

        Args:
            manifest: the manifest after a run.
            folder: the folder of its files.
            model: the name that `modelc cache ls` shows.
        """
        done = 0
        for entry, sources in iter_entries(manifest, folder, model):
            if self._has(entry):
                continue
            if self.store.put(entry, sources):
                done += 1
                if self._remote is not None:
                    self._remote.upload(entry, self.store)
        return done

    def _has(self, entry: CacheEntry) -> bool:
        """Whether an existing entry of the key serves whenever this one would."""
        return any(
            _needs_and_parent(stored.entry) == _needs_and_parent(entry) and self.store.touch(stored)
            for stored in self.store.entries(entry.key)
        )


def _is_suitable(entry: CacheEntry, suits: Callable[[Manifest], bool]) -> bool:
    return entry.manifest is not None and suits(entry.manifest)


def _needs_and_parent(entry: CacheEntry) -> object:
    manifest = entry.manifest
    return None if manifest is None else (manifest.needs, manifest.artifacts[0].parent)


def iter_entries(
    manifest: Manifest, folder: Path, model: str
) -> Iterator[tuple[CacheEntry, Mapping[str, Path]]]:
    """Yield an entry for each judged artifact with a key, and the paths of its files by name.

    Artifacts that could not be judged are omitted: a runtime error may be temporary.
    """
    for artifact in manifest.artifacts:
        verdict = manifest.verdict_of(artifact.name)
        if not artifact.key or verdict is None or verdict.state is State.ERROR:
            continue
        if any(f.role != "debug" and not (folder / f.name).is_file() for f in artifact.files):
            continue
        slim = _slim_manifest(manifest, artifact, verdict)
        files = [file for file in artifact.files if (folder / file.name).is_file()]
        if verdict.worst is not None and (folder / verdict.worst.file).is_file():
            name = verdict.worst.file
            files.append(record_of(folder / name, name=name, role=WORST_ROLE))
        entry = CacheEntry(
            key=artifact.key, model=model, artifact=artifact.name, files=tuple(files), manifest=slim
        )
        yield entry, {file.name: folder / file.name for file in files}


def _slim_manifest(manifest: Manifest, artifact: Artifact, verdict: Verdict) -> Manifest:
    """Return the manifest of one artifact, without paths and the order of the folder."""
    return replace(
        manifest,
        order={},
        checkpoint=replace(manifest.checkpoint, path=Path(manifest.checkpoint.path).name),
        artifacts=(replace(artifact, seal=""),),  # the target folder seals it again
        verdicts=(verdict,),
        seal="",
        failures=(),
        pending=(),
        localisations=tuple(
            replace(one, reproducer="")
            for one in manifest.localisations
            if one.artifact == artifact.name
        ),
        steps=(artifact.step,),
    )


_MAX_LISTED_ENTRIES = 64  # maximum number of entries to read per key


class RemoteStore:
    """Entries at an fsspec URL; faults are reported once each and treated as a miss."""

    def __init__(self, files: AbstractFileSystem, root: str, tell: Tell = ignore_events) -> None:
        self._files: Any = files  # fsspec has few annotations
        self._root = root.rstrip("/")
        self._warn = warn_once(tell)

    def entries(self, key: str) -> Iterator[tuple[str, CacheEntry]]:
        """Yield the valid entries of a key, with their names."""
        folder = f"{self._root}/entries/{key}"
        for path in self._try("list", partial(self._list_remote, folder)) or ():
            name = path.rsplit("/", 1)[-1].removesuffix(".json")
            raw = self._try("read", partial(self._files.cat_file, path))
            if raw is None:
                continue
            try:
                yield name, decode_entry(bytes(raw), key, name)
            except CorruptEntryError as error:
                self._warn(f"an entry of the remote cache is {error}: ignored")
                self._try("remove", partial(self._files.rm_file, path))

    def _list_remote(self, folder: str) -> list[str]:
        self._files.invalidate_cache()
        if not self._files.exists(folder):
            return []
        found = self._files.ls(folder, detail=False)
        return sorted(path for path in found if path.endswith(".json"))[:_MAX_LISTED_ENTRIES]

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
        path = self._blob(file.sha256)
        self._try("read", partial(self._files.get_file, path, str(place)))
        if not place.is_file():
            return False
        if sha256_of(place) == file.sha256:
            return True
        self._warn(f"{file.name} in the remote cache is changed: ignored")
        self._try("remove", partial(self._files.rm_file, path))
        return False

    def upload(self, entry: CacheEntry, store: ResultStore) -> None:
        """Upload an entry of the local store, files first."""
        self._try("write", partial(self._upload_all, entry, store))

    def _upload_all(self, entry: CacheEntry, store: ResultStore) -> None:
        for file in entry.files:
            path = self._blob(file.sha256)
            if not self._files.exists(path) or self._files.size(path) != file.size:
                self._files.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
                self._files.put_file(str(store.layout.blob(file.sha256)), path)
        raw = encode_entry(entry)
        path = f"{self._root}/entries/{entry.key}/{entry_name(raw)}.json"
        self._files.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
        self._files.pipe_file(path, raw)

    def _blob(self, digest: str) -> str:
        return f"{self._root}/blobs/{digest[:2]}/{digest}"

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
    try:
        import fsspec
    except ImportError as error:
        raise MissingError(
            "--remote-cache needs fsspec, which is not installed",
            hint=hint_for_extra("remote"),
            option="remote-cache",
            code=ErrorCode.NOT_INSTALLED,
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
            code=ErrorCode.NOT_INSTALLED,
        ) from error
    except Exception as error:
        raise UsageError(
            f"--remote-cache {url} cannot be opened: {first_line(error)}",
            hint="give an fsspec URL: s3://bucket/folder, gs://..., or a shared folder",
            option="remote-cache",
            code=ErrorCode.UNSUPPORTED,
        ) from error
    return RemoteStore(files, str(root), tell)
