"""The output folder: work happens aside, and only proven files take their names."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ..core.errors import UsageError
from ..core.records import FileRecord

REJECTED = "rejected"
REPLACED = "replaced"
LOGS = "logs"
WORST = "worst"
LOCK = ".modelc.lock"
_UNWRITABLE = (
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EEXIST,
    errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG,
)  # fmt: skip
_WORK = ".work-"


@contextmanager
def opened(path: Path) -> Iterator[OutputFolder]:
    """Make the folder, check that it can be written, and clear the work away at the end.

    Raises:
        UsageError: it cannot be made or written.
    """
    made = not path.exists()
    try:
        with _writing(path):
            path.mkdir(parents=True, exist_ok=True)
            with _locked(path):
                _sweep(path)
                _check_form(path)
                work = Path(tempfile.mkdtemp(prefix=f"{_WORK}{os.getpid()}-", dir=path))
                try:
                    yield OutputFolder(path, work)
                finally:
                    shutil.rmtree(work, ignore_errors=True)
    finally:
        if made and path.is_dir():
            _remove_empty(path)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Tell a full disk or a folder that may not be written in one line."""
    try:
        yield
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        raise UsageError(
            f"cannot write to the output folder {path}: {error.strerror}",
            hint="give a folder of your own with -o, with room on its disk",
        ) from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the folder for one run; the lock ends with the process, however that ends."""
    from filelock import FileLock, Timeout

    lock = FileLock(path / LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise UsageError(
            f"another modelc is writing to {path}", hint="wait for it, or give another -o"
        ) from error
    try:
        yield
    finally:
        lock.release()
        (path / LOCK).unlink(missing_ok=True)


def _check_form(path: Path) -> None:
    """That our folders' names are not taken by files."""
    for name in (LOGS, REJECTED, REPLACED, WORST):
        if (path / name).exists() and not (path / name).is_dir():
            raise UsageError(
                f"{path / name} is a file, and modelc keeps a folder of that name",
                hint="move it away, or give another -o",
            )


def _sweep(path: Path) -> None:
    """Remove work folders of runs that are no more."""
    for left in path.glob(f"{_WORK}*"):
        owner = left.name.removeprefix(_WORK).partition("-")[0]
        if owner.isdigit() and not _runs(int(owner)):
            shutil.rmtree(left, ignore_errors=True)


def _runs(process: int) -> bool:
    """Whether the process is there; where that cannot be asked harmlessly, it counts as there."""
    if os.name != "posix":
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _remove_empty(path: Path) -> None:
    """Take back a folder that this run made and left without a result."""
    if {entry.name for entry in path.iterdir()} <= {LOGS, LOCK}:
        shutil.rmtree(path)


class OutputFolder:
    """An output folder during one run.

    Only files that its record names may be replaced, and never what the run reads.
    """

    def __init__(self, path: Path, work: Path) -> None:
        self.path = path
        self._work = work
        self._owned: set[str] = set()
        self._read: frozenset[Path] = frozenset()

    def own(self, names: Iterable[str]) -> None:
        """Say which files the record names."""
        self._owned.update(names)

    def reads(self, paths: Iterable[Path]) -> None:
        """Say which files the run reads: checkpoint, samples, parent."""
        self._read = frozenset(path.resolve() for path in paths)

    def claim(self, names: Iterable[str]) -> None:
        """Make sure that the files may be written.

        Raises:
            UsageError: one is read by this run, or is there and not ours.
        """
        for name in names:
            path = self.path / name
            if path.resolve() in self._read:
                raise UsageError(
                    f"{path} is read by this run and would be replaced", hint="give another -o"
                )
            if path.exists() and name not in self._owned:
                raise UsageError(
                    f"{path} is there, and no manifest in {self.path} knows it",
                    hint="move it away, or give another -o",
                )

    @property
    def logs(self) -> Path:
        """Where the last run's logs are."""
        return self.path / LOGS

    def workplace(self, name: str) -> Path:
        """A new empty folder beside the results, on the same file system."""
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self._work))

    def accept(self, files: Iterable[FileRecord], workplace: Path) -> None:
        """Move proven files to their names, the model last; what was rejected before goes."""
        files = tuple(files)
        self.claim(file.name for file in files)
        for file in reversed(files):
            (workplace / file.name).replace(self.path / file.name)
            if f"{REJECTED}/{file.name}" in self._owned:
                (self.path / REJECTED / file.name).unlink(missing_ok=True)
        _drop_if_empty(self.path / REJECTED)

    def reject(self, files: Iterable[FileRecord], workplace: Path) -> tuple[FileRecord, ...]:
        """Move refused files to `rejected/`, so that nothing wrong stands under a target name."""
        moved = [
            (file.name, replace(file, name=f"{REJECTED}/{Path(file.name).name}")) for file in files
        ]
        self.claim(file.name for _, file in moved)
        (self.path / REJECTED).mkdir(exist_ok=True)
        for name, file in moved:
            (workplace / name).replace(self.path / file.name)
        return tuple(file for _, file in moved)

    def set_aside(self, files: Iterable[FileRecord]) -> None:
        """Move files of another model's record to `replaced/`, or `replaced-2/` and so on.

        Raises:
            UsageError: this run reads one of them; nothing was moved.
        """
        here = [file.name for file in files if (self.path / file.name).exists()]
        self.claim(here)
        place = self._fresh(REPLACED)
        for name in here:
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (self.path / name).replace(place / name)

    def _fresh(self, name: str) -> Path:
        """A folder of that name that is not there yet."""
        places = (self.path / (name if n == 1 else f"{name}-{n}") for n in itertools.count(1))
        return next(place for place in places if not place.exists())

    def drop(self, files: Iterable[FileRecord]) -> None:
        """Remove files that the record no longer names."""
        for file in files:
            (self.path / file.name).unlink(missing_ok=True)
        _drop_if_empty(self.path / REJECTED)


def _drop_if_empty(folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
