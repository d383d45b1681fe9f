"""The kinds of files that hold samples, in one table: suffix to reader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from . import npy_files, npz_files, safetensors_files, torch_files
from .content import Content, Reader
from .image_files import SUFFIXES as IMAGES

ARRAYS: Mapping[str, Reader] = {
    ".npy": npy_files.read,
    ".npz": npz_files.read,
    ".pt": torch_files.read,
    ".pth": torch_files.read,
    ".safetensors": safetensors_files.read,
}
SHARD = ".tar"
IMAGE = "images"
SUFFIXES = (*ARRAYS, *IMAGES, SHARD)


class Source(Protocol):
    """Samples in places: each a file, a group of an archive's members, or an item of a loader."""

    @property
    def kind(self) -> str:
        """folder, shards, loader or random."""
        ...

    @property
    def skipped(self) -> Mapping[str, int]:
        """What was passed over, and how often."""
        ...

    def __len__(self) -> int:
        """The number of places."""
        ...

    def name(self, place: int) -> str:
        """What a finding calls the place."""
        ...

    def read(self, place: int) -> Content:
        """The arrays at the place.

        Raises:
            MisfitError: it cannot be read, or is not of the inputs' names.
        """
        ...


def group_of(suffix: str) -> str:
    """What files of this suffix are counted with: `images`, or the suffix; empty for no samples."""
    lower = suffix.lower()
    if lower in IMAGES:
        return IMAGE
    return lower if lower in SUFFIXES else ""
