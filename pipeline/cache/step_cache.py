"""Results of steps by key, in the local store and in a remote one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from ...core.events import Tell, ignore_events
from ...core.manifest import Manifest
from ...core.records import Artifact, record_of
from ...core.verdict import State, Verdict
from .claims import StepClaims
from .remote_store import RemoteStore
from .result_store import DEFAULT_CACHE_LIMIT, RESULTS_FOLDER, ResultStore, StoredEntry
from .store_layout import CacheEntry

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

    @property
    def claims(self) -> StepClaims | None:
        """The claims on steps that other hosts see; None without a remote."""
        return None if self._remote is None else self._remote.claims

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
        compiled=(),
        external=(),
        localisations=tuple(
            replace(one, reproducer="")
            for one in manifest.localisations
            if one.artifact == artifact.name
        ),
        steps=(artifact.step,),
    )
