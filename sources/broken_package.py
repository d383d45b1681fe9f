"""Which installed package an import broke on: what transformers says of it names another."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path, PurePath

from ..core.errors import MissingError, first_line

# Which installed package an import broke on: what transformers says of it names another.


# Where the import began, and what all of them stand on: not what is broken.
_INTERMEDIARIES = frozenset({"transformers", "torch", "importlib", "modelc"})
_TORCH_COMPANIONS = ("torchvision", "torchaudio")  # each release is compiled for one torch
_SITE_FOLDERS = ("site-packages", "dist-packages")


@contextmanager
def blame_broken_package(what: str) -> Iterator[None]:
    """Turn an error of an import into one that names the package that is broken.

    An error that no other package is behind passes through.

    Raises:
        MissingError: a package that `what` imports cannot be imported.
    """
    try:
        yield
    except Exception as error:
        package = find_broken_package(error)
        if not package:
            raise
        inner = _error_chain(error)[-1]
        raise MissingError(
            f"{what} needs {_with_version(package)}, which cannot be imported: "
            f"{type(inner).__name__}: {first_line(inner)}",
            hint=_repair_command(package),
        ) from error


def find_broken_package(error: BaseException) -> str:
    """The top-level package that the innermost error of a chain was raised in while imported.

    Empty where that is none but transformers and torch, or nothing was being imported.
    """
    inner = _error_chain(error)[-1]
    if isinstance(inner, ModuleNotFoundError) and inner.name:
        return (
            "" if inner.name.partition(".")[0] in _INTERMEDIARIES else inner.name.partition(".")[0]
        )
    frames = traceback.extract_tb(inner.__traceback__)
    if not any(frame.name == "<module>" for frame in frames):
        return ""
    packages = [name for frame in frames if (name := _package_of(frame.filename))]
    return next((name for name in reversed(packages) if name not in _INTERMEDIARIES), "")


def _error_chain(error: BaseException) -> list[BaseException]:
    """The error, and what it was raised from or beside, the innermost last."""
    found = [error]
    while (inner := found[-1].__cause__ or found[-1].__context__) is not None:
        if inner in found:
            break
        found.append(inner)
    return found


def _package_of(file: str) -> str:
    """The top-level name of an installed file; of another, that of the folder that holds it."""
    parts = PurePath(file).parts
    for place in _SITE_FOLDERS:
        if place in parts:
            return parts[parts.index(place) + 1].removesuffix(".py")
    folder = Path(file).parent
    top = ""
    while (folder / "__init__.py").is_file():
        top, folder = folder.name, folder.parent
    return top


def _with_version(package: str) -> str:
    try:
        return f"{package} {metadata.version(package)}"
    except metadata.PackageNotFoundError:
        return package


def _repair_command(package: str) -> str:
    """The command that replaces it; what is compiled for one torch, by the one for this torch."""
    held = ""
    if package in _TORCH_COMPANIONS:
        held = f" torch=={metadata.version('torch').partition('+')[0]}"
    return f"pip uninstall -y {package} && pip install {package}{held}; modelc doctor shows all"
