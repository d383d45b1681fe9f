"""The output folder: work is done in a temporary folder, and only passed artifacts are named."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from ..core.atomic_write import find_drafts
from ..core.errors import ErrorCode, UsageError, is_file_name, is_user_error, system_error_hint
from ..core.manifest import Manifest
from ..core.process import defer_signals, is_running
from ..core.records import PENDING_FOLDER, REJECTED_FOLDER, FileRecord, record_of
from .manifest_file import (
    COMMIT_FOLDER,
    MANIFEST_FILE,
    FileMove,
    FolderCommit,
    commit,
    finish_commit,
)

REPLACED_FOLDER = "replaced"
LOGS_FOLDER = "logs"
WORST_FOLDER = "worst"
FOLDER_LOCK = ".modelc.lock"
REFERENCES_FOLDER = "references"  # of pending steps
_OWN_FOLDERS = (
    LOGS_FOLDER, PENDING_FOLDER, REFERENCES_FOLDER, REJECTED_FOLDER, REPLACED_FOLDER, WORST_FOLDER,
)  # fmt: skip
_WORK_PREFIX = ".work-"
_STAGED_FOLDER = "staged"


@contextmanager
def open_folder(path: Path) -> Iterator[OutputFolder]:
    """Make the folder, check that it can be written, and remove temporary files at the end.

    Raises:
        UsageError: it cannot be made or written.
    """
    made = make_folder(path)
    try:
        with translate_write_errors(path):
            _check_links(path)
            with _lock_folder(path):
                _check_form(path)
                finish_commit(path)
                _sweep_leftovers(path)
                work = Path(tempfile.mkdtemp(prefix=f"{_WORK_PREFIX}{os.getpid()}-", dir=path))
                try:
                    yield OutputFolder(path, work)
                except Exception as error:
                    made = made or not work.is_dir()
                    # The folder may exist again: whoever writes into it creates it first.
                    if not work.is_dir() and not (
                        isinstance(error, OSError) and is_user_error(error)
                    ):
                        raise _folder_error(path) from error
                    raise
                finally:
                    with defer_signals():
                        shutil.rmtree(work, ignore_errors=True)
    finally:
        with defer_signals():
            if made and path.is_dir():
                _remove_empty(path)


def _folder_error(path: Path) -> UsageError:
    return UsageError(
        f"the output folder {path} was removed during the run",
        hint="run it again, and keep the folder",
        code=ErrorCode.NOT_FOUND,
    )


@contextmanager
def translate_write_errors(path: Path) -> Iterator[None]:
    """Raise a UsageError for a full disk or a folder that cannot be written."""
    try:
        yield
    except OSError as error:
        if is_user_error(error):
            raise UsageError(
                f"cannot write to the output folder {path}: {error.strerror}",
                hint=system_error_hint(error),
                code=ErrorCode.NOT_WRITABLE,
                option="out",
            ) from error
        if path.is_dir():
            raise
        raise _folder_error(path) from error


def make_folder(path: Path) -> bool:
    """Make an output folder, and return whether it is new.

    Raises:
        UsageError: the system makes none there.
    """
    check_output_path(path)
    is_new = not path.exists()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"cannot write to the output folder {path}: {error.strerror}",
            hint=system_error_hint(error) if is_user_error(error) else "give another -o",
            code=ErrorCode.NOT_WRITABLE,
            option="out",
        ) from error
    return is_new


def check_output_path(path: Path) -> None:
    """Check that a folder is at the path, or can be made there.

    Raises:
        UsageError: a name in it is too long, or a file is in the way.
    """
    long = next((part for part in path.parts if not is_file_name(part)), None)
    if long is not None:
        raise UsageError(
            f"the name {long[:40]}… is longer than the system allows",
            hint="give a shorter -o",
            option="out",
            code=ErrorCode.NOT_WRITABLE,
        )
    for place in (path, *path.parents):
        if place.is_dir():
            return
        if place.exists():
            raise UsageError(
                f"cannot write to the output folder {path}: {place} is a file",
                hint="give another -o",
                code=ErrorCode.NOT_WRITABLE,
                option="out",
            )


@contextmanager
def _lock_folder(path: Path) -> Iterator[None]:
    """Lock the folder for one run; the lock ends with the process."""
    from filelock import FileLock, Timeout

    lock = FileLock(path / FOLDER_LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise UsageError(
            f"another modelc is writing to {path}",
            hint="wait for it, or use another folder",
            code=ErrorCode.FOLDER_BUSY,
        ) from error
    try:
        yield
    finally:
        with suppress(OSError):  # a disk that may only be read by now
            if os.name == "posix":  # while it is held: the next run creates a new file
                (path / FOLDER_LOCK).unlink(missing_ok=True)
        lock.release()


def _check_links(path: Path) -> None:
    """Check that no file or folder of modelc is a link, which would be written through."""
    for name in (*_OWN_FOLDERS, MANIFEST_FILE, FOLDER_LOCK, COMMIT_FOLDER):
        refuse_links(path, name)


def _check_form(path: Path) -> None:
    """Check that no file has the name of a folder of modelc."""
    for name in _OWN_FOLDERS:
        if (path / name).exists() and not (path / name).is_dir():
            raise UsageError(
                f"{path / name} is a file, and modelc needs a folder of that name",
                hint="move it away, or use another folder",
                code=ErrorCode.FILE_EXISTS,
            )


def refuse_links(folder: Path, name: str) -> None:
    """Check that neither a file nor a folder above it, below the output folder, is a link.

    Raises:
        UsageError: one is.
    """
    place = folder / name
    for one in (place, *place.parents):
        if one == folder:
            return
        if one.is_symlink():
            raise UsageError(
                f"{one} is a link, and modelc does not write through links",
                hint="remove it, or use another folder",
                code=ErrorCode.UNSAFE_PATH,
            )


def settle_commit(path: Path) -> None:
    """Finish the commit that a killed run left in a folder, unless a run is in it now.

    Raises:
        UsageError: the folder cannot be written, or has a commit that is not modelc's.
    """
    if (path / COMMIT_FOLDER).is_dir():
        _check_links(path)
        with translate_write_errors(path), _lock_folder(path):
            finish_commit(path)


def clear_leftovers(path: Path, *, made: bool = False) -> None:
    """Remove everything that a killed run left; the run must have ended.

    Raises:
        UsageError: another run is in the folder, or it cannot be written.
    """
    if path.is_dir():
        with defer_signals():
            with open_folder(path):
                pass
            if made:  # by the killed run
                _remove_empty(path)


def _sweep_leftovers(path: Path) -> None:
    """Remove temporary files of killed runs; the lock excludes other runs."""
    for left in path.glob(f"{_WORK_PREFIX}*"):
        shutil.rmtree(left, ignore_errors=True)
    for draft, owner in find_drafts(path):  # reports are written without the lock
        if not is_running(owner):
            draft.unlink(missing_ok=True)


def _remove_empty(path: Path) -> None:
    """Remove a folder that this run made and left without a result."""
    if {entry.name for entry in path.iterdir()} <= {LOGS_FOLDER, FOLDER_LOCK, WORST_FOLDER}:
        shutil.rmtree(path)


class OutputFolder:
    """An output folder during one run.

    Only files that its record names may be replaced, and never what the run reads.
    """

    def __init__(self, path: Path, work: Path) -> None:
        self.path = path
        self._work = work
        self._owned: set[str] = set()
        self._staged = work / _STAGED_FOLDER
        self._moves: list[FileMove] = []
        self._removals: list[str] = []
        self._read: frozenset[Path] = frozenset()

    def own(self, names: Iterable[str]) -> None:
        """Register the files that the manifest names."""
        self._owned.update(names)

    def reads(self, paths: Iterable[Path]) -> None:
        """Register the files that the run reads: checkpoint, samples, parent."""
        self._read = frozenset(path.resolve() for path in paths)

    def claim(self, names: Iterable[str]) -> None:
        """Check that the files may be written.

        Raises:
            UsageError: one is read by this run, is not modelc's, or lies behind a link.
        """
        for name in names:
            path = self.path / name
            if path.resolve() in self._read:
                raise UsageError(
                    f"{path} is read by this run and would be replaced",
                    hint="give another -o",
                    code=ErrorCode.SAME_FILE,
                )
            refuse_links(self.path, name)
            if path.exists() and name not in self._owned:
                raise UsageError(
                    f"{path} exists and is not in the manifest of {self.path}",
                    hint="move it away, or give another -o",
                    code=ErrorCode.FILE_EXISTS,
                )

    @property
    def logs(self) -> Path:
        """Where the last run's logs are."""
        return self.path / LOGS_FOLDER

    def workplace(self, name: str) -> Path:
        """A new empty folder beside the results, on the same file system."""
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self._work))

    def accept(self, files: Iterable[FileRecord], workplace: Path) -> None:
        """Move passed files to their names with the next commit, the model last."""
        files = tuple(files)
        self.claim(file.name for file in files)
        for file in reversed(files):
            self.put(workplace / file.name, file.name)
            if f"{REJECTED_FOLDER}/{file.name}" in self._owned:
                self.remove(f"{REJECTED_FOLDER}/{file.name}")

    def reject(self, files: Iterable[FileRecord], workplace: Path) -> tuple[FileRecord, ...]:
        """Move rejected files to `rejected/` with the next commit."""
        return self._move_to(REJECTED_FOLDER, files, workplace)

    def keep_pending(self, files: Iterable[FileRecord], workplace: Path) -> tuple[FileRecord, ...]:
        """Move files that are not judged yet to `pending/` with the next commit."""
        return self._move_to(PENDING_FOLDER, files, workplace)

    def _move_to(
        self, place: str, files: Iterable[FileRecord], workplace: Path
    ) -> tuple[FileRecord, ...]:
        moved = [(one.name, replace(one, name=f"{place}/{Path(one.name).name}")) for one in files]
        self.claim(file.name for _, file in moved)
        for name, file in moved:
            self.put(workplace / name, file.name)
        return tuple(file for _, file in moved)

    def set_aside(self, files: Iterable[FileRecord]) -> tuple[FileRecord, ...]:
        """Move files of another model to `replaced/`, or `replaced-2/`, with the next commit.

        Returns:
            The moved files as they are now, with their new names.

        Raises:
            UsageError: this run reads one of them.
        """
        here = [file for file in files if (self.path / file.name).is_file()]
        self.claim(file.name for file in here)
        numbered = (f"{REPLACED_FOLDER}-{number}" for number in itertools.count(2))
        places = itertools.chain([REPLACED_FOLDER], numbered)
        place = next(one for one in places if not (self.path / one).exists())
        moved = []
        for file in here:
            source, name = self.path / file.name, f"{place}/{file.name}"
            moved.append(record_of(source, name=name, role=file.role))
            self.put(source, name)
        return tuple(moved)

    def put(self, source: Path, name: str) -> None:
        """Give a file of the folder or of a workplace a name with the next commit.

        Raises:
            UsageError: the name lies behind a link.
        """
        refuse_links(self.path, name)
        if source.resolve().is_relative_to(self._work.resolve()):
            self._staged.mkdir(exist_ok=True)
            staged = f"{len(self._moves)}-{source.name}"
            source.replace(self._staged / staged)
            self._moves.append(FileMove(source=f"{COMMIT_FOLDER}/{staged}", name=name))
            return
        inside = source.resolve().relative_to(self.path.resolve()).as_posix()
        if inside != name:
            self._moves.append(FileMove(source=inside, name=name))

    def remove(self, name: str) -> None:
        """Remove a file with the next commit, unless another takes its name."""
        self._removals.append(name)

    def forget(self) -> None:
        """Discard the changes since the last commit."""
        for move in self._moves:
            (self._work / _STAGED_FOLDER / Path(move.source).name).unlink(missing_ok=True)
        self._moves.clear()
        self._removals.clear()

    def commit(self, manifest: Manifest, no_longer: Iterable[FileRecord] = ()) -> None:
        """Apply all changes and write the manifest, atomically.

        Raises:
            OSError: the disk cannot be written; the folder is unchanged.
        """
        written = {move.name for move in self._moves}
        removed = dict.fromkeys((*self._removals, *(file.name for file in no_longer)))
        changes = FolderCommit(
            moves=tuple(self._moves),
            removals=tuple(name for name in removed if name not in written),
        )
        self.own(file.name for file in manifest.files)
        self._staged.mkdir(exist_ok=True)
        commit(self.path, self._staged, manifest, changes)
        self._moves.clear()
        self._removals.clear()
