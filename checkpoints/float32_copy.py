"""Half-precision safetensors as float32 files on disk, mapped in place of memory.

Eager runs in float32. Cast in memory, the weights of a model of 8 billion parameters take 32 GB
that the kernel can only write to swap. Pages of a file can be dropped and read again at any time.
"""

from __future__ import annotations

import json
import math
import mmap
import struct
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from ..core.large_arrays import find_room
from ..core.records import size_text

if TYPE_CHECKING:
    from ..core.contract import Array

LEAST_BYTES = 2**30  # of weights in float32: smaller models are cast in memory
_CHUNK = 1 << 24  # elements that are cast at once
_HALVES = {"BF16": "<u2", "F16": "<f2"}  # safetensors' dtypes, as numpy reads them
_Header = dict[str, Any]  # by tensor: dtype, shape, data_offsets


@contextmanager
def widen_folder(folder: Path, files: Sequence[Path]) -> Iterator[tuple[Path, str]]:
    """Yield a copy of the folder with its half-precision weights in float32, and where they are.

    The copy is deleted at the end of the context: what is mapped stays, and its room on the disk is
    free when the process ends. Yields the folder itself if its weights are small, have no half
    precision or are not safetensors, or if no disk has room.

    Args:
        folder: of the checkpoint.
        files: its weights.
    """
    headers = {file: _read_header(file) for file in files if file.suffix == ".safetensors"}
    halves = {file: header for file, header in headers.items() if _has_half(header)}
    needed = sum(_wide_size(entry) for header in halves.values() for entry in header.values())
    if needed <= LEAST_BYTES:
        yield folder, ""
        return
    place, size = find_room(needed), size_text(needed)
    if place is None:
        yield folder, f" in memory, since no disk has {size} free for temporary files"
        return
    with tempfile.TemporaryDirectory(prefix="modelc-float32-", dir=place) as name:
        for entry in folder.iterdir():
            if entry not in halves:
                (Path(name) / entry.name).symlink_to(entry.resolve())
        for file, header in halves.items():
            _write_wide(file, header, Path(name) / file.name)
        yield Path(name), f" in temporary files of {size} in {place}"


def count_weights(files: Iterable[Path]) -> int:
    """Return the number of elements in the safetensors among the files, by their headers."""
    headers = [_read_header(file) for file in files if file.suffix == ".safetensors"]
    return sum(math.prod(entry["shape"]) for header in headers for entry in header.values())


def _read_header(file: Path) -> _Header:
    """Return a safetensors file's header; empty if it is damaged, which its reader will report."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="np"), file.open("rb") as stream:  # checks the header
            (size,) = struct.unpack("<Q", stream.read(8))
            header: _Header = json.loads(stream.read(size))
    except (OSError, SafetensorError):
        return {}
    return {name: entry for name, entry in header.items() if name != "__metadata__"}


def _has_half(header: _Header) -> bool:
    return any(entry.get("dtype") in _HALVES for entry in header.values())


def _wide_size(entry: Mapping[str, Any]) -> int:
    begin, end = map(int, entry["data_offsets"])
    return (end - begin) * (2 if entry["dtype"] in _HALVES else 1)


def _write_wide(file: Path, header: _Header, copy: Path) -> None:
    """Write the tensors in the order of their data, a chunk at a time."""
    names = sorted(header, key=lambda name: header[name]["data_offsets"])
    wide: _Header = {"__metadata__": {"format": "pt"}}
    place = 0
    for name in names:
        entry, end = header[name], place + _wide_size(header[name])
        dtype = "F32" if entry["dtype"] in _HALVES else entry["dtype"]
        wide[name] = {"dtype": dtype, "shape": entry["shape"], "data_offsets": [place, end]}
        place = end
    text = json.dumps(wide).encode()
    text += b" " * (-len(text) % 8)
    with file.open("rb") as source, copy.open("xb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        (size,) = struct.unpack("<Q", source.read(8))
        with mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ) as data:
            for name in names:
                _write_tensor(data, 8 + size, header[name], stream)


def _write_tensor(data: mmap.mmap, start: int, entry: Mapping[str, Any], stream: BinaryIO) -> None:
    begin, end = (start + offset for offset in entry["data_offsets"])
    for first in range(begin, end, 2 * _CHUNK):
        last = min(first + 2 * _CHUNK, end)
        part = data[first:last]
        stream.write(_widen(part, entry["dtype"]).data if entry["dtype"] in _HALVES else part)
    with suppress(OSError, ValueError):
        data.madvise(mmap.MADV_DONTNEED)


def _widen(part: bytes, dtype: str) -> Array:
    import numpy as np

    found = np.frombuffer(part, _HALVES[dtype])
    if dtype == "F16":
        return found.astype("<f4")
    return found.astype("<u4") << 16  # bfloat16 is the upper half of a float32
