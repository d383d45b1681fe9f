"""What keeps a store small and sound: by size, by age, by digest. All of it holds the lock."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...core.errors import UsageError, first_line
from .layout import StoreLayout, read_entry_or_none


def collect_garbage(layout: StoreLayout, *, limit: int, older_than: float | None = None) -> int:
    """Remove what was not used for `older_than` seconds, and the oldest beyond `limit` bytes.

    Returns:
        The bytes that were freed.

    Raises:
        UsageError: the folder cannot be written.
    """
    with _translate_os_errors(layout), layout.hold_lock():
        before = layout.size()
        now = time.time()
        for path, used in layout.entries():
            if older_than is not None and now - used > older_than:
                layout.remove(path)
        shrink_to(layout, limit)
        return before - layout.size()


def shrink_to(layout: StoreLayout, limit: int, newest: Path | None = None) -> None:
    """Keep the entries that were used last, as many as the limit holds, and `newest` among them.

    Files that entries share count once. Damaged entries and files of no entry go.
    """
    kept: dict[str, int] = {}
    total, full = 0, False
    for path, _ in sorted(layout.entries(), key=lambda one: one[0] != newest):
        entry = read_entry_or_none(path)
        files = () if entry is None else entry.files
        more = {file.sha256: file.size for file in files if file.sha256 not in kept}
        added = sum(more.values()) + path.stat().st_size
        full = full or total + added > limit
        if entry is None or (full and path != newest):
            layout.remove(path)
        else:
            kept.update(more)
            total += added
    for blob in layout.blobs():
        if blob.name not in kept:
            layout.remove(blob)
    layout.drop_empty()


def verify_store(layout: StoreLayout) -> tuple[str, ...]:
    """Digest every file again and remove what is wrong; what was wrong, a line each.

    Raises:
        UsageError: the folder cannot be written.
    """
    found: list[str] = []
    with _translate_os_errors(layout):
        found += [
            told for path in list(layout.blobs()) if (told := _remove_if_corrupt(layout, path))
        ]
    with _translate_os_errors(layout), layout.hold_lock():
        for path, _ in layout.entries():
            entry = read_entry_or_none(path)
            if entry is None:
                layout.remove(path)
                found.append(f"entry {path.stem[:12]}: damaged, or no entry of this modelc")
                continue
            gone = [file.name for file in entry.files if not layout.blob(file.sha256).is_file()]
            if gone:
                layout.remove(path)
                found.append(f"{entry.artifact} of {entry.model}: {', '.join(gone)} is not there")
    return tuple(found)


@contextmanager
def _translate_os_errors(layout: StoreLayout) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"the cache {layout.folder} cannot be written: {error.strerror or first_line(error)}",
            hint="give a folder of your own with --cache-dir",
        ) from error


def _remove_if_corrupt(layout: StoreLayout, blob: Path) -> str:
    """What is wrong with a file; it is then removed."""
    digest = hashlib.sha256()
    try:
        with blob.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    except FileNotFoundError:  # another run has removed it meanwhile
        return ""
    if digest.hexdigest() == blob.name:
        return ""
    layout.remove(blob)
    return f"file {blob.name[:12]}: its digest is another"
