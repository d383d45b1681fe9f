"""Copies of a file's bytes, shared on the disk where its file system can, and their digest."""

from __future__ import annotations

import os
from pathlib import Path
from shutil import copyfileobj
from typing import BinaryIO

from ...core.digest import sha256_of

_COPY_BLOCK = 1 << 24


def copy_hashed(source: BinaryIO, target: Path) -> str:
    """Copy an opened file; the SHA-256 of the copy, read back. It is flushed to the disk.

    Never a hard link: who writes to the one would change the other.

    Raises:
        OSError: it cannot be written.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as stream:
        if not _copy_in_kernel(source, stream):
            source.seek(0)
            stream.seek(0)
            stream.truncate()
            copyfileobj(source, stream, _COPY_BLOCK)
        stream.flush()
        os.fsync(stream.fileno())
    return sha256_of(target)


def _copy_in_kernel(source: BinaryIO, target: BinaryIO) -> bool:
    """Have the kernel copy, which shares blocks where it can; False where it does not do it."""
    if not hasattr(os, "copy_file_range"):
        return False
    left = os.fstat(source.fileno()).st_size
    try:
        while left > 0:
            done = os.copy_file_range(source.fileno(), target.fileno(), left)
            if done == 0:
                return False
            left -= done
    except OSError:  # between file systems, or one that does not offer it
        return False
    return True
