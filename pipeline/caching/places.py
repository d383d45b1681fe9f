"""Where Python and installed packages lie: what is told by versions and not by files."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

_SYSTEM_FOLDERS = ("/proc/", "/sys/", "/dev/")
_PACKAGE_FOLDERS = ("site-packages", "dist-packages")
_STANDARD_FOLDERS = tuple(
    {
        place + os.sep
        for name in ("stdlib", "platstdlib", "scripts")
        for place in (sysconfig.get_path(name), os.path.realpath(sysconfig.get_path(name)))
    }
)
_ZIPPED_LIBRARY = (
    f"{os.sep}python{sys.version_info.major}{sys.version_info.minor}.zip"  # seldom there
)


def is_standard_library(path: str) -> bool:
    """Whether it is a file of Python's own library, or a program beside it."""
    return (path.startswith(_STANDARD_FOLDERS) and not is_installed_package(path)) or path.endswith(
        _ZIPPED_LIBRARY
    )


def is_installed_package(path: str) -> bool:
    """Whether it is a file of an installed package."""
    return any(f"{os.sep}{name}{os.sep}" in path for name in _PACKAGE_FOLDERS)


def is_packages_folder(folder: Path) -> bool:
    """Whether packages are installed in that very folder."""
    return folder.name in _PACKAGE_FOLDERS


def is_installed_code(path: str) -> bool:
    """Whether it is Python's, an installed package's or the system's own, by its name alone."""
    return (
        path.startswith(_SYSTEM_FOLDERS) or is_standard_library(path) or is_installed_package(path)
    )
