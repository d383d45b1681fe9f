"""Weights in memory-mapped files: in memory while they are used, released while they are not.

The kernel lists the mappings, so any loader and later writes are covered. On systems without such a
list, weights are copied.
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

_PAGEOUT = 21  # linux/mman.h: drop clean pages, write back dirty ones
_OF_FILE = 1 << 61  # /proc/self/pagemap: a page of a file, not private
_PRESENT, _SWAPPED = 1 << 63, 1 << 62
_OWN_REFERENCES = 2  # to the storage of one tensor: the tensor's, and the caller's
_SELF = Path("/proc/self")


class FileMappings:
    """The private file mappings of this process at the time of creation."""

    def __init__(self, maps: Path = _SELF / "maps") -> None:
        found = sorted(_private_files(maps))
        self._starts = [start for start, _ in found]
        self._ends = [end for _, end in found]

    def __bool__(self) -> bool:
        return bool(self._starts)

    def hold(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor is contiguous and within one mapping."""
        import torch

        if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
            return False
        if not tensor.is_contiguous() or not tensor.nbytes:
            return False
        start = tensor.data_ptr()
        index = bisect_right(self._starts, start) - 1
        return index >= 0 and start + tensor.nbytes <= self._ends[index]


class MappedTakeover:
    """Points tensors of a module to the memory of a mapped file, instead of copying."""

    def __init__(self) -> None:
        self._starts: list[int] = []  # of used memory, sorted
        self._ends: list[int] = []
        self.places = FileMappings()

    def take(self, own: torch.Tensor, given: torch.Tensor) -> bool:
        """Point `own` to the memory of `given` if that is equivalent to a copy; return whether.

        Its memory must not be shared: views, and tensors tied by memory, would keep the old one.
        Tensors tied as one object stay tied. Tensors tied only in the file must not become tied.
        """
        if not _is_same_layout(own, given):  # also excludes sparse tensors
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
    """Release the pages of mapped weights; they are read again when used.

    Modified pages are kept. Freed memory of the allocator, which can be as large as the weights, is
    returned to the system as well.
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
    """Restore the tensor bit for bit after the context.

    An unmodified mapped tensor is not copied: its written pages are dropped, except the first and
    the last, which it may share with other tensors.
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
    """Whether a copy would have the same memory layout."""
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
    """Whether none of the tensor's whole pages was written to since it was mapped."""
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
    """Yield start and end of each private file mapping."""
    try:
        lines: Iterable[str] = maps.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux, or hidden
        return
    for line in lines:
        where, rights, _, _, inode, *_ = line.split(maxsplit=5)
        if rights == "rw-p" and inode != "0":
            start, _, end = where.partition("-")
            yield int(start, 16), int(end, 16)


def _whole_pages(start: int, size: int) -> tuple[int, int]:
    """Return the whole pages within a span as offsets; empty if there are none."""
    first = -start % mmap.PAGESIZE
    last = size - (start + size) % mmap.PAGESIZE
    return (first, last) if first < last else (size, size)


def _advise_kernel(start: int, size: int, advice: int) -> bool:
    """Advise the kernel on the whole pages within a span; return whether it succeeded."""
    first, last = _whole_pages(start, size)
    if first == last:
        return True
    libc: Any = ctypes.CDLL(None, use_errno=True)
    status: int = libc.madvise(
        ctypes.c_void_p(start + first), ctypes.c_size_t(last - first), ctypes.c_int(advice)
    )
    return status == 0
