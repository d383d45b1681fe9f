"""Reads the header of a safetensors file, and compares every size in it with the file's."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

HEADER_LIMIT = 100 * 2**20  # bytes of a header; safetensors' own limit
_LENGTH_BYTES = 8  # bytes before the header, which say how long it is
_DTYPE_BITS = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I16": 2, "U16": 2, "F16": 2,
    "BF16": 2, "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8, "C64": 8,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SafetensorsEntry:
    """One tensor: its dtype as the file says it, and its first and last byte behind the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


class TruncatedFileError(ValueError):
    """The file does not end where its header says."""


def read_safetensors_header(path: Path) -> tuple[SafetensorsEntry, ...]:
    """The tensors of the file, in the order of their bytes.

    Raises:
        ShortError: the file is of another size than its header says.
        ValueError: there is no header, or a size in it is none.
        OSError: it cannot be read.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        header = file.read(length) if length <= min(size, HEADER_LIMIT) else b""
    try:
        held = json.loads(header)
        found = [_parse_entry(name, said) for name, said in held.items() if name != "__metadata__"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"no header of {length} bytes") from error
    entries = tuple(sorted(found, key=lambda one: (one.start, one.end)))
    expected = _LENGTH_BYTES + length + max((one.end for one in entries), default=0)
    if size != expected:
        raise TruncatedFileError(f"{size} bytes where its header promises {expected}")
    _check_offsets(entries)
    return entries


def _parse_entry(name: str, said: dict[str, object]) -> SafetensorsEntry:
    """One tensor as it is said; what is no tensor raises KeyError, TypeError or ValueError."""
    dtype, shape, offsets = said["dtype"], said["shape"], said["data_offsets"]
    if not isinstance(dtype, str) or not isinstance(shape, list) or not isinstance(offsets, list):
        raise TypeError(name)
    start, end = offsets
    if any(type(one) is not int or one < 0 for one in (start, end, *shape)):
        raise ValueError(name)
    return SafetensorsEntry(name=name, dtype=dtype, shape=tuple(shape), start=start, end=end)


def _check_offsets(entries: tuple[SafetensorsEntry, ...]) -> None:
    """That every tensor has the bytes of its shape, and no byte is of two tensors or of none."""
    place = 0
    for one in entries:
        needed = math.prod(one.shape) * _DTYPE_BITS.get(one.dtype, 0)
        if one.dtype in _DTYPE_BITS and needed != one.end - one.start:
            raise ValueError(f"{one.name!r} needs {needed} bytes and has {one.end - one.start}")
        if one.start != place or one.end < one.start:
            raise ValueError(f"{one.name!r} begins at {one.start}, where {place} was to follow")
        place = one.end
