"""Results of steps in the store: what is kept of a run, and what suits a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from ...core.digest import record_of
from ...core.events import Tell, silence
from ...core.manifest import Manifest
from ...core.records import Artifact
from ...core.verdict import State, Verdict
from .entry import CacheEntry
from .remote import RemoteStore
from .store import DEFAULT_CACHE_LIMIT, RESULTS_FOLDER, ResultStore, StoredEntry

WORST_ROLE = "worst"  # the role of an entry's file that is no part of the artifact: its worst feed


class StepCache:
    """Judged artifacts by the key of their step, in a folder and perhaps at a remote beside it.

    Args:
        folder: the cache folder; one that cannot be used is done without.
        limit: bytes of the local folder.
        tell: where faults are told; none of them is an error.
        remote: where entries are fetched that are not here, and brought to.
    """

    def __init__(
        self,
        folder: Path,
        limit: int = DEFAULT_CACHE_LIMIT,
        *,
        tell: Tell = silence,
        remote: RemoteStore | None = None,
    ) -> None:
        self.tell = tell
        self.store = ResultStore(folder / RESULTS_FOLDER, limit, tell)
        self._remote = remote

    def candidates(self, key: str, suits: Callable[[Manifest], bool]) -> Iterator[StoredEntry]:
        """Entries of the key that `suits` takes, the last used first, then those of the remote."""
        for stored in self.store.entries(key):
            if _is_suitable(stored.entry, suits):
                yield stored
        if self._remote is None:
            return
        for name, entry in self._remote.entries(key):
            if _is_suitable(entry, suits) and self._remote.fetch(entry, self.store):
                yield from (one for one in self.store.entries(key) if one.path.stem == name)

    def keep(self, manifest: Manifest, folder: Path, model: str) -> int:
        """Store what a folder's record has under keys, and is not stored yet; how many there were.

        Args:
            manifest: the record after a run.
            folder: where its files are.
            model: whose they are, as `modelc cache ls` shows it.
        """
        done = 0
        for entry, sources in iter_entries(manifest, folder, model):
            if self._has(entry):
                continue
            if self.store.put(entry, sources):
                done += 1
                if self._remote is not None:
                    self._remote.bring(entry, self.store)
        return done

    def _has(self, entry: CacheEntry) -> bool:
        """Whether there is an entry of the key that serves whenever this one would."""
        return any(
            _entry_dependencies(stored.entry) == _entry_dependencies(entry)
            and _entry_parent(stored.entry) == _entry_parent(entry)
            and self.store.touch(stored)
            for stored in self.store.entries(entry.key)
        )


def _is_suitable(entry: CacheEntry, suits: Callable[[Manifest], bool]) -> bool:
    return entry.manifest is not None and suits(entry.manifest)


def _entry_dependencies(entry: CacheEntry) -> object:
    return None if entry.manifest is None else entry.manifest.needs


def _entry_parent(entry: CacheEntry) -> str:
    return "" if entry.manifest is None else entry.manifest.artifacts[0].parent


def iter_entries(
    manifest: Manifest, folder: Path, model: str
) -> Iterator[tuple[CacheEntry, Mapping[str, Path]]]:
    """An entry for each judged artifact that has a key, and where its files are by name.

    What was not judged to an end is none: an error of a runtime may pass.
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
    """The record with that artifact alone, without what is the folder's own: paths, the order."""
    return replace(
        manifest,
        order={},
        checkpoint=replace(manifest.checkpoint, path=Path(manifest.checkpoint.path).name),
        artifacts=(replace(artifact, seal=""),),  # sealed anew in the folder that it comes to
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
