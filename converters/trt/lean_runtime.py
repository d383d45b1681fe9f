"""The lean runtime that TensorRT puts into a version-compatible engine.

pip installs it apart from TensorRT, in a package that the builder does not look into: it is loaded
before the build, and the builder then finds it by its name.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable
from ctypes.util import find_library
from importlib import util
from pathlib import Path
from typing import TypeAlias

from ...core.errors import ErrorCode, MissingError
from ..installed_packages import package_versions

LEAN_DISTRIBUTIONS = ("tensorrt-lean-cu13-libs", "tensorrt-lean-cu12-libs")
_MODULE = "tensorrt_lean_libs"  # of both distributions
_CUDA_12 = ("tensorrt-cu12", "tensorrt-cu12-libs")
LoadLibrary: TypeAlias = Callable[[str], object]


def lean_install_command(version: str, installed: Iterable[str]) -> str:
    """Return the command that installs the lean runtime of a TensorRT version.

    `installed` are the names of distributions, which say for which CUDA TensorRT is.
    """
    name = LEAN_DISTRIBUTIONS[1] if set(_CUDA_12) & set(installed) else LEAN_DISTRIBUTIONS[0]
    return f"pip install {name}=={version}" if version else f"pip install {name}"


def is_lean_runtime_installed() -> bool:
    """Return whether the package or a library of the system is there, without loading it."""
    return util.find_spec(_MODULE) is not None or find_library("nvinfer_lean") is not None


def load_lean_runtime(
    version: str, *, folders: Iterable[Path] | None = None, load: LoadLibrary = ctypes.CDLL
) -> None:
    """Load the lean runtime of this TensorRT version, from pip's package or from the system.

    Args:
        version: TensorRT's.
        folders: where pip's package may be; found if None.
        load: opens a library by name or path; raises OSError if it cannot.

    Raises:
        MissingError: there is none of this version.
    """
    name = _library_name(version)
    places = _package_folders() if folders is None else folders
    failures: list[str] = []
    for library in (*(str(folder / name) for folder in places), name):
        try:
            load(library)
        except OSError as error:
            failures.append(str(error))
        else:
            return
    raise MissingError(
        f"--version-compatible needs {name} of TensorRT {version}: {failures[0]}",
        hint=lean_install_command(version, package_versions(*_CUDA_12)),
        option="version-compatible",
        code=ErrorCode.NOT_INSTALLED,
    )


def _library_name(version: str) -> str:
    major = version.partition(".")[0]
    return f"nvinfer_lean_{major}.dll" if sys.platform == "win32" else f"libnvinfer_lean.so.{major}"


def _package_folders() -> list[Path]:
    """Return the folders of pip's package, without importing it: it loads all that is there."""
    found = util.find_spec(_MODULE)
    return [Path(place) for place in (found.submodule_search_locations or ())] if found else []
