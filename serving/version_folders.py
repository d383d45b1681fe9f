"""Write models into a repository: staged beside it, then moved to their places by rename."""

from __future__ import annotations

import glob
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from ..core.atomic_write import (
    atomic_write,
    find_drafts,
    flush_file,
    flush_folder,
    require_room,
)
from ..core.errors import ErrorCode, UsageError
from ..core.process import defer_signals, is_running
from ..core.records import FileRecord
from ..core.untrusted_files import is_path_inside
from ..pipeline.output_folder import make_folder

_STAGING = ".modelc-pack-"  # and the process that writes there
_LOCK = ".modelc-pack.lock"
_MAX_VERSIONS = 10_000  # folders that are looked at in one model
_BLOCK = 1 << 20
_DEVICE_NAMES = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\..*)?", re.IGNORECASE)
_ROOT_FILES = ("config.json", "inferenceservice.yaml", "mlmodel")  # of a repository, in lower case


def describe_name_fault(name: str) -> str:
    """Return why a folder cannot have this name on every system or beside a server's own files."""
    if _DEVICE_NAMES.fullmatch(name):
        return "is a device on Windows"
    if name.endswith("."):
        return "is not a valid folder name on every system"
    return "is a file of model repositories" if name.lower() in _ROOT_FILES else ""


@dataclass(frozen=True, kw_only=True)
class FilePiece:
    """Bytes of a file to write: these, or `length` bytes of another file."""

    content: bytes = b""
    source: Path | None = None
    offset: int = 0
    length: int = 0

    @property
    def size(self) -> int:
        """The number of bytes."""
        return len(self.content) if self.source is None else self.length

    def read_blocks(self) -> Iterator[bytes]:
        """Yield the bytes, a block at a time."""
        if self.source is None:
            yield self.content
            return
        with self.source.open("rb") as reader:
            reader.seek(self.offset)
            left = self.length
            while left and (block := reader.read(min(left, _BLOCK))):
                left -= len(block)
                yield block


@dataclass(frozen=True, kw_only=True)
class PlannedFile:
    """A file to write, relative to the folder of its model or version.

    It is a copy of `source`, or consists of `pieces`, or is `content`.
    """

    name: str
    source: Path | None = None
    record: FileRecord | None = None
    content: bytes = b""
    pieces: tuple[FilePiece, ...] = field(default=(), compare=False)

    def read_blocks(self) -> Iterator[bytes]:
        """Yield what is to be written, a block at a time."""
        whole = FilePiece(
            content=self.content,
            source=self.source,
            length=0 if self.source is None else self.source.stat().st_size,
        )
        for piece in self.pieces or (whole,):
            yield from piece.read_blocks()


