"""Check zip directories and array headers of untrusted files before reading anything else."""

from __future__ import annotations

import json
import math
import stat
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from .errors import first_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .contract import Array

MAX_RATIO = 100  # unpacked bytes per byte of the archive; code shrinks to a tenth
_SMALL_SIZE = 256 * 2**20  # bytes of all members that may be packed at any ratio: masks of zeros
_HEADER_SIZE = 30  # bytes before a member's name: the minimum between two members
_ENCRYPTED_FLAG = 0x1
_END, _END_SIZE = b"PK\x05\x06", 22
_LONGEST_END = _END_SIZE + 0xFFFF  # with the longest comment
_LOCATOR, _LOCATOR_SIZE = b"PK\x06\x07", 20  # of the end record with 64-bit numbers
_END_64, _END_64_SIZE = b"PK\x06\x06", 56
_WRONG_DIRECTORY = "its directory is not where its end says: something else stands before it"
_MAX_NAME_SHOWN = 60  # characters of a name


def is_path_inside(name: str) -> bool:
    """Whether a name that someone else wrote is a path below its folder, on every system.

    Windows has drives and backslashes, and ignores dots and spaces at the end of a part. Names that
    a system does not have, such as long ones, lead nowhere else: its own error names them.
    """
    parts = name.replace("\\", "/").split("/")
    rooted = parts[0] == "" or name[1:2] == ":"
    if rooted or "\0" in name or all(part in ("", ".") for part in parts):
        return False
    return all(part in ("", ".") or part.strip(" .") for part in parts)


@contextmanager
def open_stream(file: Path | IO[bytes]) -> Iterator[IO[bytes]]:
    """Yield a file opened, or an open seekable stream whose position is restored."""
    if isinstance(file, Path):
        with file.open("rb") as stream:
            yield stream
        return
    place = file.tell()
    try:
        yield file
    finally:
        file.seek(place)


def is_zip_archive(source: Path | IO[bytes]) -> bool:
    """Return whether it ends like a zip archive; restores the position of a stream."""
    try:
        if isinstance(source, Path):
            return zipfile.is_zipfile(source)
        with open_stream(source) as stream:
            return zipfile.is_zipfile(stream)
    except (zipfile.BadZipFile, OSError, ValueError):  # one of several parts, or damaged
        return True


def zip_members(path: Path) -> tuple[str, ...]:
    """Return the names in a zip archive; none if the file is not a readable archive."""
    if not path.is_file() or find_archive_fault(path):
        return ()
    with zipfile.ZipFile(path) as archive:
        return tuple(archive.namelist())


def find_archive_fault(source: Path | IO[bytes]) -> str:
    """Return why the archive must not be read; empty if its directory is sound.

    No member's name may leave the folder or repeat; no member may be a link, encrypted, overlap
    another or exceed the file; their total size is limited.

    Args:
        source: a file, or an open seekable stream, whose position is restored.
    """
    try:
        with open_stream(source) as stream:
            return _find_fault(stream)
    except Exception as error:  # noqa: BLE001 - zipfile raises anything at a damaged directory
        return (
            f"its directory cannot be read ({type(error).__name__}: {str(error)[:_MAX_NAME_SHOWN]})"
        )


def _find_fault(stream: IO[bytes]) -> str:
    size = stream.seek(0, 2)
    with zipfile.ZipFile(stream) as archive:
        members = archive.infolist()
        end = archive.start_dir
    return (
        _find_end_fault(stream, size)
        or next(filter(None, map(_find_member_fault, members)), "")
        or _find_name_fault(members)
        or _find_overlap(members, end)
        or _find_size_ratio_fault(members, size)
    )


def _find_end_fault(stream: IO[bytes], size: int) -> str:
    """Find an ambiguous end of the directory.

    torch reads the directory where the end record says that it begins, zipfile where it must begin
    to end there: the directory checked with one and loaded with the other must be the same.
    """
    first = max(0, size - _LONGEST_END)
    stream.seek(first)
    tail = stream.read()
    found = tail.rfind(_END)
    end = first + found
    length, begin = struct.unpack_from("<II", tail, found + 12)
    locator = _read_at(stream, end - _LOCATOR_SIZE, _LOCATOR_SIZE)
    if locator.startswith(_LOCATOR):
        end -= _LOCATOR_SIZE + _END_64_SIZE
        record = _read_at(stream, end, _END_64_SIZE)
        (stated,) = struct.unpack_from("<Q", locator, 8)
        if stated != end or not record.startswith(_END_64):
            return _WRONG_DIRECTORY
        length, begin = struct.unpack_from("<QQ", record, 40)
    return "" if begin + length == end else _WRONG_DIRECTORY


def _read_at(stream: IO[bytes], place: int, size: int) -> bytes:
    """Read bytes at a position; none before the beginning."""
    if place < 0:
        return b""
    stream.seek(place)
    return stream.read(size)


