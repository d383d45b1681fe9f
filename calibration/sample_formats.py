"""Sample file formats and their readers; image preprocessing inferred from the signature."""

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
    """Return the array of a `.npy`; a file on disk is memory-mapped.

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
    """Return the arrays of a `.npz` by name.

    Raises:
        SampleError: it is damaged, or holds objects.
    """
    try:
        return ReadResult(value=read_npz(blob))
    except ValueError as error:
        raise unreadable_error(error) from error


# Reads `.safetensors`: tensors by name.


def read_safetensors_sample(blob: Blob) -> ReadResult:
    """Return the tensors of a `.safetensors` by name; NumPy has no bfloat16, so torch reads it.

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
    """Return what torch.save wrote: a tensor, or a tuple, list or dict of tensors.

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
    """Samples in places: files, groups of archive members, or items of a loader."""

    @property
    def kind(self) -> str:
        """One of folder, shards, loader, random."""
        ...

    @property
    def skip_counts(self) -> Mapping[str, int]:
        """Kinds of ignored files, with counts."""
        ...

    def __len__(self) -> int:
        """The number of places."""
        ...

    def name(self, place: int) -> str:
        """Return the name of a place in findings."""
        ...

    def read(self, place: int) -> SampleContent:
        """Return the arrays at a place.

        Raises:
            SampleError: it cannot be read, or its arrays do not match the inputs' names.
        """
        ...


def file_group(suffix: str) -> str:
    """Return the format group of a suffix: `images`, the suffix, or empty if unsupported."""
    lower = suffix.lower()
    if lower in IMAGES:
        return IMAGE_GROUP
    return lower if lower in SAMPLE_SUFFIXES else ""


# Preprocessing inferred from the signature.


_NCHW, _NHWC = LAYOUTS
_RANKS = (3, 4)  # without and with the batch axis
_NAMES = {1: "gray", 3: "rgb"}


def settle_preprocess(given: Preprocess | None, spec: InputSpec) -> tuple[Preprocess, str]:
    """Return complete preprocessing, and a line that says what was assumed (or an empty one).

    Missing layout and channels are inferred from the input's dims. If `given` is None, images are
    also resized to the input's size and, for float inputs, scaled by 1/255.

    Raises:
        UsageError: the input cannot take an image.
    """
    if len(spec.dims) not in _RANKS:
        raise UsageError(
            f"images cannot be fed to {spec}",
            hint="save the samples as .npz with one array per input",
        )
    layout = (given.layout if given else "") or _infer_layout(spec)
    channels = (given.channels if given else "") or _infer_channels(spec, layout)
    if given is not None:
        return replace(given, layout=layout, channels=channels), ""
    scale = 1 / 255 if spec.dtype in FLOATS else 1.0
    steps = Preprocess(
        resize=_infer_size(spec, layout), layout=layout, channels=channels, scale=scale
    )
    return steps, f"without --preprocess, images are converted to {spec} by {steps}"


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
            UsageError: there are several, or the input cannot take an image.
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
        """Return the reader for this suffix and these inputs."""
        lower = suffix.lower()
        return self.reader(names) if lower in IMAGES else ARRAY_READERS[lower]

    @property
    def text(self) -> str:
        """The preprocessing as text; empty if there were no images."""
        if len(self.settled) == 1:
            return str(next(iter(self.settled.values())))
        return "; ".join(f"{name}: {steps}" for name, steps in self.settled.items())
