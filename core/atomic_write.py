"""Write files completely or not at all: a draft, a flush, then a rename."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DRAFT_SUFFIX = ".draft"  # suffix of drafts, which only a running process has
_FLUSH_UNSUPPORTED = (
    errno.EINVAL,
    errno.ENOTSUP,
    errno.EBADF,
)  # file systems without it


def require_room(folder: Path, size: int) -> None:
    """Check the space for `size` bytes in a folder, before a writer that would crash without it.

    Raises:
        OSError: there is not enough.
    """
    if shutil.disk_usage(folder).free < size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


def atomic_write(path: Path, data: bytes) -> Path:
    """Write a file, replacing an existing one.

    Raises:
        OSError: it cannot be written; the existing file is unchanged.
    """
    with draft_file(path) as draft:
        draft.write_bytes(data)
    return path


@contextmanager
def draft_file(path: Path) -> Iterator[Path]:
    """Yield a file beside `path` to write to, which replaces `path` when the block succeeds.

    Its name is unpredictable and created here: no link can be planted for it.
    """
    token = secrets.token_hex(8)
    draft = path.with_name(f".{path.name}.{token}.{os.getpid()}{DRAFT_SUFFIX}")
    try:
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        yield draft
        flush_file(draft)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    flush_folder(path.parent)


def find_drafts(folder: Path) -> Iterator[tuple[Path, int]]:
    """Return the drafts in a folder, each with the process that wrote it."""
    for path in folder.glob(f".*{DRAFT_SUFFIX}"):
        owner = path.name.removesuffix(DRAFT_SUFFIX).rpartition(".")[2]
        if owner.isdigit():
            yield path, int(owner)


def flush_file(path: Path) -> None:
    """Flush the file's bytes to disk.

    Raises:
        OSError: the disk rejected them; a full disk may report it only now.
    """
    with path.open("r+b") as stream:
        os.fsync(stream.fileno())


def flush_folder(path: Path) -> None:
    """Flush the names in a folder to disk, if the system supports that."""
    if os.name != "posix":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _FLUSH_UNSUPPORTED:
            raise
    finally:
        os.close(handle)
