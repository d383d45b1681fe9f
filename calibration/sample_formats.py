"""Sample file formats and their readers; image preprocessing inferred from the signature."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ..core.errors import CheckpointError, UsageError
from ..core.preprocess import CHANNELS, LAYOUTS, Preprocess
from ..core.signature import FLOATS, Dim, InputSpec, Signature
from ..core.torch_file import read_torch_file
from ..core.untrusted_files import read_array, read_npz
from .calibration_report import FindingKind
from .sample_content import IMAGE_SUFFIXES as IMAGES
from .sample_content import (
    Blob,
    ImageReader,
    PromptForm,
    SampleContent,
    SampleError,
    complete_prompt,
    make_content,
    unreadable_error,
)


def _read_npy(blob: Blob) -> object:
    """Read one array; a file on disk is memory-mapped."""
    from numpy.lib import format as npy

    if isinstance(blob, Path):
        return npy.open_memmap(blob, mode="r")
    return read_array(blob, len(blob.getbuffer()))


def _read_safetensors(blob: Blob) -> object:
    """Read tensors by name; NumPy has no bfloat16, so torch reads it."""
    from safetensors.torch import load, load_file

    return load_file(blob) if isinstance(blob, Path) else load(blob.getvalue())


def _read_torch(blob: Blob) -> object:
    """Read what torch.save wrote: a tensor, or a tuple, list or dict of tensors."""
    return read_torch_file(blob, "it")


_ARRAY_READERS: Mapping[str, Callable[[Blob], object]] = {
    ".npy": _read_npy,
    ".npz": read_npz,
    ".pt": _read_torch,
    ".pth": _read_torch,
    ".safetensors": _read_safetensors,
}
SHARD_SUFFIX = ".tar"
IMAGE_GROUP = "images"
SAMPLE_SUFFIXES = (*_ARRAY_READERS, *IMAGES, SHARD_SUFFIX)


def read_arrays(blob: Blob, suffix: str) -> object:
    """Return the array in a file, or its arrays by name or position.

    Raises:
        SampleError: it is damaged, or holds more than arrays and plain values.
    """
    try:
        return _ARRAY_READERS[suffix.lower()](blob)
    except CheckpointError as error:
        raise SampleError(FindingKind.UNREADABLE, error.message.removeprefix("it ")) from error
    except Exception as error:  # the readers' edge: they raise anything at garbage
        raise unreadable_error(error) from error


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
    first, last = spec.dims[-3], spec.dims[-1]
    is_last = _is_count(last) and not _is_count(first)
    layout = (given.layout if given else "") or (_NHWC if is_last else _NCHW)
    count, sides = (first, spec.dims[-2:]) if layout == _NCHW else (last, spec.dims[-3:-1])
    named = _NAMES[count.opt] if _is_count(count) else "rgb"
    channels = (given.channels if given else "") or named
    if given is not None:
        return replace(given, layout=layout, channels=channels), ""
    resize = tuple(dim.opt for dim in sides) if all(dim.bounded for dim in sides) else ()
    scale = 1 / 255 if spec.dtype in FLOATS else 1.0
    steps = Preprocess(resize=resize, layout=layout, channels=channels, scale=scale)
    return steps, f"without --preprocess, images are converted to {spec} by {steps}"


def _is_count(dim: Dim) -> bool:
    return dim.name is None and dim.opt in CHANNELS.values()


class ImageReaders:
    """Reads files; the preprocessing of images is settled when the first one is read."""

    def __init__(self, given: Preprocess | None, signature: Signature) -> None:
        self._given = given
        self._specs = {spec.name: spec for spec in signature.inputs}
        self._loop = PromptForm.of(signature)
        self.settled: dict[str, Preprocess] = {}
        self.assumed: list[str] = []

    def read(self, blob: Blob, suffix: str, names: Sequence[str]) -> SampleContent:
        """Read a file of this suffix for these inputs.

        Raises:
            SampleError: it cannot be read, or its arrays do not match the inputs' names.
            UsageError: it is an image, and there are several inputs, or the input takes none.
        """
        if suffix.lower() not in IMAGES:
            return make_content(complete_prompt(read_arrays(blob, suffix), self._loop), names)
        if len(names) != 1:
            raise UsageError(
                f"an image is one array; the inputs are {', '.join(names)}",
                hint="save the samples as .npz, or as shards with members like 0001.NAME.jpg",
            )
        name = names[0]
        if name not in self.settled:
            self.settled[name], assumed = settle_preprocess(self._given, self._specs[name])
            self.assumed += [assumed] if assumed else []
        pixels, look = ImageReader(preprocess=self.settled[name])(blob)
        return make_content(pixels, names, look)

    @property
    def text(self) -> str:
        """The preprocessing as text; empty if there were no images."""
        if len(self.settled) == 1:
            return str(next(iter(self.settled.values())))
        return "; ".join(f"{name}: {steps}" for name, steps in self.settled.items())
