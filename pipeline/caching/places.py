"""Where Python and installed packages lie: what is told by versions and not by files."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

_SYSTEM = ("/proc/", "/sys/", "/dev/")
_FOLDERS = ("site-packages", "dist-packages")
_STANDARD = tuple(
    {
        place + os.sep
        for name in ("stdlib", "platstdlib", "scripts")
        for place in (sysconfig.get_path(name), os.path.realpath(sysconfig.get_path(name)))
    }
)
_ZIPPED = f"{os.sep}python{sys.version_info.major}{sys.version_info.minor}.zip"  # seldom there


def is_standard(path: str) -> bool:
    """Whether it is a file of Python's own library, or a program beside it."""
    return (path.startswith(_STANDARD) and not is_installed(path)) or path.endswith(_ZIPPED)


def is_installed(path: str) -> bool:
    """Whether it is a file of an installed package."""
    return any(f"{os.sep}{name}{os.sep}" in path for name in _FOLDERS)


def is_folder_of_packages(folder: Path) -> bool:
    """Whether packages are installed in that very folder."""
    return folder.name in _FOLDERS


def is_theirs(path: str) -> bool:
    """Whether it is Python's, an installed package's or the system's own, by its name alone."""
    return path.startswith(_SYSTEM) or is_standard(path) or is_installed(path)
