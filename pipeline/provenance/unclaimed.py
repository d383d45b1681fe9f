"""Finds model files below an output folder that no record claims.

A file named `model.*` looks like an artifact that passed. Wherever one lies below the folder,
either the manifest nearest above it claims it, or `modelc verify` fails. What looks like a model by
another name fails where a signature is asked for: whoever signed the records did not mean it. A
name says what a file is only where it begins as such a file does; what else lies there is counted.
"""

from __future__ import annotations

import json
import os
import stat
import unicodedata
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ...converters.registry import BUILT_IN, TARGETS
from ...core.digest import sha256_of
from ..manifest_file import FILE
from ..plan import STEM
from .artifacts import end_of
from .records import Check, Finding

# Maps of nodes (`model.debug.json`), reports, and with `-o .` the user's own code.
_NO_MODEL = (".py", ".pyi", ".json", ".toml", ".yaml", ".yml", ".md", ".txt", ".log", ".html")
# Further files that modelc writes without a record of them: feeds, reports, signatures, locks.
_NOTED = (".npz", ".npy", ".csv", ".xml", ".sarif", ".sig", ".lock", ".gitignore")
# Formats of runtimes that modelc does not know.
_OTHERS = (".ort", ".plan", ".trt", ".tflite", ".mlmodel", ".pte", ".pb")
_SUFFIXES = (*(one.SUFFIX for one in TARGETS if one.SUFFIX not in _NOTED), *_OTHERS)
_SHOWN = 3  # names of files that are no models
_BEGINNING = 1024  # bytes of a file that are looked at
_CONTROLS = frozenset(range(32)) - frozenset(b"\t\n\f\r\x1b")  # no text has them; logs are coloured
_ARRAYS = {".npz": b"PK", ".npy": b"\x93NUMPY"}
_ONNX, _IR = b"\x08", b"<net "  # the key of `ir_version`, at most so large; the root of an IR
_LATEST = 64
_SIGNED, _SIGNATURE = ".sig", 128  # bytes, at most: any of them may be anything

_UNKNOWN = "no record names it, so nothing says that it was ever judged: remove it"
_LINK_OUT = "a link out of the folder, behind which nothing was checked: remove it"
_LINK_PART = "a link to what is no folder with a record of its own: remove it"
_UNREAD = "the folder cannot be read, so nothing in it was checked"


@dataclass(frozen=True, kw_only=True)
class Claimed:
    """What records account for: files by their places, as `place_of` gives them, and by digest.

    `read` are ends of links to what an order only reads, as a checkpoint that a link leads to;
    `apart` are folders that answer for themselves.
    """

    places: Collection[Path] = ()
    apart: Collection[Path] = ()
    read: Collection[Path] = ()
    digests: Collection[str] = field(default=(), repr=False)


NOTHING = Claimed()


def place_of(path: Path) -> Path:
    """Where a file is, its own name not followed: a link is claimed by its name, not by its end."""
    return path.parent.resolve() / path.name


def folders_with(name: str, root: Path) -> tuple[Path, ...]:
    """All folders below `root`, and itself, that hold a file of that name; links are not followed.

    A folder that cannot be read holds nothing here; `unclaimed_models` says so.
    """
    return tuple(Path(place) for place, _, names in _walk(root, []) if name in names)


def manifest_folders(root: Path) -> tuple[Path, ...]:
    """Folders with a manifest that is not of another program: a page has a `manifest.json` too."""
    return tuple(one for one in folders_with(FILE, root) if one == root or _has_record(one))


def unclaimed_models(
    root: Path, claimed: Claimed = NOTHING, *, signed: bool = False
) -> Iterator[Check]:
    """A failed check for each model file that nothing claims, and what was not looked into.

    Args:
        root: what is searched, without the folders that answer for themselves.
        claimed: what is accounted for.
        signed: whether the records must be signed: models by other names than `model.*` fail then.
    """
    unread: list[OSError] = []
    others: list[Path] = []
    for place, folders, names in _walk(root, unread):
        here = Path(place)
        yield from _links(here, folders, root)
        folders[:] = [one for one in folders if here / one not in claimed.apart]
        models = [here / one for one in folders if _has_suffix(one)]
        yield from (_of_other_name(one, root, signed) for one in models if not one.is_symlink())
        files = [one for one in (here / name for name in names) if not _is_claimed(one, claimed)]
        named = [one for one in files if _is_named_so(one)]
        yield from (_check(one, root, Finding.FAILED, _UNKNOWN) for one in named)
        for path in (one for one in files if one not in named):
            if not _looks_like_a_model(path):
                others.append(path)
            elif not _is_known(path, claimed):
                yield _of_other_name(path, root, signed)
    for error in unread:
        yield _check(Path(error.filename or root), root, Finding.FAILED, _UNREAD, what="files")
    yield from _not_looked_into(others, root)


def _is_claimed(path: Path, claimed: Claimed) -> bool:
    return place_of(path) in claimed.places or end_of(path) in claimed.read


