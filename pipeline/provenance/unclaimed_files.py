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
from ...core.records import sha256_of
from ..manifest_file import MANIFEST_FILE
from ..plan import MODEL_STEM
from .artifact_checks import CheckOutcome, ProvenanceCheck, resolve_links

# Node maps (`model.debug.json`), reports and, with `-o .`, the user's code.
_NOT_MODEL_SUFFIXES = (
    ".py",
    ".pyi",
    ".json",
    ".toml",
    ".yaml",
    ".yml",
    ".md",
    ".txt",
    ".log",
    ".html",
)
# Files that modelc writes without a record: feeds, reports, signatures, locks.
_IGNORED_SUFFIXES = (".npz", ".npy", ".csv", ".xml", ".sarif", ".sig", ".lock", ".gitignore")
# Formats of runtimes that modelc does not support.
_FOREIGN_SUFFIXES = (".ort", ".plan", ".trt", ".tflite", ".mlmodel", ".pte", ".pb")
_MODEL_SUFFIXES = (
    *(one.SUFFIX for one in TARGETS if one.SUFFIX not in _IGNORED_SUFFIXES),
    *_FOREIGN_SUFFIXES,
)
_MAX_FILES_SHOWN = 3  # names of other files in a message
_BEGINNING = 1024  # bytes read from the start of a file
_CONTROLS = frozenset(range(32)) - frozenset(
    b"\t\n\f\r\x1b"
)  # never in text; logs may have escapes
_ARRAYS = {".npz": b"PK", ".npy": b"\x93NUMPY"}
_ONNX, _IR = b"\x08", b"<net "  # the field tag of `ir_version`; the root of an OpenVINO IR
_LATEST = 64  # upper bound of `ir_version`
_SIGNED, _SIGNATURE = ".sig", 128  # maximum size in bytes; the content is arbitrary

_UNKNOWN_DETAIL = "no record names it, so nothing says that it was ever judged: remove it"
_LINK_OUT_DETAIL = "a link out of the folder, behind which nothing was checked: remove it"
_LINK_PART_DETAIL = "a link to what is no folder with a record of its own: remove it"
_UNREAD_DETAIL = "the folder cannot be read, so nothing in it was checked"


@dataclass(frozen=True, kw_only=True)
class ClaimedFiles:
    """The files that records cover: by path, as `real_place` returns it, and by digest.

    `read` are resolved paths of files that a run only reads, such as a linked checkpoint. `apart`
    are folders with manifests of their own.
    """

    places: Collection[Path] = ()
    apart: Collection[Path] = ()
    read: Collection[Path] = ()
    digests: Collection[str] = field(default=(), repr=False)


NOTHING_CLAIMED = ClaimedFiles()


def real_place(path: Path) -> Path:
    """Resolve the folder of a file but not the file: a link is claimed by its own name."""
    return path.parent.resolve() / path.name


def folders_with(name: str, root: Path) -> tuple[Path, ...]:
    """Return all folders at or below `root` with a file of that name; do not follow links.

    Unreadable folders are skipped; `check_unclaimed` reports them.
    """
    return tuple(Path(place) for place, _, names in _walk_sorted(root, []) if name in names)


def manifest_folders(root: Path) -> tuple[Path, ...]:
    """Return the folders with a modelc manifest; web pages also have a `manifest.json`."""
    return tuple(
        one for one in folders_with(MANIFEST_FILE, root) if one == root or _has_record(one)
    )


def check_unclaimed(
    root: Path, claimed: ClaimedFiles = NOTHING_CLAIMED, *, signed: bool = False
) -> Iterator[ProvenanceCheck]:
    """Yield a failed check for each unclaimed model file, and report files that were not inspected.

    Args:
        root: the folder to search, without subfolders that have manifests of their own.
        claimed: the files that records cover.
        signed: whether a signature is required; models not named `model.*` fail only then.
    """
    unread: list[OSError] = []
    others: list[Path] = []
    for place, folders, names in _walk_sorted(root, unread):
        here = Path(place)
        yield from _check_links(here, folders, root)
        folders[:] = [one for one in folders if here / one not in claimed.apart]
        models = [here / one for one in folders if _has_model_suffix(one)]
        yield from (_check_renamed(one, root, signed) for one in models if not one.is_symlink())
        files = [one for one in (here / name for name in names) if not _is_claimed(one, claimed)]
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


def _is_claimed(path: Path, claimed: ClaimedFiles) -> bool:
    return real_place(path) in claimed.places or resolve_links(path) in claimed.read


