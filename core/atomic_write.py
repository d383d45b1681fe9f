"""Writes files completely or not at all: a draft, a flush, then a rename."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DRAFT_SUFFIX = ".draft"  # the end of a name that nothing but a run in progress has
_FLUSH_UNSUPPORTED = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)  # file systems that flush no folder


def require_room(folder: Path, size: int) -> None:
    """See that a file of `size` bytes has room in a folder, before a writer that dies without it.

    Raises:
        OSError: it has not.
    """
    if shutil.disk_usage(folder).free < size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


def atomic_write(path: Path, data: bytes) -> Path:
    """Write a file, in place of one that may be there.

    Raises:
        OSError: it cannot be written; what was there is as it was.
    """
    with draft_file(path) as draft:
        draft.write_bytes(data)
    return path


@contextmanager
def draft_file(path: Path) -> Iterator[Path]:
    """A file beside `path` to write to, which becomes `path` where the block ends well.

    Its name cannot be told beforehand, and it is made here: no link can wait for it.
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
    """What was being written in a folder, each with the process that did it."""
    for path in folder.glob(f".*{DRAFT_SUFFIX}"):
        owner = path.name.removesuffix(DRAFT_SUFFIX).rpartition(".")[2]
        if owner.isdigit():
            yield path, int(owner)


def flush_file(path: Path) -> None:
    """Have the disk hold the file's bytes.

    Raises:
        OSError: the disk does not take them; a full one may say so only now.
    """
    with path.open("r+b") as stream:
        os.fsync(stream.fileno())


def flush_folder(path: Path) -> None:
    """Have the disk hold the names in a folder, where the system can be asked that."""
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