def _not_looked_into(paths: Iterable[Path], root: Path) -> Iterator[Check]:
    """One line for all files that are neither models nor of the kinds that modelc writes."""
    usual = (*_NO_MODEL, *_NOTED)
    strange = [
        path.relative_to(root).as_posix() for path in paths if not _plain(path.name).endswith(usual)
    ]
    if strange:
        shown = ", ".join(strange[:_SHOWN]) + (", ..." if len(strange) > _SHOWN else "")
        detail = f"{len(strange)} that no record names and that do not look like models: {shown}"
        yield Check(of="other files", what="files", found=Finding.UNCHECKED, detail=detail)


def _walk(root: Path, unread: list[OSError]) -> Iterator[tuple[str, list[str], list[str]]]:
    """As os.walk, in a stable order."""
    for place, folders, names in os.walk(root, onerror=unread.append):
        folders.sort()
        yield place, folders, sorted(names)


def _has_record(folder: Path) -> bool:
    """Whether a folder answers for what is in it; a broken manifest is looked at as one."""
    path = folder / FILE
    if folder.is_symlink() or path.is_dir() or not (path.is_symlink() or path.exists()):
        return False
    try:
        document = json.loads(path.read_bytes()) if path.is_file() else None
    except (OSError, ValueError, RecursionError):
        return True
    return not isinstance(document, dict) or not {"modelc", "artifacts"}.isdisjoint(document)


def _links(here: Path, folders: list[str], root: Path) -> Iterator[Check]:
    """Links to folders: what is behind one must be a whole folder that is looked at where it is."""
    for path in (here / name for name in folders if (here / name).is_symlink()):
        if not end_of(path).is_relative_to(root.resolve()):
            yield _check(path, root, Finding.FAILED, _LINK_OUT, what="files")
        elif not (path / FILE).is_file() and end_of(path) != root.resolve():
            yield _check(path, root, Finding.FAILED, _LINK_PART, what="files")


def _of_other_name(path: Path, root: Path, signed: bool) -> Check:
    return _check(path, root, Finding.FAILED if signed else Finding.UNCHECKED, _UNKNOWN)


def _plain(name: str) -> str:
    """A name as it looks: one case, one form of each letter, nothing that is not seen."""
    seen = (one for one in unicodedata.normalize("NFKC", name) if unicodedata.category(one) != "Cf")
    return "".join(seen).casefold().strip(" .") if name.strip(" .") else name


def _is_named_so(path: Path) -> bool:
    """Whether a file has the name of an artifact: also one that only its name makes a document."""
    plain = _plain(path.name)
    if plain != STEM and not plain.startswith(f"{STEM}."):
        return False
    return not _is_document(path) if plain.endswith(_NO_MODEL) or plain == STEM else True


def _is_document(path: Path) -> bool:
    """Whether a file begins as text that is no OpenVINO IR, or as the arrays that its name says."""
    start = _beginning(path)
    arrays = next((mark for end, mark in _ARRAYS.items() if path.name.endswith(end)), None)
    if arrays is not None:
        return start.startswith(arrays)
    return _CONTROLS.isdisjoint(start) and _IR not in start


def _beginning(path: Path) -> bytes:
    """The first bytes of a file; none of what is no file, or cannot be read."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return b""
        with path.open("rb") as stream:
            return stream.read(_BEGINNING)
    except OSError:
        return b""


def _is_disguised(path: Path) -> bool:
    """Whether a file begins as a model does, whatever its name says."""
    start = _beginning(path)
    if path.name.endswith(_SIGNED) and len(start) <= _SIGNATURE:
        return False
    if start[:1] == _ONNX and start[1:2] and start[1] <= _LATEST:
        return True
    return _plain(path.name).endswith((*_NO_MODEL, *_NOTED)) and not _is_document(path)


def _has_suffix(name: str) -> bool:
    return _plain(name).endswith(_SUFFIXES)


def _looks_like_a_model(path: Path) -> bool:
    """By its name, by that of what it leads to as a link, or by what it begins with."""
    if path.name != path.name.casefold() and _plain(path.name).endswith(_NOTED):
        return True  # what reads by suffix may take `.XML` for `.xml`; modelc writes no such name
    try:
        if path.is_symlink() and (end := end_of(path)).name != path.name:
            return _has_suffix(path.name) or _is_named_so(end) or _looks_like_a_model(end)
        if _has_suffix(path.name) or _is_disguised(path):
            return True
        return stat.S_ISREG(path.stat().st_mode) and any(one.claims(path) for one in BUILT_IN)
    except OSError:  # it leads nowhere, or in a circle
        return _has_suffix(path.name)


def _is_known(path: Path, claimed: Claimed) -> bool:
    """Whether a record says what a file of any name is: a parent that was given, a checkpoint."""
    return bool(claimed.digests) and path.is_file() and sha256_of(path) in claimed.digests


def _check(path: Path, root: Path, found: Finding, detail: str, *, what: str = "verdict") -> Check:
    try:
        name = path.relative_to(root).as_posix()
    except ValueError:
        name = str(path)
    return Check(of=name, what=what, found=found, detail=detail)
