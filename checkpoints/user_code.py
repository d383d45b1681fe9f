"""Folders of the user's modules, and access to them.

The working folder and the folder of modelc.toml are appended to `sys.path` only while a factory is
imported and called: otherwise a `tensorrt.py` or `onnx.py` of the user could shadow a library. Code
in these folders may import its neighbours at any time.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from traceback import extract_tb
from types import FrameType, ModuleType

from ..core.children.preloaded import check_preloaded
from .source_positions import is_user_file

_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_registered: list[str] = []


def code_folders() -> tuple[str, ...]:
    """Return the folders of the user's modules, the current one first."""
    return tuple(dict.fromkeys(filter(None, (_find_working_folder(), *_registered))))


def _find_working_folder() -> str:
    try:
        return os.getcwd()  # noqa: PTH109 - compared as text
    except FileNotFoundError:  # it was removed meanwhile
        return ""


@contextmanager
def keep_working_folder() -> Iterator[None]:
    """Restore the working folder after user code: paths of this run are relative to it."""
    folder = _find_working_folder()
    try:
        yield
    finally:
        if folder and folder != _find_working_folder():
            os.chdir(folder)


def extra_folders() -> tuple[str, ...]:
    """Return the registered folders, for a child process to register as well."""
    return tuple(_registered)


def project_folder() -> Path:
    """Return the folder of modelc.toml, or the current one: dependencies are relative to it."""
    return Path(_registered[-1]) if _registered else Path.cwd()


def register_folders(folders: Iterable[str]) -> None:
    """Register folders of the user's modules until the process ends."""
    _registered.extend(folders)


@contextmanager
def use_code_folder(folder: Path) -> Iterator[None]:
    """Register a folder of the user's modules within the context."""
    place = str(folder.resolve())
    _registered.append(place)
    try:
        yield
    finally:
        _registered.remove(place)


@contextmanager
def make_user_code_importable() -> Iterator[None]:
    """Append the user's folders to the import path within the context, and keep the working folder.

    Raises:
        NewProcessNeededError: the user's code changed what libraries see when they are imported,
            and they are imported already.
    """
    if _FINDER not in sys.meta_path:  # behind Python's own
        finders: list[object] = list(sys.meta_path)
        place = finders.index(PathFinder) + 1 if PathFinder in finders else len(finders)
        sys.meta_path.insert(place, _FINDER)
    added = [folder for folder in code_folders() if folder not in sys.path]
    sys.path.extend(added)
    try:
        with keep_working_folder():
            yield
        check_preloaded()
    finally:
        for folder in added:
            if folder in sys.path:  # the user's code may have restored the list
                sys.path.remove(folder)


def shorten_path(file: str) -> str:
    """Return a file's path relative to the current folder or its import root, if possible."""
    path = Path(file)
    for root in map(Path, (*code_folders(), *sys.path)):
        if root.is_absolute() and path.is_relative_to(root):
            return path.relative_to(root).as_posix()
    return str(path)


def locate_user_code(error: BaseException) -> str:
    """Return ` at file:line` of the innermost frame of the user's code; empty without one.

    A package that the model uses, such as `transformers`, counts if no other code raised.
    """
    frames = [one for one in extract_tb(error.__traceback__) if is_user_file(one.filename)]
    written = [one for one in frames if not any(part in one.filename for part in _INSTALLED)]
    return next(
        (f" at {shorten_path(one.filename)}:{one.lineno}" for one in (written or frames)[::-1]), ""
    )


class _UserCodeFinder:
    """Finds modules in the user's folders for code in these folders."""

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,  # noqa: ARG002 - as a finder is called
    ) -> ModuleSpec | None:
        folders, file = code_folders(), _find_importing_file()
        is_users = file.startswith(tuple(f"{folder}{os.sep}" for folder in folders))
        if path is not None or not is_users or any(part in file for part in _INSTALLED):
            return None
        return PathFinder.find_spec(name, folders)


_FINDER = _UserCodeFinder()


def _find_importing_file() -> str:
    """Return the file of the current import statement."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name != __file__ and "importlib" not in name:
            if name.startswith("<"):  # compiled at run time
                return ""
            return os.path.abspath(name)  # noqa: PTH100 - compared as text
        frame = frame.f_back
    return ""
