"""The output folder: work happens aside, and only proven files take their names."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ..core.errors import UsageError, first_line
from ..core.records import FileRecord

REJECTED = "rejected"
REPLACED = "replaced"
LOGS = "logs"
_WORK = ".work-"


@contextmanager
def opened(path: Path) -> Iterator[OutputFolder]:
    """Make the folder, check that it can be written, and clear the work away at the end.

    Raises:
        UsageError: it cannot be made or written.
    """
    made = not path.exists()
    try:
        path.mkdir(parents=True, exist_ok=True)
        _sweep(path)
        shutil.rmtree(path / LOGS, ignore_errors=True)
        work = Path(tempfile.mkdtemp(prefix=f"{_WORK}{os.getpid()}-", dir=path))
    except OSError as error:
        reason = error.strerror or first_line(error)
        raise UsageError(
            f"cannot write to the output folder {path}: {reason}",
            hint="give a folder of your own with -o",
        ) from error
    try:
        yield OutputFolder(path, work)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        if made:
            _remove_empty(path)


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
    if {entry.name for entry in path.iterdir()} <= {LOGS}:
        shutil.rmtree(path)


class OutputFolder:
    """An output folder during one run."""

    def __init__(self, path: Path, work: Path) -> None:
        self.path = path
        self._work = work

    @property
    def logs(self) -> Path:
        """Where the last run's logs are."""
        return self.path / LOGS

    def workplace(self, name: str) -> Path:
        """A new empty folder beside the results, on the same file system."""
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self._work))

    def accept(self, files: Iterable[FileRecord], workplace: Path) -> None:
        """Move proven files to their names, the model last; what was rejected before goes."""
        for file in reversed(tuple(files)):
            (workplace / file.name).replace(self.path / file.name)
            (self.path / REJECTED / file.name).unlink(missing_ok=True)
        _drop_if_empty(self.path / REJECTED)

    def reject(self, files: Iterable[FileRecord], workplace: Path) -> tuple[FileRecord, ...]:
        """Move refused files to `rejected/`, so that nothing wrong stands under a target name."""
        (self.path / REJECTED).mkdir(exist_ok=True)
        moved: list[FileRecord] = []
        for file in files:
            name = f"{REJECTED}/{Path(file.name).name}"
            (workplace / file.name).replace(self.path / name)
            moved.append(replace(file, name=name))
        return tuple(moved)

    def set_aside(self, files: Iterable[FileRecord]) -> None:
        """Move files of another checkpoint's record to `replaced/`."""
        for file in files:
            here = self.path / file.name
            if here.exists():
                there = self.path / REPLACED / file.name
                there.parent.mkdir(parents=True, exist_ok=True)
                here.replace(there)

    def drop(self, files: Iterable[FileRecord]) -> None:
        """Remove files that the record no longer names."""
        for file in files:
            (self.path / file.name).unlink(missing_ok=True)
        _drop_if_empty(self.path / REJECTED)


def _drop_if_empty(folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
