"""What one file, member or item holds: arrays by the names of the inputs; images by Pillow."""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from ..core.contract import Array
from ..core.errors import first_line
from ..core.nested_values import name_parts
from .calibration_report import FindingKind
from .preprocess import CHANNELS, Preprocess

if TYPE_CHECKING:
    from PIL.Image import Image

Blob: TypeAlias = Path | io.BytesIO  # a file, or a member of an archive in memory


class SampleError(Exception):
    """A sample that cannot be fed: which kind of finding it is, and why, in one line."""

    def __init__(self, kind: FindingKind, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason


def unreadable_error(error: BaseException) -> SampleError:
    """What a reader raises for a file that a library cannot read."""
    reason = f"cannot be read: {type(error).__name__}: {first_line(error, limit=160)}"
    return SampleError(FindingKind.UNREADABLE, reason)


@dataclass(frozen=True, kw_only=True)
class ImageLook:
    """An image file as it is stored: its mode, and how many distinct values its samples have."""

    mode: str
    levels: int


@dataclass(frozen=True, kw_only=True)
class ReadResult:
    """What a reader found in one file: an array, or arrays by name or position."""

    value: object
    look: ImageLook | None = None


@dataclass(frozen=True, kw_only=True)
class SampleContent:
    """The arrays for the inputs, as they were stored; `surplus` is what no input takes."""

    parts: Mapping[str, Array]
    surplus: tuple[str, ...] = ()
    look: ImageLook | None = None


FileReader: TypeAlias = Callable[[Blob], ReadResult]


def make_content(
    value: object, names: Sequence[str], look: ImageLook | None = None
) -> SampleContent:
    """Give the arrays in `value` the names of inputs, by the rule of `core.loading.named`.

    Raises:
        SampleError: an input is missing, or it is no array.
    """
    found = name_parts(value, names, is_array)
    if found is None:
        raise SampleError(FindingKind.NAMES, f"holds one array; the inputs are {', '.join(names)}")
    return _complete_content(found.parts, names, found.surplus, look)


def _complete_content(
    parts: Mapping[str, object],
    names: Sequence[str],
    surplus: tuple[str, ...],
    look: ImageLook | None,
) -> SampleContent:
    missing = [name for name in names if name not in parts]
    if missing:
        held = ", ".join([*parts, *surplus]) or "nothing"
        raise SampleError(FindingKind.NAMES, f"lacks {', '.join(missing)}; it holds {held}")
    arrays = {name: _content_array(name, parts[name]) for name in names}
    return SampleContent(parts=arrays, surplus=surplus, look=look)


def is_array(value: object) -> bool:
    """Whether it is an array of numpy's, a number of numpy's or a tensor of torch's."""
    import numpy as np

    return isinstance(value, (np.ndarray, np.generic)) or _is_tensor(value)


def _is_tensor(value: object) -> bool:
    """Asked without importing torch: who has a tensor has imported it."""
    return any(kind.__module__ == "torch" for kind in type(value).__mro__) and hasattr(
        value, "detach"
    )


def _content_array(name: str, value: object) -> Array:
    import numpy as np

    from ..core.torch_tools import to_array

    if _is_tensor(value):
        try:
            return to_array(value)  # type: ignore[arg-type]  # just asked
        except (RuntimeError, NotImplementedError, TypeError) as error:  # meta, nested, quantized
            told = f"{name} is a tensor that holds no plain array: {first_line(error, limit=80)}"
            raise SampleError(FindingKind.DTYPE, told) from error
    if isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value)
    raise SampleError(
        FindingKind.DTYPE, f"{name} is a {type(value).__name__}, not an array or a tensor"
    )


# Reads images by Pillow and brings them to what the model is fed.


IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
_WIDE_MODES = ("I;16", "I;16B", "I;16L", "I", "F")  # more than 8 bits a channel
_WIDE_TO_BYTE = 257.0  # 65535 / 255
_LOOKED_AT = 128  # pixels a side, picked without mixing: enough to tell a mask from a photo
_DECODE_ERRORS = (
    OSError, ValueError, SyntaxError, EOFError, TypeError, KeyError, IndexError, MemoryError,
    struct.error, zlib.error,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ImageReader:
    """Reads an image as float32 or uint8, of shape (channels, height, width) or as laid out."""

    preprocess: Preprocess

    def __call__(self, blob: Blob) -> ReadResult:
        """Decode, look at what is stored, and preprocess.

        Raises:
            SampleError: no image, damaged, of too many pixels, or smaller than the crop.
        """
        from PIL import Image

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of sizes: `_check_pixels` refuses where it warns
                with Image.open(blob) as image:
                    _check_pixels(image, Image.MAX_IMAGE_PIXELS)
                    image.load()
                    return ReadResult(value=self._pixels(image), look=_inspect_image(image))
        except Image.DecompressionBombError as error:
            raise SampleError(FindingKind.UNREADABLE, f"was refused: {error}") from error
        except _DECODE_ERRORS as error:
            raise unreadable_error(error) from error

    def _pixels(self, image: Image) -> Array:
        import numpy as np

        steps = self.preprocess
        count = CHANNELS[steps.channels or "rgb"]
        pixels = np.asarray(_crop_image(_resize_image(_to_plain(image, count), steps), steps.crop))
        if pixels.ndim == 2:  # noqa: PLR2004 - height and width: gray
            pixels = np.repeat(pixels[:, :, None], count, axis=2)
        if steps.channels == "bgr":
            pixels = pixels[:, :, ::-1]
        values = _scale_pixels(pixels, steps)
        return values if steps.layout == "NHWC" else np.moveaxis(values, 2, 0)


def _check_pixels(image: Image, limit: int | None) -> None:
    width, height = image.size
    if limit is not None and width * height > limit:
        raise SampleError(
            FindingKind.UNREADABLE,
            f"was refused: {width}x{height} pixels are more than {limit:,}, "
            "which is how a decompression bomb begins",
        )


def _inspect_image(image: Image) -> ImageLook:
    import numpy as np
    from PIL import Image as pillow  # noqa: N813 - the module; the class has its name

    width, height = image.size
    small = image.resize(
        (min(width, _LOOKED_AT), min(height, _LOOKED_AT)), pillow.Resampling.NEAREST
    )
    if image.mode in _WIDE_MODES:
        return ImageLook(mode=image.mode, levels=int(np.unique(np.asarray(small)).size))
    counts = small.histogram()
    channels = [counts[start : start + 256] for start in range(0, len(counts), 256)]
    return ImageLook(mode=image.mode, levels=max(sum(map(bool, channel)) for channel in channels))


def _to_plain(image: Image, count: int) -> Image:
    """8 bits a channel, gray or RGB; more bits become floats in 0..255. Transparency is dropped."""
    import numpy as np
    from PIL import Image as pillow  # noqa: N813 - the module; the class has its name

    if image.mode in _WIDE_MODES:
        return pillow.fromarray(np.asarray(image).astype(np.float32) / np.float32(_WIDE_TO_BYTE))
    return image.convert("L" if count == 1 else "RGB")


def _resize_image(image: Image, steps: Preprocess) -> Image:
    from PIL import Image as pillow  # noqa: N813 - the module; the class has its name

    size = _target_size(image.size, steps.resize)
    if size == image.size:
        return image
    return image.resize(size, pillow.Resampling[steps.interpolation.upper()])


def _target_size(size: tuple[int, int], resize: Sequence[int]) -> tuple[int, int]:
    """The (width, height) to resize to; the longer side is rounded down, as torchvision does."""
    width, height = size
    if not resize:
        return size
    if len(resize) > 1:
        return resize[1], resize[0]
    short = resize[0]
    if width <= height:
        return short, int(short * height / width)
    return int(short * width / height), short


def _crop_image(image: Image, crop: Sequence[int]) -> Image:
    if not crop:
        return image
    (width, height), (tall, wide) = image.size, crop
    if wide > width or tall > height:
        raise SampleError(
            FindingKind.SHAPE,
            f"is {height}x{width} pixels (height x width), smaller than the crop of {tall}x{wide}",
        )
    left, top = round((width - wide) / 2), round((height - tall) / 2)
    return image.crop((left, top, left + wide, top + tall))


def _scale_pixels(pixels: Array, steps: Preprocess) -> Array:
    """`(x * scale - mean) / std` in float32; uint8 as it is where that changes nothing."""
    import numpy as np

    if steps.scale == 1 and not steps.mean and not steps.std:
        return pixels
    values = pixels.astype(np.float32) * np.float32(steps.scale)
    if steps.mean:
        values -= np.asarray(steps.mean, dtype=np.float32)
    if steps.std:
        values /= np.asarray(steps.std, dtype=np.float32)
    return values