def _check_uninspected(paths: Iterable[Path], root: Path) -> Iterator[ProvenanceCheck]:
    """Report, in one check, files that are neither models nor of the kinds that modelc writes."""
    usual = (*_NOT_MODEL_SUFFIXES, *_IGNORED_SUFFIXES)
    strange = [
        path.relative_to(root).as_posix()
        for path in paths
        if not _normalize_text(path.name).endswith(usual)
    ]
    if strange:
        shown = ", ".join(strange[:_MAX_FILES_SHOWN]) + (
            ", ..." if len(strange) > _MAX_FILES_SHOWN else ""
        )
        detail = f"{len(strange)} that no record names and that do not look like models: {shown}"
        yield ProvenanceCheck(
            of="other files", what="files", found=CheckOutcome.UNCHECKED, detail=detail
        )


def _walk_sorted(root: Path, unread: list[OSError]) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walk like `os.walk`, in a stable order."""
    for place, folders, names in os.walk(root, onerror=unread.append):
        folders.sort()
        yield place, folders, sorted(names)


def _has_record(folder: Path) -> bool:
    """Return whether the folder has a modelc manifest; a corrupt one counts."""
    path = folder / MANIFEST_FILE
    if folder.is_symlink() or path.is_dir() or not (path.is_symlink() or path.exists()):
        return False
    try:
        document = json.loads(path.read_bytes()) if path.is_file() else None
    except (OSError, ValueError, RecursionError):
        return True
    return not isinstance(document, dict) or not {"modelc", "artifacts"}.isdisjoint(document)


def _check_links(here: Path, folders: list[str], root: Path) -> Iterator[ProvenanceCheck]:
    """Check links to folders: each must point inside `root`, to a folder with a manifest."""
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
    """Normalize a name to how it looks: casefold, NFKC, no invisible characters."""
    seen = (one for one in unicodedata.normalize("NFKC", name) if unicodedata.category(one) != "Cf")
    return "".join(seen).casefold().strip(" .") if name.strip(" .") else name


def _is_manifest_name(path: Path) -> bool:
    """Return whether the file has an artifact's name, unless its content is a document."""
    plain = _normalize_text(path.name)
    if plain != MODEL_STEM and not plain.startswith(f"{MODEL_STEM}."):
        return False
    return (
        not _is_document(path)
        if plain.endswith(_NOT_MODEL_SUFFIXES) or plain == MODEL_STEM
        else True
    )


def _is_document(path: Path) -> bool:
    """Return whether the file starts as text other than OpenVINO IR, or as its array format."""
    start = _beginning(path)
    arrays = next((mark for end, mark in _ARRAYS.items() if path.name.endswith(end)), None)
    if arrays is not None:
        return start.startswith(arrays)
    return _CONTROLS.isdisjoint(start) and _IR not in start


def _beginning(path: Path) -> bytes:
    """Return the first bytes of a file; empty if it is not regular or not readable."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return b""
        with path.open("rb") as stream:
            return stream.read(_BEGINNING)
    except OSError:
        return b""


def _is_disguised(path: Path) -> bool:
    """Return whether the file starts like a model, regardless of its name."""
    start = _beginning(path)
    if path.name.endswith(_SIGNED) and len(start) <= _SIGNATURE:
        return False
    if start[:1] == _ONNX and start[1:2] and start[1] <= _LATEST:
        return True
    return _normalize_text(path.name).endswith(
        (*_NOT_MODEL_SUFFIXES, *_IGNORED_SUFFIXES)
    ) and not _is_document(path)


def _has_model_suffix(name: str) -> bool:
    return _normalize_text(name).endswith(_MODEL_SUFFIXES)


def _looks_like_a_model(path: Path) -> bool:
    """Return whether the name, the target of a link or the content suggests a model."""
    if path.name != path.name.casefold() and _normalize_text(path.name).endswith(_IGNORED_SUFFIXES):
        return True  # readers may accept `.XML` for `.xml`; modelc never writes such names
    try:
        if path.is_symlink() and (end := resolve_links(path)).name != path.name:
            return (
                _has_model_suffix(path.name) or _is_manifest_name(end) or _looks_like_a_model(end)
            )
        if _has_model_suffix(path.name) or _is_disguised(path):
            return True
        return stat.S_ISREG(path.stat().st_mode) and any(one.claims(path) for one in BUILT_IN)
    except OSError:  # a broken link or a cycle
        return _has_model_suffix(path.name)


def _is_known(path: Path, claimed: ClaimedFiles) -> bool:
    """Return whether a record has the file's digest, as that of a parent or checkpoint."""
    return bool(claimed.digests) and path.is_file() and sha256_of(path) in claimed.digests


def _make_failed_check(
    path: Path, root: Path, found: CheckOutcome, detail: str, *, what: str = "verdict"
) -> ProvenanceCheck:
    try:
        name = path.relative_to(root).as_posix()
    except ValueError:
        name = str(path)
    return ProvenanceCheck(of=name, what=what, found=found, detail=detail)
