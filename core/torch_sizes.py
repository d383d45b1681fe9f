"""Compare the sizes that a file of torch.save declares with its bytes.

torch reads as many bytes of a storage, and allocates tensors as large, as the file's pickle says.
So this unpickles with inert objects first: it calls nothing of torch or of the file, and allocates
no tensor.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import zipfile
from typing import IO, TYPE_CHECKING

from .errors import first_line
from .untrusted_files import open_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

ZIP = b"PK\x03\x04"
PICKLES = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")  # protocols 2 to 5
_LEGACY_PICKLES = 5  # pickles of the format before zip: magic, version, machine, object, keys
_PUT_OPCODES = ("PUT", "BINPUT", "LONG_BINPUT")
_ELEMENT_SIZES = {
    **dict.fromkeys(("Double", "Long", "ComplexFloat", "float64", "int64", "uint64"), 8),
    **dict.fromkeys(("complex64", "double", "long"), 8),
    **dict.fromkeys(("ComplexDouble", "complex128"), 16),
    **dict.fromkeys(("Float", "Int", "QInt32", "float32", "int32", "uint32", "float", "int"), 4),
    **dict.fromkeys(("Half", "BFloat16", "Short", "float16", "bfloat16", "int16", "uint16"), 2),
}  # bytes of an element by the name of its type; 1 for any other
_ALLOCATING_NAMES = (
    "Tensor",
    "Storage",
    "bytearray",
)  # take as much memory as their size argument


class _SizeFaultError(Exception):
    """The fault as text; stays within this file."""


def find_size_fault(source: Path | IO[bytes]) -> str:
    """Return why torch must not read the file; empty if every declared size has its bytes.

    Args:
        source: a file, or an open seekable stream, whose position is restored.
    """
    try:
        with open_stream(source) as stream:
            _check_stream(stream)
    except _SizeFaultError as fault:
        return str(fault)
    except Exception as error:  # noqa: BLE001 - the unpickler raises anything at garbage
        return f"its pickle cannot be read ({type(error).__name__}: {first_line(error)})"
    return ""


def _check_stream(stream: IO[bytes]) -> None:
    start = stream.tell()
    head = stream.read(len(ZIP))
    stream.seek(start)
    if head == ZIP:
        _check_zip(stream)
    elif head.startswith(PICKLES):
        _check_legacy(stream, start)
    else:
        raise _SizeFaultError(f"torch.save did not write it: it begins with {head!r}")


def _check_zip(stream: IO[bytes]) -> None:
    with zipfile.ZipFile(stream) as archive:
        sizes = {entry.filename: entry.file_size for entry in archive.infolist()}
        names = [name for name in sizes if name.rpartition("/")[2] == "data.pkl"]
        for name in names:
            folder = name.removesuffix("data.pkl")
            own = {key.removeprefix(f"{folder}data/"): size for key, size in sizes.items()}
            data = archive.read(name)
            _CheckingUnpickler(
                io.BytesIO(_check_pickle_memory(data)), sum(sizes.values()), own
            ).load()


def _check_legacy(stream: IO[bytes], start: int) -> None:
    """Check the consecutive pickles, then the bytes of all storages, which stay unread."""
    size = stream.seek(0, 2) - start
    stream.seek(start)
    stated = 0
    for _ in range(_LEGACY_PICKLES):
        data = _read_pickle(stream)
        looking = _CheckingUnpickler(io.BytesIO(_check_pickle_memory(data)), size)
        looking.load()
        stated += looking.stated
    if stated > size:
        raise _SizeFaultError(f"it states {stated} bytes of weights and has {size}")


def _read_pickle(stream: IO[bytes]) -> bytes:
    """Return the bytes of the pickle that begins here, and move the stream past it."""
    place = stream.tell()
    for _ in pickletools.genops(stream):
        pass
    end = stream.tell()
    stream.seek(place)
    return stream.read(end - place)


def _check_pickle_memory(data: bytes) -> bytes:
    """Read a pickle, and check that it cannot make the unpickler allocate without having the bytes.

    Raises:
        ValueError: it is not a pickle, or is truncated.
    """
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name in _PUT_OPCODES and int(argument or 0) > len(data):
            raise _SizeFaultError(f"its pickle counts {argument} objects in {len(data)} bytes")
    return data


class _InertObject:
    """Stands for anything that a pickle creates; accepts everything, keeps nothing."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def __call__(self, *_: object, **__: object) -> _InertObject:
        return _InertObject()

    def __setitem__(self, _: object, __: object) -> None: ...

    def __setstate__(self, _: object) -> None: ...

    def append(self, _: object) -> None:
        """Ignore an item of a list."""

    def extend(self, _: object) -> None:
        """Ignore items of a list."""

    def add(self, _: object) -> None:
        """Ignore an item of a set."""


