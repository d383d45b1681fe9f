"""Faults in arrays and at sizes, which planted faults of all formats share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TypeAlias

from ..core.contract import Array
from ..core.runtime_contract import PlantedFault
from ..core.signature import Signature

FACTOR = 1.5  # of a scalar, an attribute, and an output at one size
FACTOR_TEXT = f"times {FACTOR:g}"
SMALL_NUMBER = 1e-3  # a constant that is added and not larger is taken for an epsilon
EPSILON_FACTOR = 1000.0
FaultChange: TypeAlias = tuple[str, str]  # the place, and what was done there
_MAX_TRIES = 20  # draws of an element or of two rows
_QUARTER = 0x40  # of the 256 steps of 8 bits


@dataclass(frozen=True, kw_only=True)
class SizeFault:
    """An input's axis and the size there at which, or from which on, an output is to be wrong.

    `sizes` are the sizes of the free dims that give that size.
    """

    input: str
    axis: int
    size: int
    dim: str
    sizes: Mapping[str, int]
    onward: bool

    @property
    def where(self) -> str:
        """The sizes at which it acts, in words."""
        return f"{self.dim} is {self.size}{' or more' if self.onward else ''}"


def fault_record(copy: Path, done: FaultChange, size: SizeFault | None = None) -> PlantedFault:
    """The record of a copy with a fault in it."""
    place, change = done
    if size is None:
        return PlantedFault(path=copy, place=place, change=change)
    return PlantedFault(path=copy, place=place, change=change, sizes=size.sizes, where=size.where)


def draw_size(signature: Signature, random: Random) -> SizeFault | None:
    """Some size of some dynamic dim, alone or with all above it; None where no dim is dynamic."""
    places = [
        (spec.name, axis, dim)
        for spec in signature.inputs
        for axis, dim in enumerate(spec.dims)
        if dim.dynamic and dim.free.low < dim.free.high
    ]
    if not places:
        return None
    name, axis, dim = random.choice(places)
    sizes = {dim.free.name or "": random.randint(dim.free.low, dim.free.high)}
    return SizeFault(
        input=name,
        axis=axis,
        size=dim.size(sizes),
        dim=dim.name or "",
        sizes=sizes,
        onward=random.random() < 1 / 2,
    )


def alter_element(array: Array, random: Random) -> tuple[Array, str] | None:
    """A copy with one element moved by the array's RMS, of 8-bit integers by a quarter of 256.

    None where nothing would change: an array without elements, of zeros, or of another dtype.
    """
    import numpy as np

    if not array.size:
        return None
    flat = array.copy().reshape(-1)
    at = random.randrange(flat.size)
    index = ", ".join(str(int(i)) for i in np.unravel_index(at, array.shape))
    if array.dtype in (np.int8, np.uint8):
        flat[at] ^= flat.dtype.type(_QUARTER)
        return flat.reshape(array.shape), f"element [{index}] off by {_QUARTER}"
    if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
        return None
    step = float(np.sqrt(np.mean(np.square(array.astype(np.float64)))))
    if not np.isfinite(step) or step == 0.0:
        return None
    flat[at] += np.asarray(step, flat.dtype)
    return flat.reshape(array.shape), f"element [{index}] off by {step:.3g}"


def swap_rows(array: Array, random: Random) -> tuple[Array, str] | None:
    """A copy in which two different entries of the first axis have changed places."""
    import numpy as np

    if array.ndim == 0 or len(array) < 2:  # noqa: PLR2004 - two to swap
        return None
    for _ in range(_MAX_TRIES):
        one, other = random.sample(range(len(array)), 2)
        if not np.array_equal(array[one], array[other]):
            copy = array.copy()
            copy[[one, other]] = array[[other, one]]
            return copy, f"rows {one} and {other} in each other's place"
    return None


def link_or_copy(source: Path, folder: Path) -> None:
    """Have a file in another folder as well, without a second copy where the disk allows it."""
    import os
    import shutil

    try:
        os.link(source, folder / source.name)
    except OSError:
        shutil.copyfile(source, folder / source.name)
