"""Large arrays in mapped temporary files: the kernel can drop their pages, and read them again."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .contract import Array

_LEAST_BYTES = 1 << 24  # of an array; smaller ones stay in memory
_MARGIN = 2**30  # bytes to leave free on the disk
_IN_MEMORY = ("tmpfs", "ramfs")


def copy_array(array: Array) -> Array:
    """Return a contiguous copy of an array; a large one in a temporary file, if a disk has room.

    The outputs of all feeds are in memory together, and a row of logits alone may take megabytes.
    The file has no name: its room on the disk is free once the array is not used any more.
    """
    import numpy as np

    place = find_room(array.nbytes) if array.nbytes >= _LEAST_BYTES else None
    if place is None or array.dtype.hasobject:
        return np.array(array)
    with tempfile.TemporaryFile(dir=place) as file:
        copy = np.memmap(file, array.dtype, "w+", shape=array.shape).view(np.ndarray)
    copy[...] = array
    return copy


def find_room(needed: int) -> Path | None:
    """Return a folder for temporary files on a disk with so many bytes free; None without one.

    `/tmp` may be in memory; `/var/tmp` is on a disk by convention.
    """
    for place in dict.fromkeys((Path(tempfile.gettempdir()), Path("/var/tmp"))):
        with suppress(OSError):
            if shutil.disk_usage(place).free > needed + _MARGIN and not _is_in_memory(place):
                return place
    return None


def _is_in_memory(place: Path) -> bool:
    """Whether the file system that holds the folder keeps its files in memory."""
    try:
        lines = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return False
    kinds = {Path(line.split()[1]): line.split()[2] for line in lines}
    whole = place.resolve()
    return next((kinds[one] for one in (whole, *whole.parents) if one in kinds), "") in _IN_MEMORY
