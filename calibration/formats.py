"""The kinds of files that hold samples, in one table: suffix to reader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from . import npy_files, npz_files, safetensors_files, torch_files
from .content import FileReader, SampleContent
from .image_files import IMAGE_SUFFIXES as IMAGES

ARRAY_READERS: Mapping[str, FileReader] = {
    ".npy": npy_files.read_npy_sample,
    ".npz": npz_files.read_npz_sample,
    ".pt": torch_files.read_torch_sample,
    ".pth": torch_files.read_torch_sample,
    ".safetensors": safetensors_files.read_safetensors_sample,
}
SHARD_SUFFIX = ".tar"
IMAGE_GROUP = "images"
SAMPLE_SUFFIXES = (*ARRAY_READERS, *IMAGES, SHARD_SUFFIX)


class SampleSource(Protocol):
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

    def read(self, place: int) -> SampleContent:
        """The arrays at the place.

        Raises:
            SampleError: it cannot be read, or is not of the inputs' names.
        """
        ...


def file_group(suffix: str) -> str:
    """What files of this suffix are counted with: `images`, or the suffix; empty for no samples."""
    lower = suffix.lower()
    if lower in IMAGES:
        return IMAGE_GROUP
    return lower if lower in SAMPLE_SUFFIXES else ""
