"""Reads `.npz`: arrays by name."""

from __future__ import annotations

from ..core.npz_file import read_npz
from .content import Blob, Read, unreadable


def read(blob: Blob) -> Read:
    """Every array of the archive.

    Raises:
        MisfitError: it is damaged, or holds objects.
    """
    try:
        return Read(value=read_npz(blob))
    except ValueError as error:
        raise unreadable(error) from error
