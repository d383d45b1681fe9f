"""Reads `.npy`: one array."""

from __future__ import annotations

from pathlib import Path

from ..core.npz_file import read_array
from .content import Blob, ReadResult, unreadable_error

# Reads `.npy`: one array.


def read_npy_sample(blob: Blob) -> ReadResult:
    """The array, mapped from a file on disk: only the samples that are used are read from it.

    Raises:
        SampleError: it is damaged, or holds objects.
    """
    from numpy.lib import format as npy

    try:
        if isinstance(blob, Path):
            return ReadResult(value=npy.open_memmap(blob, mode="r"))
        return ReadResult(value=read_array(blob, len(blob.getbuffer())))
    except Exception as error:  # numpy's edge: its readers raise anything at garbage
        raise unreadable_error(error) from error
