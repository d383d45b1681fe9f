"""Reads images by Pillow and brings them to what the model is fed."""

from __future__ import annotations

import struct
import warnings
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .content import Blob, ImageLook, ReadResult, SampleError, unreadable_error
from .findings import FindingKind
from .preprocess import CHANNELS, Preprocess

if TYPE_CHECKING:
    from PIL.Image import Image

    from ..core.contract import Array

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
