"""What the signature says of an image input where the user does not: size, channels, layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..core.errors import UsageError
from ..core.signature import FLOATS, Dim, InputSpec, Signature
from .content import FileReader
from .formats import ARRAY_READERS
from .image_files import IMAGE_SUFFIXES as IMAGES
from .image_files import ImageReader
from .preprocess import CHANNELS, LAYOUTS, Preprocess

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
