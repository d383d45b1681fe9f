"""Weights in memory-mapped files: in memory while they are used, given back while they are not.

What is mapped is asked of the kernel, not remembered: whatever loaded it, and whatever wrote to it
since, counts. On systems that do not tell, nothing is mapped, and everything is copied as ever.
"""

from __future__ import annotations

import ctypes
import mmap
from array import array
from bisect import bisect_right
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import torch

_PAGEOUT = 21  # linux/mman.h: drop what can be read again, write back what cannot
_OF_FILE = 1 << 61  # /proc/self/pagemap: a page of a file, not of private memory
_PRESENT, _SWAPPED = 1 << 63, 1 << 62
_OWN_REFERENCES = 2  # to a storage that one tensor has: the tensor's, and that of who asks
_SELF = Path("/proc/self")


class FileMappings:
    """Where files are mapped privately into this process, as it is when this is made."""

    def __init__(self, maps: Path = _SELF / "maps") -> None:
        found = sorted(_private_files(maps))
        self._starts = [start for start, _ in found]
        self._ends = [end for _, end in found]

    def __bool__(self) -> bool:
        return bool(self._starts)

    def hold(self, tensor: torch.Tensor) -> bool:
        """Whether all of the tensor lies in one mapping, without gaps between its elements."""
        import torch

        if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
            return False
        if not tensor.is_contiguous() or not tensor.nbytes:
            return False
        start = tensor.data_ptr()
        index = bisect_right(self._starts, start) - 1
        return index >= 0 and start + tensor.nbytes <= self._ends[index]


class MappedTakeover:
    """Has tensors of a module lie where those of a mapped file do, instead of copying them."""

    def __init__(self) -> None:
        self._starts: list[int] = []  # of what was taken, in order
        self._ends: list[int] = []
        self.places = FileMappings()

    def take(self, own: torch.Tensor, given: torch.Tensor) -> bool:
        """Whether `own` now lies where `given` does; only where nobody can tell it from a copy.

        Its memory must have been its own alone: views of it, and tensors tied to it by memory,
        would stay behind. Tensors that are tied by being one object stay so. What the file ties
        and the module does not must not become one.
        """
        if not _is_same_layout(own, given):  # sparse tensors among them, whose elements lie nowhere
            return False
        start, end = given.data_ptr(), given.data_ptr() + given.nbytes
        fits = self.places.hold(given) and given.nbytes >= mmap.PAGESIZE
        place = bisect_right(self._starts, start)
        free = (not place or self._ends[place - 1] <= start) and (
            place == len(self._starts) or end <= self._starts[place]
        )
        if not fits or not free or not _is_sole_owner(own):
            return False
        own.data = given
        self._starts.insert(place, start)
        self._ends.insert(place, end)
        return True


def release_pages(module: torch.nn.Module) -> None:
    """Give the pages of mapped weights back to the system; they are read again when used.

    What was written to is kept. Where the system cannot, nothing happens. What the allocator keeps
    of memory that was freed goes back as well: it can be as much as the weights.
    """
    places = FileMappings()
    for tensor in (*module.parameters(), *module.buffers()) if places else ():
        if places.hold(tensor):
            _advise_kernel(tensor.data_ptr(), tensor.nbytes, _PAGEOUT)
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)


@contextmanager
def preserve_tensor(tensor: torch.Tensor, places: FileMappings) -> Iterator[None]:
    """Within, the tensor may be written to; afterwards it is as it was, bit for bit.

    Of a mapped tensor that is as its file has it, no copy is made: the pages that were written are
    dropped. The first and the last, which it may share with others, are kept aside.
    """
    import torch

    with torch.no_grad():
        if not (places.hold(tensor) and _is_clean(tensor)):
            before = tensor.detach().clone()
            try:
                yield
            finally:
                tensor.copy_(before)
            return
        flat = tensor.detach().view(-1).view(torch.uint8)
        first, last = _whole_pages(flat.data_ptr(), flat.numel())
        head, tail = flat[:first].clone(), flat[last:].clone()
        try:
            yield
        finally:
            if not _advise_kernel(flat.data_ptr(), flat.numel(), mmap.MADV_DONTNEED):
                raise RuntimeError("the kernel would not drop pages of a mapped file")
            flat[:first], flat[last:] = head, tail


def _is_same_layout(own: torch.Tensor, given: torch.Tensor) -> bool:
    """Whether both have the same form, so that a copy would have the same memory layout."""
    import torch

    return (
        type(given.data) is type(own.data)
        and given.layout is torch.strided
        and own.device == given.device
        and own.layout is given.layout
        and (own.dtype, own.shape, own.stride()) == (given.dtype, given.shape, given.stride())
        and given.data_ptr() % given.element_size() == 0
        and not given.is_conj()
        and not given.is_neg()
    )


def _is_sole_owner(tensor: torch.Tensor) -> bool:
    """Whether no other tensor shares the memory."""
    import torch

    storage = tensor.untyped_storage()
    if storage.nbytes() != tensor.nbytes:
        return False
    users: int = torch._C._storage_Use_Count(storage._cdata)
    return users == _OWN_REFERENCES


def _is_clean(tensor: torch.Tensor) -> bool:
    """Whether none of the tensor's whole pages was written to since its file was mapped."""
    start, end = _whole_pages(tensor.data_ptr(), tensor.nbytes)
    first, last = ((tensor.data_ptr() + offset) // mmap.PAGESIZE for offset in (start, end))
    entries = array("Q")
    try:
        with (_SELF / "pagemap").open("rb", buffering=0) as pages:
            pages.seek(first * entries.itemsize)
            entries.frombytes(pages.read((last - first) * entries.itemsize))
    except OSError:
        return False
    written = any(e & _SWAPPED or (e & _PRESENT and not e & _OF_FILE) for e in entries)
    return len(entries) == last - first and not written


def _private_files(maps: Path) -> Iterator[tuple[int, int]]:
    """Start and end of each part of memory that is a private mapping of a file."""
    try:
        lines: Iterable[str] = maps.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux, or hidden: then nothing is known to be mapped
        return
    for line in lines:
        where, rights, _, _, inode, *_ = line.split(maxsplit=5)
        if rights == "rw-p" and inode != "0":
            start, _, end = where.partition("-")
            yield int(start, 16), int(end, 16)


def _whole_pages(start: int, size: int) -> tuple[int, int]:
    """The whole pages within a span, as offsets in it; empty where it has none."""
    first = -start % mmap.PAGESIZE
    last = size - (start + size) % mmap.PAGESIZE
    return (first, last) if first < last else (size, size)


def _advise_kernel(start: int, size: int, advice: int) -> bool:
    """Tell the kernel of the whole pages within a span; whether it took it."""
    first, last = _whole_pages(start, size)
    if first == last:
        return True
    libc: Any = ctypes.CDLL(None, use_errno=True)
    told: int = libc.madvise(
        ctypes.c_void_p(start + first), ctypes.c_size_t(last - first), ctypes.c_int(advice)
    )
    return told == 0
