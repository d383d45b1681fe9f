"""Reads `.npy`: one array."""

from __future__ import annotations

from pathlib import Path

from ..core.npz_file import read_array
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
        return Read(value=read_array(blob, len(blob.getbuffer())))
    except Exception as error:  # numpy's edge: its readers raise anything at garbage
        raise unreadable(error) from error
