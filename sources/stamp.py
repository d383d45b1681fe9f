"""Whether a checkpoint stays as it is: mapped weights are read from it all through a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import CheckpointError

if TYPE_CHECKING:
    from ..core.records import Checkpoint

# Whether a checkpoint stays as it is: mapped weights are read from it all through a run.


@dataclass(frozen=True, kw_only=True)
class ChangeGuard:
    """What the file system says of each file: device, inode, bytes, time of the last change."""

    files: tuple[tuple[Path, tuple[int, int, int, int]], ...]

    def check(self) -> None:
        """Make sure that nothing wrote to the files since.

        A file that another took the place of does no harm: what is mapped is the old one.

        Raises:
            CheckpointError: something did; what was made meanwhile may hold any of both.
        """
        for path, before in self.files:
            now = _file_state(path)
            if now is not None and now[:2] == before[:2] and now != before:
                raise CheckpointError(
                    f"{path} was written to while the run read it",
                    hint="run again when nothing writes to it any more, or export a copy of it",
                )


NO_GUARD = ChangeGuard(files=())  # of no files: nothing is checked


def make_change_guard(checkpoint: Checkpoint) -> ChangeGuard:
    """The files of a checkpoint as they are now; what is not there any more is left out."""
    path = Path(checkpoint.path)
    root = path if path.is_dir() else path.parent
    states = ((root / file.name, _file_state(root / file.name)) for file in checkpoint.files)
    return ChangeGuard(files=tuple((path, state) for path, state in states if state is not None))


def _file_state(path: Path) -> tuple[int, int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
