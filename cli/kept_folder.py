"""Which output folder holds what was proven when a command is interrupted.

Apart from the screen: every command starts with it, and rich's progress bars are not needed for it.
"""

from __future__ import annotations

from pathlib import Path

_output_folders: list[Path] = []  # output folders that this run of the command works in


def forget_folders() -> None:
    """A new run of the command begins."""
    _output_folders.clear()


def set_output_folder(folder: Path) -> None:
    """From now on, what is proven is kept in this folder."""
    _output_folders.append(folder)


def last_output_folder() -> Path | None:
    """The folder that holds what was proven, of this run or an earlier one; None for nothing."""
    records = ("manifest.json", "run.json", "*/manifest.json")
    held = (one for one in _output_folders if any(any(one.glob(name)) for name in records))
    return next(held, None)