@dataclass(frozen=True, kw_only=True)
class PlannedModel:
    """A model to write: `version_files` to its new version, `model_files` if the model is new."""

    name: str
    version: int
    is_new: bool
    version_files: tuple[PlannedFile, ...]
    model_files: tuple[PlannedFile, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RepositoryPlan:
    """All that one call writes: models first, then single files of the repository."""

    models: tuple[PlannedModel, ...] = ()
    root_files: Mapping[str, bytes] = field(default_factory=dict)


def list_versions(model: Path) -> tuple[int, ...]:
    """Return the version numbers of a model, rising: its folders with a plain number as name."""
    found: list[int] = []
    if model.is_dir():
        with os.scandir(model) as entries:
            for number, entry in enumerate(entries):
                plain = entry.name.isascii() and entry.name.isdecimal()
                if plain and not entry.name.startswith("0") and entry.is_dir():
                    found.append(int(entry.name[:18]))
                if number > _MAX_VERSIONS:
                    break
    return tuple(sorted(found))


def is_below(path: Path, root: Path) -> bool:
    """Whether a path leads to a place below the root once its links are followed."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root))


def check_place(repository: Path, name: str) -> Path:
    """Return the folder of a model in the repository.

    Raises:
        UsageError: it is a link or a file.
    """
    place = repository / name
    if place.is_symlink() or (place.exists() and not place.is_dir()):
        raise UsageError(
            f"{place} is {'a link' if place.is_symlink() else 'a file'}, not the folder of a model",
            hint="move it away, or give another --name",
            code=ErrorCode.UNSAFE_PATH,
        )
    return place


@contextmanager
def open_repository(repository: Path) -> Iterator[None]:
    """Make the folder, lock it for one call, and remove what a killed call left.

    Raises:
        UsageError: it cannot be made, or another process writes to it.
    """
    from filelock import FileLock, Timeout

    is_new = make_folder(repository)
    if (repository / _LOCK).is_symlink():
        raise UsageError(
            f"{repository / _LOCK} is a link", hint="remove it", code=ErrorCode.UNSAFE_PATH
        )
    lock = FileLock(repository / _LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise UsageError(
            f"another modelc is writing to {repository}",
            hint="wait for it, or use another folder",
            code=ErrorCode.FOLDER_BUSY,
        ) from error
    try:
        _sweep_staging(repository)
        yield
    finally:
        with suppress(OSError):
            (repository / _LOCK).unlink(missing_ok=True)
        lock.release()
        if is_new:
            with suppress(OSError):  # it holds something by now
                repository.rmdir()


def _find_staging_stem(repository: Path) -> Path:
    """Return the path, less process and token, to write to before files are moved.

    It is beside the repository: Triton takes every folder in it for a model, and does not start
    with one that a killed call left. If files cannot be renamed from there, it is below.
    """
    own = Path(os.path.realpath(repository))
    beside = own.parent
    renames = beside.stat().st_dev == own.stat().st_dev and os.access(beside, os.W_OK)
    return beside / f".{own.name}{_STAGING}" if renames else own / _STAGING


def _sweep_staging(repository: Path) -> None:
    stem = _find_staging_stem(repository)
    for place in (
        *repository.glob(f"{_STAGING}*"),
        *stem.parent.glob(f"{glob.escape(stem.name)}*"),
    ):
        owner = place.name.rpartition(_STAGING)[2].partition("-")[0]
        if owner.isdigit() and not is_running(int(owner)) and not place.is_symlink():
            shutil.rmtree(place, ignore_errors=True)
    folders = [one for one in repository.iterdir() if one.is_dir() and not one.is_symlink()]
    for draft, process in (one for folder in (repository, *folders) for one in find_drafts(folder)):
        if not is_running(process):
            draft.unlink(missing_ok=True)


def write_repository(repository: Path, plan: RepositoryPlan) -> None:
    """Write the plan: each model's folder appears complete, or nothing of this call does.

    Raises:
        OSError: the disk cannot be written; what was moved is removed again.
        UsageError: a file is no longer the recorded one.
    """
    sizes = (one.record.size for m in plan.models for one in m.version_files if one.record)
    require_room(repository, sum(sizes))
    stem = _find_staging_stem(repository)
    staging = stem.with_name(f"{stem.name}{os.getpid()}-{secrets.token_hex(4)}")
    staging.mkdir()
    moved: list[Path] = []
    try:
        for model in plan.models:
            _stage_model(staging, model)
        with defer_signals():
            for model in plan.models:
                moved += [_move_model(repository, staging, model)]
            flush_folder(repository)
            for name, content in plan.root_files.items():
                _check_root_file(repository, name)
                atomic_write(repository / name, content)
            moved.clear()  # all is there: an interrupt that comes now removes nothing
    except BaseException:
        for place in moved:
            shutil.rmtree(place, ignore_errors=True)
        raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _check_root_file(repository: Path, name: str) -> None:
    if (repository / name).is_symlink():
        raise UsageError(
            f"{repository / name} is a link", hint="move it away", code=ErrorCode.UNSAFE_PATH
        )


def _stage_model(staging: Path, model: PlannedModel) -> None:
    folder = staging / model.name
    version = folder / str(model.version)
    version.mkdir(parents=True)
    for place, files in ((version, model.version_files), (folder, model.model_files)):
        for file in files:
            if not is_path_inside(file.name):
                raise UsageError(
                    f"{file.name[:80]!r} is not a file name",
                    hint="export again",
                    code=ErrorCode.UNSAFE_PATH,
                )
            _write_file(place / file.name, file)
        flush_folder(place)


def _write_file(path: Path, file: PlannedFile) -> None:
    """Write or copy one file; the digest of a copy is that of the bytes that were written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with path.open("xb") as writer:
        for block in file.read_blocks():
            digest.update(block)
            writer.write(block)
    if file.record is not None and digest.hexdigest() != file.record.sha256:
        raise UsageError(
            f"{file.source or file.name} changed while it was copied",
            hint="pack it again when nothing writes to it",
            code=ErrorCode.FILE_CHANGED,
        )
    flush_file(path)


def _move_model(repository: Path, staging: Path, model: PlannedModel) -> Path:
    """Move a new model, or a new version of one, to its place; return it."""
    place = check_place(repository, model.name)
    source = staging / model.name
    if not model.is_new:
        place, source = place / str(model.version), source / str(model.version)
    if place.exists():
        raise UsageError(
            f"{place} appeared while its model was packed",
            hint="pack it again",
            code=ErrorCode.FOLDER_BUSY,
        )
    source.rename(place)
    flush_folder(place.parent)
    return place
