"""Reads `.npz`: arrays by name."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import IO

from .content import Blob, Read, unreadable

_BROKEN = (
    ValueError, OSError, EOFError, MemoryError, KeyError, AttributeError, TypeError,
    NotImplementedError, RuntimeError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


def read(blob: Blob) -> Read:
    """Every array of the archive.

    Raises:
        MisfitError: it is damaged, or holds objects.
    """
    import numpy as np

    try:
        with _stream(blob) as stream, np.load(stream, allow_pickle=False) as archive:
            return Read(value={name: archive[name] for name in archive.files})
    except _BROKEN as error:
        raise unreadable(error) from error


def _stream(blob: Blob) -> IO[bytes]:
    """Opened here: numpy leaves a file open that turns out to be damaged."""
    return blob.open("rb") if isinstance(blob, Path) else blob
