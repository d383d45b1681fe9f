"""The files that modelc and the programs in C++ exchange: tensors, and records of fields."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..core.contract import Array

# By number, as `enum class DType` of programs/program.hpp has them.
DTYPES = (
    "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64",
    "complex64", "complex128", "uint16", "uint32", "uint64",
)  # fmt: skip
BFLOAT16 = "bfloat16"
SEPARATOR = "\x1f"  # between the parts of a name that is a path
_NUMBER = struct.Struct("<Q")
_MAX_RANK = 64
_UPPER_HALF = 16  # bits by which bfloat16 is shifted in a float32


@dataclass(frozen=True, kw_only=True)
class ProgramTensor:
    """A tensor with its name; `array` of dtype bfloat16 is float32."""

    name: str
    dtype: str
    array: Array


def encode_tensors(tensors: Sequence[ProgramTensor]) -> bytes:
    """Return a file of tensors; those of dtype bfloat16 are rounded to it."""
    parts = [_NUMBER.pack(len(tensors))]
    for tensor in tensors:
        name = tensor.name.encode()
        sizes = tensor.array.shape
        parts += [_NUMBER.pack(len(name)), name, bytes([DTYPES.index(tensor.dtype)])]
        parts += [_NUMBER.pack(value) for value in (len(sizes), *sizes)]
        parts.append(_to_bytes(tensor))
    return b"".join(parts)


def _to_bytes(tensor: ProgramTensor) -> bytes:
    import numpy as np

    if tensor.dtype == BFLOAT16:
        import ml_dtypes

        return bytes(tensor.array.astype(ml_dtypes.bfloat16).tobytes())
    return np.ascontiguousarray(tensor.array).tobytes()


def decode_tensors(content: bytes) -> tuple[ProgramTensor, ...]:
    """Return the tensors of a file; bfloat16 becomes float32.

    Raises:
        ValueError: it is not a file of tensors.
    """
    cursor = _ByteCursor(content)
    tensors = tuple(_read_tensor(cursor) for _ in range(cursor.count()))
    cursor.check_end()
    return tensors


def _read_tensor(cursor: _ByteCursor) -> ProgramTensor:
    import numpy as np

    name = cursor.text()
    code = cursor.take(1)[0]
    if code >= len(DTYPES):
        raise ValueError(f"a tensor has the unknown dtype {code}")
    rank = cursor.count()
    if rank > _MAX_RANK:
        raise ValueError(f"a tensor has {rank} dims")
    sizes = tuple(cursor.number() for _ in range(rank))
    dtype = DTYPES[code]
    plain = np.dtype("uint16" if dtype == BFLOAT16 else dtype)
    array = np.frombuffer(cursor.take(math.prod(sizes) * plain.itemsize), plain).reshape(sizes)
    if dtype == BFLOAT16:
        array = (array.astype(np.uint32) << _UPPER_HALF).view(np.float32)
    return ProgramTensor(name=name, dtype=dtype, array=array.copy())


def decode_records(content: bytes) -> tuple[tuple[str, ...], ...]:
    """Return the records of a file, each with its fields.

    Raises:
        ValueError: it is not a file of records.
    """
    cursor = _ByteCursor(content)
    records = tuple(
        tuple(cursor.text() for _ in range(cursor.count())) for _ in range(cursor.count())
    )
    cursor.check_end()
    return records


def encode_records(records: Iterable[Sequence[str]]) -> bytes:
    """Return a file of records, as the programs write it."""
    rows = [[field.encode() for field in record] for record in records]
    parts = [_NUMBER.pack(len(rows))]
    for row in rows:
        parts.append(_NUMBER.pack(len(row)))
        for field in row:
            parts += [_NUMBER.pack(len(field)), field]
    return b"".join(parts)


class _ByteCursor:
    """Reads bytes in order, and never more than there are."""

    def __init__(self, content: bytes) -> None:
        self._content, self._place = memoryview(content), 0

    def take(self, count: int) -> memoryview:
        if count > len(self._content) - self._place:
            raise ValueError(f"{count} bytes are promised, {len(self._content)} are there")
        self._place += count
        return self._content[self._place - count : self._place]

    def number(self) -> int:
        return int(_NUMBER.unpack(self.take(_NUMBER.size))[0])

    def count(self) -> int:
        """Read a number of things that take at least a byte each."""
        count = self.number()
        if count > len(self._content):
            raise ValueError(f"{count} entries are promised in {len(self._content)} bytes")
        return count

    def text(self) -> str:
        return bytes(self.take(self.count())).decode()

    def check_end(self) -> None:
        if left := len(self._content) - self._place:
            raise ValueError(f"{left} bytes are left over")
