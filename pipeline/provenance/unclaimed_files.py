"""Find model files in an output folder that no record claims."""

from __future__ import annotations

import json
import os
import stat
import unicodedata
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ...converters.registry import BUILT_IN, TARGETS
from ...core.errors import join_some
from ...core.records import sha256_of
from ..manifest_file import MANIFEST_FILE
from ..plan import MODEL_STEM
from .artifact_checks import CheckOutcome, ProvenanceCheck, resolve_links

# Node maps (`model.debug.json`), reports, and with `-o .` the user's own code.
_NOT_MODEL_SUFFIXES = (
    *(".py", ".pyi", ".json", ".toml", ".yaml", ".yml"),
    *(".md", ".txt", ".log", ".html"),
)
# Other files that modelc writes without recording them: feeds, reports, signatures, locks.
_IGNORED_SUFFIXES = (".npz", ".npy", ".csv", ".xml", ".sarif", ".sig", ".lock", ".gitignore")
# Formats of runtimes that modelc does not support.
_FOREIGN_SUFFIXES = (".ort", ".plan", ".trt", ".tflite", ".mlmodel", ".pte", ".pb")
_MAX_FILES_SHOWN = 3  # names of other files to show
_HEAD_SIZE = 1024  # bytes of a file to inspect
_CONTROLS = frozenset(range(32)) - frozenset(b"\t\n\f\r\x1b")  # absent in text and coloured logs
_ARRAYS = {".npz": b"PK", ".npy": b"\x93NUMPY"}
_ONNX, _IR = b"\x08", b"<net "  # the key of `ir_version` and the root of an IR
_LATEST = 64
_SIGNED, _SIGNATURE = ".sig", 128  # bytes; a signature may have any content

_UNKNOWN_DETAIL = "it is in no manifest, so it may never have been judged: remove it"
_LINK_OUT_DETAIL = "a link out of the folder, whose target was not checked: remove it"
_LINK_PART_DETAIL = "a link to a folder without a manifest: remove it"
_UNREAD_DETAIL = "the folder cannot be read, so nothing in it was checked"


@dataclass(frozen=True, kw_only=True)
class ClaimedFiles:
    """Files that records account for, by place (see `real_place`) and by digest.

    `read` are link targets that an order only reads, such as a checkpoint. `apart` are folders with
    a record of their own.
    """

    places: Collection[Path] = ()
    apart: Collection[Path] = ()
    read: Collection[Path] = ()
    digests: Collection[str] = field(default=(), repr=False)


NOTHING_CLAIMED = ClaimedFiles()


def real_place(path: Path) -> Path:
    """Resolve the folder of a path but not its name: a link is claimed by its own name."""
    return path.parent.resolve() / path.name


def folders_with(name: str, root: Path) -> tuple[Path, ...]:
    """Return the folders at and below `root` that contain a file of that name; no links.

    Unreadable folders are skipped here and reported by `check_unclaimed`.
    """
    return tuple(Path(place) for place, _, names in _walk_sorted(root, []) if name in names)


def manifest_folders(root: Path) -> tuple[Path, ...]:
    """Return the folders with a manifest of modelc; other programs use `manifest.json` too."""
    return tuple(
        one for one in folders_with(MANIFEST_FILE, root) if one == root or _has_record(one)
    )


def check_unclaimed(
    root: Path, claimed: ClaimedFiles = NOTHING_CLAIMED, *, signed: bool = False
) -> Iterator[ProvenanceCheck]:
    """Yield a failed check for each unclaimed model file, and what was not inspected.

    Args:
        root: the folder to search, without folders that have a record of their own.
        claimed: the files that records account for.
        signed: whether the records must be signed; then models with names other than `model.*`
            fail.
    """
    unread: list[OSError] = []
    others: list[Path] = []
    for place, folders, names in _walk_sorted(root, unread):
        here = Path(place)
        yield from _check_links(here, folders, root)
        folders[:] = [one for one in folders if here / one not in claimed.apart]
        models = [here / one for one in folders if _has_model_suffix(one)]
        yield from (_check_renamed(one, root, signed) for one in models if not one.is_symlink())
        files = [
            one
            for one in (here / name for name in names)
            if real_place(one) not in claimed.places and resolve_links(one) not in claimed.read
        ]
        named = [one for one in files if _is_manifest_name(one)]
        yield from (
            _make_failed_check(one, root, CheckOutcome.FAILED, _UNKNOWN_DETAIL) for one in named
        )
        for path in (one for one in files if one not in named):
            if not _looks_like_a_model(path):
                others.append(path)
            elif not _is_known(path, claimed):
                yield _check_renamed(path, root, signed)
    for error in unread:
        yield _make_failed_check(
            Path(error.filename or root), root, CheckOutcome.FAILED, _UNREAD_DETAIL, what="files"
        )
    yield from _check_uninspected(others, root)


def _check_uninspected(paths: Iterable[Path], root: Path) -> Iterator[ProvenanceCheck]:
    """Yield one check for all files that are neither models nor of a kind that modelc writes."""
    usual = (*_NOT_MODEL_SUFFIXES, *_IGNORED_SUFFIXES)
    unknown = [
        path.relative_to(root).as_posix()
        for path in paths
        if not _normalize_text(path.name).endswith(usual)
    ]
    if unknown:
        shown = join_some(unknown, _MAX_FILES_SHOWN)
        detail = f"{len(unknown)} in no manifest, which do not look like models: {shown}"
        yield ProvenanceCheck(
            of="other files", what="files", found=CheckOutcome.UNCHECKED, detail=detail
        )


