"""Reads `.npz`: arrays by name, each seen to have the bytes that its header states."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import IO, TYPE_CHECKING

from .errors import first_line
from .zip_archive import find_archive_fault

if TYPE_CHECKING:
    from .contract import Array

_NPY_SUFFIX = ".npy"


def read_npz(source: Path | IO[bytes]) -> dict[str, Array]:
    """Every array of the archive.

    Raises:
        ValueError: it is damaged, holds objects, or states sizes that it has no bytes for.
    """
    fault = find_archive_fault(source)
    if fault:
        raise ValueError(fault)
    try:
        with zipfile.ZipFile(source) as archive:
            members = archive.infolist()
            return {m.filename.removesuffix(_NPY_SUFFIX): _read_member(archive, m) for m in members}
    except Exception as error:  # numpy's edge: its readers raise anything at garbage
        raise ValueError(f"{type(error).__name__}: {first_line(error)}") from error


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
    with archive.open(member) as stream:
        return read_array(stream, member.file_size)


def read_array(stream: IO[bytes], held: int) -> Array:
    """One array, no objects in it, from a stream that can seek and holds so many bytes.

    Raises:
        Exception: whatever numpy raises at garbage; ValueError where the bytes are too few.
    """
    from numpy.lib import format as npy

    version = npy.read_magic(stream)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read(stream)
    needed = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or needed > held:
        raise ValueError(f"an array of {shape} needs {needed} bytes and has {held}")
    stream.seek(0)
    array: Array = npy.read_array(stream, allow_pickle=False)
    return array
