"""The kinds of files that hold samples, and who reads them; images as the signature suggests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from ..core.errors import CheckpointError, UsageError
from ..core.signature import FLOATS, Dim, InputSpec, Signature
from ..core.torch_file import read_torch_file
from ..core.untrusted_files import read_array, read_npz
from .calibration_report import FindingKind
from .preprocess import CHANNELS, LAYOUTS, Preprocess
from .sample_content import IMAGE_SUFFIXES as IMAGES
from .sample_content import (
    Blob,
    FileReader,
    ImageReader,
    ReadResult,
    SampleContent,
    SampleError,
    unreadable_error,
)

# Reads `.npy`: one array.


def read_npy_sample(blob: Blob) -> ReadResult:
    """The array, mapped from a file on disk: only the samples that are used are read from it.

    Raises:
        SampleError: it is damaged, or holds objects.
    """
    from numpy.lib import format as npy

    try:
        if isinstance(blob, Path):
            return ReadResult(value=npy.open_memmap(blob, mode="r"))
        return ReadResult(value=read_array(blob, len(blob.getbuffer())))
    except Exception as error:  # numpy's edge: its readers raise anything at garbage
        raise unreadable_error(error) from error


# Reads `.npz`: arrays by name.


def read_npz_sample(blob: Blob) -> ReadResult:
    """Every array of the archive.

    Raises:
        SampleError: it is damaged, or holds objects.
    """
    try:
        return ReadResult(value=read_npz(blob))
    except ValueError as error:
        raise unreadable_error(error) from error


# Reads `.safetensors`: tensors by name.


def read_safetensors_sample(blob: Blob) -> ReadResult:
    """Every tensor of the file; by torch, because numpy has no bfloat16.

    Raises:
        SampleError: it is damaged.
    """
    from safetensors.torch import load, load_file

    try:
        return ReadResult(
            value=load_file(blob) if isinstance(blob, Path) else load(blob.getvalue())
        )
    except Exception as error:  # the reader's edge: torch may not have a dtype
        raise unreadable_error(error) from error


# Reads `.pt` and `.pth`: what torch.save wrote, tensors and plain values only.


def read_torch_sample(blob: Blob) -> ReadResult:
    """The tensor, or the tuple, list or dict of tensors.

    Raises:
        SampleError: it is damaged, or holds more than tensors and plain values.
    """
    try:
        return ReadResult(value=read_torch_file(blob, "it"))
    except CheckpointError as error:
        raise SampleError(FindingKind.UNREADABLE, error.message.removeprefix("it ")) from error
    except OSError as error:  # a link to nowhere
        raise unreadable_error(error) from error


ARRAY_READERS: Mapping[str, FileReader] = {
    ".npy": read_npy_sample,
    ".npz": read_npz_sample,
    ".pt": read_torch_sample,
    ".pth": read_torch_sample,
    ".safetensors": read_safetensors_sample,
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


# What the signature says of an image input where the user does not: size, channels, layout.


_NCHW, _NHWC = LAYOUTS
_RANKS = (3, 4)  # without and with the batch axis
_NAMES = {1: "gray", 3: "rgb"}


def settle_preprocess(given: Preprocess | None, spec: InputSpec) -> tuple[Preprocess, str]:
    """The preprocessing with nothing left open, and in a line what was assumed; empty for nothing.

    Layout and channels come from the input's dims where they are not given. Without any
    preprocessing images are also resized to the input's size, and scaled by 1/255 for floats.

    Raises:
        UsageError: the input takes no image.
    """
    if len(spec.dims) not in _RANKS:
        raise UsageError(
            f"images cannot be fed to {spec}", hint="save the samples as .npz, one array an input"
        )
    layout = (given.layout if given else "") or _infer_layout(spec)
    channels = (given.channels if given else "") or _infer_channels(spec, layout)
    if given is not None:
        return replace(given, layout=layout, channels=channels), ""
    scale = 1 / 255 if spec.dtype in FLOATS else 1.0
    steps = Preprocess(
        resize=_infer_size(spec, layout), layout=layout, channels=channels, scale=scale
    )
    return steps, f"no --preprocess was given: images are brought to {spec} by {steps}"


def _is_count(dim: Dim) -> bool:
    return dim.name is None and dim.opt in CHANNELS.values()


def _infer_layout(spec: InputSpec) -> str:
    first, last = spec.dims[-3], spec.dims[-1]
    return _NHWC if _is_count(last) and not _is_count(first) else _NCHW


def _infer_channels(spec: InputSpec, layout: str) -> str:
    dim = spec.dims[-3 if layout == _NCHW else -1]
    return _NAMES[dim.opt] if _is_count(dim) else "rgb"


def _infer_size(spec: InputSpec, layout: str) -> tuple[int, ...]:
    """Height and width at their opt sizes; empty where one of them may be anything."""
    sides = spec.dims[-2:] if layout == _NCHW else spec.dims[-3:-1]
    return tuple(dim.opt for dim in sides) if all(dim.bounded for dim in sides) else ()


class ImageReaders:
    """Gives the reader of images for an input, settled the first time it is needed."""

    def __init__(self, given: Preprocess | None, signature: Signature) -> None:
        self._given = given
        self._specs = {spec.name: spec for spec in signature.inputs}
        self.settled: dict[str, Preprocess] = {}
        self.assumed: list[str] = []

    def reader(self, names: Sequence[str]) -> FileReader:
        """Who reads an image for the one input in `names`.

        Raises:
            UsageError: there are several, or the input takes no image.
        """
        if len(names) != 1:
            raise UsageError(
                f"an image is one array; the inputs are {', '.join(names)}",
                hint="save the samples as .npz, or as shards with members like 0001.NAME.jpg",
            )
        name = names[0]
        if name not in self.settled:
            self.settled[name], assumed = settle_preprocess(self._given, self._specs[name])
            self.assumed += [assumed] if assumed else []
        return ImageReader(preprocess=self.settled[name])

    def any_reader(self, suffix: str, names: Sequence[str]) -> FileReader:
        """Who reads a file or member of this suffix for the inputs `names`."""
        lower = suffix.lower()
        return self.reader(names) if lower in IMAGES else ARRAY_READERS[lower]

    @property
    def text(self) -> str:
        """The preprocessing for a record; empty where there were no images."""
        if len(self.settled) == 1:
            return str(next(iter(self.settled.values())))
        return "; ".join(f"{name}: {steps}" for name, steps in self.settled.items())
