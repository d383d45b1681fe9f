"""Writes the documents of a manifest beside it, and reads the runs that are compared."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from ..core.atomic_write import atomic_write
from ..core.errors import ErrorCode, UsageError, is_user_error, system_error_hint
from ..core.manifest import Manifest
from ..core.part_records import PARTS_FILE
from ..reports.comparison import Comparison, compare_manifests
from ..reports.report_formats import REPORT_FORMATS, ReportFormat
from .manifest_file import MANIFEST_FILE, read_manifest_file
from .parts.joined_manifest import load_results
from .replay_commands import list_commands

_HEAD_BYTES = 4096  # bytes that contain the mark of a document


class DocumentKind(Protocol):
    """A kind of document."""

    @property
    def mark(self) -> str:
        """Characters near the beginning of each document that only modelc writes."""
        ...


def write_reports(
    manifest: Manifest, folder: Path, formats: Iterable[ReportFormat]
) -> tuple[Path, ...]:
    """Write each document to its own file in the folder, atomically.

    Raises:
        UsageError: a file that modelc did not write has its name, or it cannot be written.
    """
    commands = tuple(list_commands(manifest))
    return tuple(
        write_document(one.render(manifest, commands), folder / one.file, one) for one in formats
    )


def render_report(manifest: Manifest, kind: ReportFormat) -> str:
    """The document of a manifest, with the commands that repeat its run."""
    return kind.render(manifest, tuple(list_commands(manifest)))


def write_document(text: str, path: Path, kind: DocumentKind | None = None) -> Path:
    """Write a document atomically.

    Raises:
        UsageError: `path` is a file of another kind, or cannot be written.
    """
    check_own(path, kind)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return atomic_write(path, text.encode())
    except OSError as error:
        raise _unwritable(f"cannot write {path}", error) from error


def check_own(path: Path, kind: DocumentKind | None) -> None:
    """Check that `path` does not exist, or is a document of this kind that modelc wrote.

    Raises:
        UsageError: it is another file.
    """
    if kind is not None and path.exists() and not _is_own(path, kind):
        raise UsageError(
            f"{path} exists and is not a report of modelc",
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
    """Remove the reports of earlier runs, so that none reports a success after a failed run.

    The documents that this run writes are removed before it, the others after it if it changed
    the manifest that they were made from.

    Raises:
        UsageError: a file that modelc did not write has the name of a document to write, or it
            cannot be removed.
    """
    for one in formats:
        path = folder / one.file
        check_own(path, one)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise _unwritable(f"cannot remove {path}", error) from error
    before = _read_raw_manifest(folder)
    try:
        yield
    finally:
        if _read_raw_manifest(folder) != before:
            for one in REPORT_FORMATS:
                if one not in formats and _is_own(folder / one.file, one):
                    (folder / one.file).unlink()


def _unwritable(what: str, error: OSError) -> UsageError:
    reason = error.strerror or type(error).__name__
    hint = system_error_hint(error) if is_user_error(error) else "use another folder"
    return UsageError(f"{what}: {reason}", hint=hint, code=ErrorCode.NOT_WRITABLE)


def _read_raw_manifest(folder: Path) -> bytes | None:
    files = (folder / MANIFEST_FILE, folder / PARTS_FILE)
    return next((path.read_bytes() for path in files if path.is_file()), None)


def load_run(path: Path) -> tuple[Manifest, Path]:
    """The manifest in a folder or in a file, as `report.json` is one, and the folder.

    Raises:
        UsageError: there is none.
    """
    if path.is_file():
        return read_manifest_file(path), path.parent
    folder = path.parent if path.name == MANIFEST_FILE and not path.is_dir() else path
    return load_results(folder), folder


def compare_runs(before: Path, after: Path, *, latency: bool = False) -> Comparison:
    """Two runs, the older first.

    Raises:
        UsageError: one of them has no manifest.
    """
    names = (str(before), str(after))
    return compare_manifests(load_run(before)[0], load_run(after)[0], names, latency=latency)
