"""Folders that travel by digest: each file once, under its SHA-256, and a list of names."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ...core.atomic_write import DRAFT_SUFFIX
from ...core.errors import CheckpointError, ErrorCode, UsageError
from ...core.manifest import Manifest
from ...core.records import FileRecord, is_as_recorded, record_of
from ...core.untrusted_files import is_path_inside
from ..manifest_file import MANIFEST_FILE, SIGNATURE_FILE, read_manifest
from ..output_folder import LOGS_FOLDER, open_folder
from .remote_files import RemoteFiles


@dataclass(frozen=True, kw_only=True)
class StoredFolder:
    """The files of a folder, by names relative to it."""

    name: str
    files: tuple[FileRecord, ...]


def list_folder(folder: Path, name: str) -> StoredFolder:
    """Return the files of a folder with their digests; hidden ones and links are left out."""
    found = sorted(_iter_files(folder))
    files = (record_of(path, name=path.relative_to(folder).as_posix()) for path in found)
    return StoredFolder(name=name, files=tuple(files))


def _iter_files(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.name.startswith(".") or path.is_symlink():
            continue
        if path.is_dir():
            yield from _iter_files(path)
        elif path.is_file():
            yield path


def store_folder(folder: Path, name: str, files: RemoteFiles) -> StoredFolder:
    """Upload the files of a folder that are not stored yet, and return their list."""
    found = list_folder(folder, name)
    for file in found.files:
        files.put_blob(folder / file.name, file)
    return found


def fetch_files(stored: StoredFolder, files: RemoteFiles, place: Path) -> None:
    """Fetch the files of a list into a folder, each verified by its digest.

    Raises:
        CheckpointError: a file is missing or damaged, or a name leads out of the folder.
    """
    for file in stored.files:
        if not is_path_inside(file.name):
            raise CheckpointError(
                f"{stored.name} lists a file outside of its folder: {file.name[:80]!r}",
                hint="store it again",
                code=ErrorCode.UNSAFE_PATH,
            )
        target = place / file.name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            whole = files.get_blob(file, target)
        except (FileNotFoundError, ValueError):
            whole = False
        if not whole:
            raise CheckpointError(
                f"{file.name} of {stored.name} is missing in the remote cache, or damaged",
                hint="run the part that made it again",
                code=ErrorCode.CORRUPT_FILE,
            )


def replace_results(stored: StoredFolder, files: RemoteFiles, out: Path) -> Manifest | None:
    """Bring an output folder to the state of a list of files, which a run on another host left.

    Files and manifest change together; files of the user are left alone. Without a manifest in the
    list, only logs come.

    Raises:
        UsageError: a file of the user is in the way, or the folder cannot be written.
        CheckpointError: a file is missing or damaged.
    """
    names = {file.name for file in stored.files}
    _check_not_hidden(stored)
    with open_folder(out) as folder:
        place = folder.workplace("fetched")
        fetch_files(stored, files, place)
        before, manifest = read_manifest(out), read_manifest(place)
        for path in _iter_files(place):
            name = path.relative_to(place).as_posix()
            if name.startswith(f"{LOGS_FOLDER}/") and manifest is None:
                (out / name).parent.mkdir(exist_ok=True)
                path.replace(out / name)
        if manifest is None:
            return before
        if before is not None:
            folder.own(file.name for file in before.files)
        changed = [one for one in manifest.files if not is_as_recorded(out / one.name, one)]
        folder.claim(one.name for one in changed)
        apart = {one.name for one in manifest.files} - {one.name for one in changed}
        apart |= {MANIFEST_FILE, SIGNATURE_FILE}
        for name in sorted(names - apart):
            folder.put(place / name, name)
        gone = () if before is None else (one for one in before.files if one.name not in names)
        folder.commit(manifest, gone)
        return manifest


def _check_not_hidden(stored: StoredFolder) -> None:
    """Check that a list has no hidden files, which modelc does not store: it acts on its own."""
    for file in stored.files:
        if any(part.startswith(".") for part in file.name.split("/")):
            raise CheckpointError(
                f"{stored.name} lists a hidden file: {file.name[:80]!r}",
                hint="store it again",
                code=ErrorCode.UNSAFE_PATH,
            )


def place_folder(stored: StoredFolder, source: RemoteFiles | Path, place: Path) -> None:
    """Make a folder of a list of files, from the remote or from another folder, at once or not.

    A folder with the same files is left as it is.

    Raises:
        UsageError: another folder is there.
        CheckpointError: a file is missing or damaged.
    """
    if place.exists():
        there = {(one.name, one.sha256) for one in list_folder(place, stored.name).files}
        if {(one.name, one.sha256) for one in stored.files} <= there:
            return
        raise UsageError(
            f"{place} has other results",
            hint="give an empty folder with -o, or move it away",
            option="out",
            code=ErrorCode.FILE_EXISTS,
        )
    _check_not_hidden(stored)
    draft = place.with_name(f".{place.name}.{secrets.token_hex(8)}{DRAFT_SUFFIX}")
    draft.mkdir(parents=True)
    try:
        if isinstance(source, RemoteFiles):
            fetch_files(stored, source, draft)
        else:
            for file in stored.files:
                (draft / file.name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source / file.name, draft / file.name)
        draft.rename(place)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