def _walk_sorted(root: Path, unread: list[OSError]) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walk like `os.walk`, in a stable order."""
    for place, folders, names in os.walk(root, onerror=unread.append):
        folders.sort()
        yield place, folders, sorted(names)


def _has_record(folder: Path) -> bool:
    """Whether a folder has a record of its own; a damaged manifest counts."""
    path = folder / MANIFEST_FILE
    if folder.is_symlink() or path.is_dir() or not (path.is_symlink() or path.exists()):
        return False
    try:
        document = json.loads(path.read_bytes()) if path.is_file() else None
    except (OSError, ValueError, RecursionError):
        return True
    return not isinstance(document, dict) or not {"modelc", "artifacts"}.isdisjoint(document)


def _check_links(here: Path, folders: list[str], root: Path) -> Iterator[ProvenanceCheck]:
    """Check that links to folders lead to folders with a record inside `root`."""
    for path in (here / name for name in folders if (here / name).is_symlink()):
        if not resolve_links(path).is_relative_to(root.resolve()):
            yield _make_failed_check(
                path, root, CheckOutcome.FAILED, _LINK_OUT_DETAIL, what="files"
            )
        elif not (path / MANIFEST_FILE).is_file() and resolve_links(path) != root.resolve():
            yield _make_failed_check(
                path, root, CheckOutcome.FAILED, _LINK_PART_DETAIL, what="files"
            )


def _check_renamed(path: Path, root: Path, signed: bool) -> ProvenanceCheck:
    return _make_failed_check(
        path, root, CheckOutcome.FAILED if signed else CheckOutcome.UNCHECKED, _UNKNOWN_DETAIL
    )


def _normalize_text(name: str) -> str:
    """Normalize a name to its visible form: case, letter forms, no invisible characters."""
    seen = (one for one in unicodedata.normalize("NFKC", name) if unicodedata.category(one) != "Cf")
    return "".join(seen).casefold().strip(" .") if name.strip(" .") else name


def _is_manifest_name(path: Path) -> bool:
    """Whether a file has the name of an artifact and is not a genuine document."""
    plain = _normalize_text(path.name)
    if plain != MODEL_STEM and not plain.startswith(f"{MODEL_STEM}."):
        return False
    return (
        not _is_document(path)
        if plain.endswith(_NOT_MODEL_SUFFIXES) or plain == MODEL_STEM
        else True
    )


def _is_document(path: Path) -> bool:
    """Whether a file starts as text other than an OpenVINO IR, or as the arrays of its suffix."""
    start = _read_head(path)
    arrays = next((mark for end, mark in _ARRAYS.items() if path.name.endswith(end)), None)
    if arrays is not None:
        return start.startswith(arrays)
    return _CONTROLS.isdisjoint(start) and _IR not in start


def _read_head(path: Path) -> bytes:
    """Return the first bytes of a regular file; empty if it cannot be read."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return b""
        with path.open("rb") as stream:
            return stream.read(_HEAD_SIZE)
    except OSError:
        return b""


def _is_disguised(path: Path) -> bool:
    """Whether a file starts like a model, whatever its name."""
    start = _read_head(path)
    if path.name.endswith(_SIGNED) and len(start) <= _SIGNATURE:
        return False
    if start[:1] == _ONNX and start[1:2] and start[1] <= _LATEST:
        return True
    return _normalize_text(path.name).endswith(
        (*_NOT_MODEL_SUFFIXES, *_IGNORED_SUFFIXES)
    ) and not _is_document(path)


def _has_model_suffix(name: str) -> bool:
    own = (one.SUFFIX for one in TARGETS if one.SUFFIX not in _IGNORED_SUFFIXES)
    return _normalize_text(name).endswith((*own, *_FOREIGN_SUFFIXES))


def _looks_like_a_model(path: Path) -> bool:
    """Whether a file is a model by its name, by its link target or by its first bytes."""
    if path.name != path.name.casefold() and _normalize_text(path.name).endswith(_IGNORED_SUFFIXES):
        return True  # readers may accept `.XML` for `.xml`; modelc never writes such a name
    try:
        if path.is_symlink() and (end := resolve_links(path)).name != path.name:
            return (
                _has_model_suffix(path.name) or _is_manifest_name(end) or _looks_like_a_model(end)
            )
        if _has_model_suffix(path.name) or _is_disguised(path):
            return True
        return stat.S_ISREG(path.stat().st_mode) and any(one.claims(path) for one in BUILT_IN)
    except OSError:  # a dangling link or a link cycle
        return _has_model_suffix(path.name)


def _is_known(path: Path, claimed: ClaimedFiles) -> bool:
    """Whether a record has the digest of a file of any name: a given parent, a checkpoint."""
    return bool(claimed.digests) and path.is_file() and sha256_of(path) in claimed.digests


def _make_failed_check(
    path: Path, root: Path, found: CheckOutcome, detail: str, *, what: str = "verdict"
) -> ProvenanceCheck:
    try:
        name = path.relative_to(root).as_posix()
    except ValueError:
        name = str(path)
    return ProvenanceCheck(of=name, what=what, found=found, detail=detail)
