"""Changes to an output folder as a unit: files that take their names, others that go, the record.

A commit is a folder that is filled aside and renamed to `.modelc.commit`: from then on it holds,
whatever happens to the process. Its parts are then carried out one after the other, the manifest
after the files. Who opens the folder next finishes what a killed run left of it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ..core.errors import UsageError, first_line
from ..core.manifest import Manifest
from ..core.whole import flush_file, flush_folder
from .manifest_file import MANIFEST_FILE, drop_signature, encode_manifest

COMMIT_FOLDER = ".modelc.commit"
_COMMIT_LIST = "commit.json"


@dataclass(frozen=True, kw_only=True)
class FileMove:
    """One file that takes a name; both are relative to the output folder."""

    source: str
    name: str


@dataclass(frozen=True, kw_only=True)
class FolderCommit:
    """What is carried out: moves in their order, then the manifest, then removals."""

    moves: tuple[FileMove, ...] = ()
    removals: tuple[str, ...] = ()


def commit(folder: Path, staged: Path, manifest: Manifest, changes: FolderCommit) -> None:
    """Carry out changes to the output folder, all or none of them.

    Args:
        folder: the output folder.
        staged: a folder beside the results; what moves name below `COMMIT` lies in it.
        manifest: the record that holds afterwards.
        changes: what to do.

    Raises:
        OSError: the disk does not take it; nothing was changed.
    """
    import msgspec

    (staged / MANIFEST_FILE).write_bytes(encode_manifest(manifest))
    (staged / _COMMIT_LIST).write_bytes(msgspec.json.encode(changes))
    for path in staged.iterdir():
        flush_file(path)
    flush_folder(staged)
    staged.rename(folder / COMMIT_FOLDER)
    flush_folder(folder)
    _apply_commit(folder, changes)


def finish_commit(folder: Path) -> None:
    """Finish what a killed run left of a commit, if it left any.

    Raises:
        UsageError: what is there is no commit of ours.
    """
    import msgspec

    place = folder / COMMIT_FOLDER
    if not place.is_dir():
        return
    if not (place / _COMMIT_LIST).is_file():  # all was carried out, and only the rest of it is here
        shutil.rmtree(place)
        return
    try:
        changes = msgspec.json.decode((place / _COMMIT_LIST).read_bytes(), type=FolderCommit)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _invalid_commit(place, first_line(error)) from error
    for name in (
        *changes.removals,
        *(text for one in changes.moves for text in vars(one).values()),
    ):
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
            raise _invalid_commit(place, f"it names {name!r}")
        if not (folder / path).parent.resolve().is_relative_to(folder.resolve()):
            raise _invalid_commit(place, f"{name!r} lies behind a link")
    _apply_commit(folder, changes)


def _invalid_commit(place: Path, why: str) -> UsageError:
    return UsageError(
        f"{place} is not what modelc leaves: {why}", hint="move it away, or use another folder"
    )


def _apply_commit(folder: Path, changes: FolderCommit) -> None:
    """Every part can be done twice: what was moved before is no longer where it came from."""
    place = folder / COMMIT_FOLDER
    for move in changes.moves:
        source = folder / move.source
        if source.exists():
            (folder / move.name).parent.mkdir(parents=True, exist_ok=True)
            source.replace(folder / move.name)
    _flush_files(folder, (move.name for move in changes.moves))
    if (place / MANIFEST_FILE).exists():
        drop_signature(folder)
        (place / MANIFEST_FILE).replace(folder / MANIFEST_FILE)
        flush_folder(folder)
    for name in changes.removals:
        (folder / name).unlink(missing_ok=True)
    (place / _COMMIT_LIST).unlink(missing_ok=True)
    shutil.rmtree(place)
    _remove_empty_parents(folder, [*changes.removals, *(move.source for move in changes.moves)])


def _flush_files(folder: Path, names: Iterable[str]) -> None:
    for place in {(folder / name).parent for name in names}:
        flush_folder(place)


def _remove_empty_parents(folder: Path, names: Sequence[str]) -> None:
    """Remove folders below the output folder that these names were the last in."""
    parents = {path for name in names for path in PurePosixPath(name).parents if path.parts}
    for parent in sorted(parents, key=lambda path: -len(path.parts)):
        place = folder / parent
        if place.is_dir() and not any(place.iterdir()):
            place.rmdir()