class _SizedStorage(_InertObject):
    """A dtype, a storage type (`size` bytes an element), or a storage that has `bytes`."""

    def __init__(self, size: int, held: int = -1) -> None:
        super().__init__()
        self.size = size
        self.held = held


class _CheckingUnpickler(pickle.Unpickler):
    """Unpickles with inert objects, and compares sizes.

    Args:
        stream: the pickle.
        most: bytes that anything in it may take.
        records: bytes of each storage by its key; None if they follow the pickle.
    """

    def __init__(
        self, stream: IO[bytes], most: int, records: Mapping[str, int] | None = None
    ) -> None:
        super().__init__(stream, encoding="bytes")
        self._most = most
        self._records = records
        self._keys: set[object] = set()
        self.stated = 0

    def find_class(self, module: str, name: str) -> object:
        """Return an inert object, never what the name says."""
        builds = self._rebuilds(name) if module == "torch._utils" else None
        if builds is not None:
            return builds
        last = name.rpartition(".")[2]
        if module.startswith("torch") and last.endswith("Storage"):
            return _SizedStorage(_ELEMENT_SIZES.get(last.removesuffix("Storage"), 1))
        if module == "torch" and last in _ELEMENT_SIZES:
            return _SizedStorage(_ELEMENT_SIZES[last])
        if last.endswith(_ALLOCATING_NAMES):
            return self._make_memory_check(last, _ELEMENT_SIZES.get(last.removesuffix("Tensor"), 1))
        return type(last, (_InertObject,), {})

    def persistent_load(self, said: object) -> object:
        """Return a storage by its type, key, device and number of elements."""
        if isinstance(said, tuple) and said[:1] == ("module",):  # a class, with its source
            return said[1] if len(said) > 1 else _InertObject
        if not isinstance(said, tuple) or len(said) < 5:  # noqa: PLR2004 - the least that torch takes
            return _InertObject()
        _, kind, key, _, count = said[:5]
        size = kind.size if isinstance(kind, _SizedStorage) else 1
        if not isinstance(count, int) or count < 0:
            raise _SizeFaultError(f"a storage of {count!r} elements")
        stated = count * size
        if self._records is None:
            self.stated += 0 if key in self._keys else stated
            self._keys.add(key)
            return _SizedStorage(size, stated)
        held = self._records.get(str(key), 0)
        if stated > held:
            raise _SizeFaultError(f"storage {str(key)[:40]!r} states {stated} bytes and has {held}")
        return _SizedStorage(size, held)

    def _rebuilds(self, name: str) -> Callable[..., object] | None:
        """Return the check of a torch function that creates a tensor on a storage."""
        typed = {"_rebuild_tensor": None, "_rebuild_tensor_v2": None, "_rebuild_qtensor": None,
                 "_rebuild_tensor_v3": 6}  # fmt: skip
        if name not in typed:
            return None
        at = typed[name]

        def check(
            storage: object, offset: object, sizes: object, strides: object, *more: object
        ) -> _InertObject:
            if isinstance(storage, _SizedStorage) and storage.held >= 0:
                kind = more[at - 4] if at is not None and len(more) > at - 4 else storage
                _check_view(storage, kind, (offset, sizes, strides))
            return _InertObject()

        return check

    def _make_memory_check(self, name: str, size: int) -> Callable[..., object]:
        def check(*arguments: object) -> _InertObject:
            counts = [one for one in arguments if isinstance(one, int)]
            if counts and abs(math.prod(counts)) * size > self._most:
                raise _SizeFaultError(f"a {name} of {counts} elements")
            return _InertObject()

        return check


def _check_view(storage: _SizedStorage, kind: object, view: tuple[object, object, object]) -> None:
    """Check that a tensor lies within its storage."""
    offset, sizes, strides = view
    shape, steps = _check_sizes(sizes), _check_sizes(strides)
    if not isinstance(offset, int) or offset < 0 or len(shape) != len(steps):
        raise _SizeFaultError(
            f"a tensor at {offset!r} of {len(shape)} sizes and {len(steps)} strides"
        )
    size = kind.size if isinstance(kind, _SizedStorage) else storage.size
    last = sum((one - 1) * step for one, step in zip(shape, steps, strict=True))
    needed = (offset + last + 1) * size if all(shape) else 0
    if needed > storage.held:
        shown = "x".join(map(str, shape[:8]))
        raise _SizeFaultError(
            f"a tensor of {shown[:80]} needs {needed} bytes and has {storage.held}"
        )


def _check_sizes(numbers: object) -> tuple[int, ...]:
    """Return sizes or strides after checking that none is negative."""
    found = tuple(numbers) if isinstance(numbers, (tuple, list)) else (numbers,)
    if not all(isinstance(one, int) and one >= 0 for one in found):
        raise _SizeFaultError(f"a tensor of the sizes or strides {str(found)[:80]}")
    return found
