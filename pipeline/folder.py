"""The output folder: work happens aside, and only proven files take their names."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..core.errors import UsageError, first_line
from ..core.records import FileRecord

REJECTED = "rejected"
REPLACED = "replaced"
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
        match = re.match(rf"{re.escape(_WORK)}(\d+)-", left.name)
        if match and not Path(f"/proc/{match.group(1)}").exists() and Path("/proc").exists():
            shutil.rmtree(left, ignore_errors=True)


def _remove_empty(path: Path) -> None:
    """Take back a folder that this run made and left without a result."""
    logs = path / "logs"
    if {entry.name for entry in path.iterdir()} <= {"logs"}:
        shutil.rmtree(logs, ignore_errors=True)
        path.rmdir()


class OutputFolder:
    """An output folder during one run."""

    def __init__(self, path: Path, work: Path) -> None:
        self.path = path
        self._work = work

    def log(self, step: str) -> Path:
        """The log file of a step."""
        logs = self.path / "logs"
        logs.mkdir(exist_ok=True)
        return logs / f"{step}.log"

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
        from dataclasses import replace

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


def _drop_if_empty(folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