def _find_member_fault(member: zipfile.ZipInfo) -> str:
    title = repr(member.filename[:_MAX_NAME_SHOWN])
    if not is_path_inside(member.filename) or "\0" in member.orig_filename:
        return f"{title} has a name outside the folder"
    if stat.S_ISLNK(member.external_attr >> 16):
        return f"{title} is a link"
    if member.flag_bits & _ENCRYPTED_FLAG:
        return f"{title} is encrypted"
    return ""


def _find_name_fault(members: Sequence[zipfile.ZipInfo]) -> str:
    """Find a repeated name: readers differ in the member that they choose."""
    seen: set[str] = set()
    for member in members:
        if member.filename in seen:
            return f"{member.filename[:_MAX_NAME_SHOWN]!r} is in it twice"
        seen.add(member.filename)
    return ""


def _find_overlap(members: Sequence[zipfile.ZipInfo], end: int) -> str:
    """Find members that share bytes, with which a small file becomes a very large one."""
    placed = sorted(members, key=lambda member: member.header_offset)
    ends = [*(member.header_offset for member in placed[1:]), end]
    for member, after in zip(placed, ends, strict=False):
        title = repr(member.filename[:_MAX_NAME_SHOWN])
        if (
            member.header_offset < 0
            or member.header_offset + _HEADER_SIZE + member.compress_size > after
        ):
            return f"{title} reaches into what follows it"
        stored = member.compress_type == zipfile.ZIP_STORED
        if stored and member.file_size != member.compress_size:
            return f"{title} is of two sizes"
    return ""


def _find_size_ratio_fault(members: Sequence[zipfile.ZipInfo], size: int) -> str:
    total = sum(member.file_size for member in members)
    if total > max(_SMALL_SIZE, MAX_RATIO * size):
        return f"its {size} bytes would become {total}"
    return ""


HEADER_LIMIT = 100 * 2**20  # bytes of a header; safetensors' own limit
_LENGTH_BYTES = 8  # bytes before the header, which hold its length
_DTYPE_BITS = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I16": 2, "U16": 2, "F16": 2,
    "BF16": 2, "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8, "C64": 8,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SafetensorsEntry:
    """One tensor: its dtype as the file writes it, and its first and last byte after the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


class TruncatedFileError(ValueError):
    """The file does not end where its header says."""


def read_safetensors_header(path: Path) -> tuple[SafetensorsEntry, ...]:
    """Return the tensors of the file, in the order of their bytes.

    Raises:
        TruncatedFileError: the file's size differs from its header's.
        ValueError: there is no header, or a size in it is invalid.
        OSError: it cannot be read.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        header = file.read(length) if length <= min(size, HEADER_LIMIT) else b""
    try:
        held = json.loads(header)
        found = [
            _parse_entry(name, entry) for name, entry in held.items() if name != "__metadata__"
        ]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"no header of {length} bytes") from error
    entries = tuple(sorted(found, key=lambda one: (one.start, one.end)))
    expected = _LENGTH_BYTES + length + max((one.end for one in entries), default=0)
    if size != expected:
        raise TruncatedFileError(f"{size} bytes where its header promises {expected}")
    _check_offsets(entries)
    return entries


def _parse_entry(name: str, entry: dict[str, object]) -> SafetensorsEntry:
    """Return one tensor; raises KeyError, TypeError or ValueError if it is malformed."""
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or not isinstance(shape, list) or not isinstance(offsets, list):
        raise TypeError(name)
    start, end = offsets
    if any(type(one) is not int or one < 0 for one in (start, end, *shape)):
        raise ValueError(name)
    return SafetensorsEntry(name=name, dtype=dtype, shape=tuple(shape), start=start, end=end)


def _check_offsets(entries: tuple[SafetensorsEntry, ...]) -> None:
    """Check that every tensor has the bytes of its shape, without gaps or overlaps."""
    place = 0
    for one in entries:
        needed = math.prod(one.shape) * _DTYPE_BITS.get(one.dtype, 0)
        if one.dtype in _DTYPE_BITS and needed != one.end - one.start:
            raise ValueError(f"{one.name!r} needs {needed} bytes and has {one.end - one.start}")
        if one.start != place or one.end < one.start:
            raise ValueError(f"{one.name!r} begins at {one.start}, where {place} was expected")
        place = one.end


_NPY_SUFFIX = ".npy"


def read_npz(source: Path | IO[bytes]) -> dict[str, Array]:
    """Read every array of the archive.

    Raises:
        ValueError: it is damaged, contains objects, or declares sizes without the bytes.
    """
    fault = find_archive_fault(source)
    if fault:
        raise ValueError(fault)
    try:
        with zipfile.ZipFile(source) as archive:
            members = archive.infolist()
            return {m.filename.removesuffix(_NPY_SUFFIX): _read_member(archive, m) for m in members}
    except Exception as error:  # numpy's readers raise anything on garbage
        raise ValueError(f"{type(error).__name__}: {first_line(error)}") from error


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
    with archive.open(member) as stream:
        return read_array(stream, member.file_size)


def read_array(stream: IO[bytes], held: int) -> Array:
    """Read one array without objects from a seekable stream with so many bytes.

    Raises:
        Exception: anything that numpy raises on garbage; ValueError if bytes are missing.
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
