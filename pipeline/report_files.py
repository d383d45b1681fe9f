"""Writes the documents of a manifest beside it, and reads the runs that are compared."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from ..core.atomic_write import atomic_write
from ..core.errors import ErrorCode, UsageError, is_user_error, system_error_hint
from ..core.manifest import Manifest
from ..reports.comparison import Comparison, compare_manifests
from ..reports.report_formats import REPORT_FORMATS, ReportFormat
from .manifest_file import MANIFEST_FILE, read_manifest_file
from .recorded_run import load_manifest
from .replay_commands import list_commands

_HEAD_BYTES = 4096  # bytes in which a document of ours says that it is one


class DocumentKind(Protocol):
    """A kind of document. `mark` stands near the beginning of each of ours."""

    @property
    def mark(self) -> str:
        """A few characters that nobody else's document has."""
        ...


def write_reports(
    manifest: Manifest, folder: Path, formats: Iterable[ReportFormat]
) -> tuple[Path, ...]:
    """Each document under its own name in the folder, whole or not at all.

    Raises:
        UsageError: a file of somebody else has such a name, or it cannot be written.
    """
    commands = tuple(list_commands(manifest))
    return tuple(
        write_document(one.render(manifest, commands), folder / one.file, one) for one in formats
    )


def render_report(manifest: Manifest, kind: ReportFormat) -> str:
    """The document of a manifest, with the commands that repeat its run."""
    return kind.render(manifest, tuple(list_commands(manifest)))


def write_document(text: str, path: Path, kind: DocumentKind | None = None) -> Path:
    """Write a document, whole or not at all.

    Raises:
        UsageError: `path` is a file that is no document of this kind, or cannot be written.
    """
    check_own(path, kind)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return atomic_write(path, text.encode())
    except OSError as error:
        raise _unwritable(f"{path} cannot be written", error) from error


def check_own(path: Path, kind: DocumentKind | None) -> None:
    """That nothing is at `path`, or a document of this kind that modelc wrote.

    Raises:
        UsageError: something else is.
    """
    if kind is None or not path.exists() or _is_own(path, kind):
        return
    raise UsageError(
        f"{path} is there and no report of modelc",
        hint=f"move it away: modelc writes its own {path.name} there",
        code=ErrorCode.FILE_EXISTS,
    )


def _is_own(path: Path, kind: DocumentKind) -> bool:
    """Whether a document of this kind that modelc wrote is there."""
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        return kind.mark.encode() in stream.read(_HEAD_BYTES)


@contextmanager
def remove_stale_reports(folder: Path, formats: Collection[ReportFormat]) -> Iterator[None]:
    """While a run goes on: no success that an earlier run reported outlives it.

    The documents that this run writes are removed first, as it may break. The others are
    removed once it has changed the record that they were made from.

    Raises:
        UsageError: a file of somebody else has the name of a document to write, or it cannot be
            removed.
    """
    for one in formats:
        _remove_document(folder / one.file, one)
    before = _read_raw_manifest(folder)
    try:
        yield
    finally:
        if _read_raw_manifest(folder) != before:
            for one in REPORT_FORMATS:
                if one not in formats and _is_own(folder / one.file, one):
                    (folder / one.file).unlink()


def _remove_document(path: Path, kind: DocumentKind) -> None:
    check_own(path, kind)
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise _unwritable(f"{path} cannot be removed", error) from error


def _unwritable(what: str, error: OSError) -> UsageError:
    """Not every command that writes reports has an `-o`: the hint works in all of them."""
    reason = error.strerror or type(error).__name__
    hint = (
        system_error_hint(error) if is_user_error(error) else "make the folder anew, or use another"
    )
    return UsageError(f"{what}: {reason}", hint=hint)


def _read_raw_manifest(folder: Path) -> bytes | None:
    path = folder / MANIFEST_FILE
    return path.read_bytes() if path.is_file() else None


def load_run(path: Path) -> tuple[Manifest, Path]:
    """The manifest in a folder or in a file, as `report.json` is one, and the folder.

    Raises:
        UsageError: there is none.
    """
    if path.is_file():
        return read_manifest_file(path), path.parent
    folder = path.parent if path.name == MANIFEST_FILE and not path.is_dir() else path
    return load_manifest(folder), folder


def compare_runs(before: Path, after: Path, *, latency: bool = False) -> Comparison:
    """Two runs, the older first.

    Raises:
        UsageError: one of them has no manifest.
    """
    names = (str(before), str(after))
    return compare_manifests(load_run(before)[0], load_run(after)[0], names, latency=latency)
