"""Reads `.npy`: one array."""

from __future__ import annotations

from pathlib import Path

from .content import Blob, Read, unreadable


def read(blob: Blob) -> Read:
    """The array, mapped from a file on disk: only the samples that are used are read from it.

    Raises:
        MisfitError: it is damaged, or holds objects.
    """
    from numpy.lib import format as npy

    try:
        if isinstance(blob, Path):
            return Read(value=npy.open_memmap(blob, mode="r"))
        return Read(value=npy.read_array(blob, allow_pickle=False))
    except (ValueError, OSError, EOFError, MemoryError, SyntaxError) as error:
        raise unreadable(error) from error
