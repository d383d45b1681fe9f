"""Reads `.npz`: arrays by name."""

from __future__ import annotations

from ..core.npz_file import read_npz
from .content import Blob, ReadResult, unreadable_error

# Reads `.npz`: arrays by name.


def read_npz_sample(blob: Blob) -> ReadResult:
    """Every array of the archive.

    Raises:
        SampleError: it is damaged, or holds objects.
    """
    try:
        return ReadResult(value=read_npz(blob))
    except ValueError as error:
        raise unreadable_error(error) from error
