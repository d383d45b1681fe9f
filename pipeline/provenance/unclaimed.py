"""Finds model files below an output folder that no record claims.

A file named `model.*` looks like an artifact that passed. Wherever one lies below the folder,
either the manifest nearest above it claims it, or `modelc verify` fails.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path

from ..manifest_file import FILE
from ..plan import STEM
from .records import Check, Finding

# Maps of nodes (`model.debug.json`), reports, and with `-o .` the user's own code.
_NO_MODEL = (".py", ".pyi", ".json", ".toml", ".yaml", ".yml", ".md", ".txt", ".log", ".html")


def manifest_folders(root: Path) -> tuple[Path, ...]:
    """All folders below `root`, and itself, that hold a manifest; links are not followed."""
    return tuple(Path(place) for place, _, names in _walk(root) if FILE in names)


def unclaimed_models(root: Path, claimed: Collection[Path] = ()) -> Iterator[Check]:
    """A failed check for each model file that nothing claims.

    Args:
        root: what is searched, without folders below it that have a manifest of their own.
        claimed: resolved paths of files that are accounted for.
    """
    for place, folders, names in _walk(root):
        here = Path(place)
        for name in (one for one in list(folders) if (here / one / FILE).is_file()):
            if not (here / name).is_symlink():
                folders.remove(name)
        links = (here / name for name in folders if (here / name).is_symlink())
        yield from (_fail(one, root, "files", _LINK) for one in links if _leads_out(one, root))
        models = (here / name for name in names if _is_model(name))
        for path in models:
            if path.resolve() not in claimed:
                yield _fail(path, root, "verdict", _UNKNOWN)


_UNKNOWN = "no record names it, so nothing says that it was ever judged: remove it"
_LINK = "a link out of the folder, behind which nothing was checked: remove it"


def _walk(root: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """As os.walk, in a stable order."""
    for place, folders, names in os.walk(root):
        folders.sort()
        yield place, folders, sorted(names)


def _is_model(name: str) -> bool:
    return name.lower().startswith(f"{STEM}.") and not name.lower().endswith(_NO_MODEL)


def _leads_out(link: Path, root: Path) -> bool:
    return not link.resolve().is_relative_to(root.resolve())


def _fail(path: Path, root: Path, what: str, detail: str) -> Check:
    name = path.relative_to(root).as_posix()
    return Check(of=name, what=what, found=Finding.FAILED, detail=detail)
