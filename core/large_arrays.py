"""Large arrays in mapped files, whose pages the kernel can drop, and how much memory is free."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import RunnerError
from .records import size_text

if TYPE_CHECKING:
    from .contract import Array

_LEAST_BYTES = 1 << 24  # of an array; smaller ones stay in memory
_MARGIN = 2**30  # bytes to leave free on the disk
_GROUPS = "/sys/fs/cgroup"
_IN_MEMORY = ("tmpfs", "ramfs")


def copy_array(array: Array, least: int = _LEAST_BYTES) -> Array:
    """Return a contiguous copy of an array; from `least` bytes on, in a temporary file.

    If no disk has room, it is in memory.

    The outputs of all feeds are in memory together, and a row of logits alone may take megabytes.
    The file has no name: its room on the disk is free once the array is not used any more.
    """
    import numpy as np

    place = find_room(array.nbytes) if array.nbytes >= least else None
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


def check_memory(needed: int, what: str) -> None:
    """Check that there is memory for what would otherwise be ended by the system.

    Args:
        needed: bytes, by estimate.
        what: takes the memory, for the message.

    Raises:
        RunnerError: less is available.
    """
    free = available_memory()
    if free is not None and needed > free:
        raise RunnerError(
            f"{what} needs about {size_text(needed)} of memory, and {size_text(free)} is available",
            hint="end other processes, or use a machine with more memory",
        )


def available_memory() -> int | None:
    """Return the bytes of memory and swap that this process can still take; None if unknown.

    Pages of files count as available: the kernel can drop them.
    """
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        groups = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return None
    sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
    rooms = [sizes.get("MemAvailable", sizes["MemFree"]) + sizes.get("SwapFree", 0)]
    return min(rooms + [room for group in groups for room in _list_rooms(group)])


def _list_rooms(group: str) -> Iterator[int]:
    """Yield what the limits of a control group, a line of /proc/self/cgroup, leave of memory."""
    _, kinds, name = group.split(":", 2)
    if kinds and "memory" not in kinds.split(","):
        return
    root = Path(_GROUPS, "memory" if kinds else "")
    most, used = ("memory.limit_in_bytes", "total_rss") if kinds else ("memory.max", "anon")
    whole = Path(name.lstrip("/"))
    for part in (whole, *whole.parents):  # in a container, it may be the root that has the limit
        with suppress(OSError, ValueError, KeyError):  # it is not shown here, or has no limit
            limit = int((root / part / most).read_text(encoding="ascii"))
            lines = (root / part / "memory.stat").read_text(encoding="ascii").splitlines()
            yield max(limit - int(dict(line.split() for line in lines)[used]), 0)
