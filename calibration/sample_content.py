"""Read one file, archive member or loader item: arrays by input name, and images with Pillow."""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ..core.contract import Array
from ..core.errors import ErrorCode, first_line
from ..core.generation import DecoderLoop, find_cached_loop
from ..core.nested_values import name_parts
from ..core.preprocess import CHANNELS, Preprocess
from ..core.signature import InputSpec, Signature
from ..core.torch_tools import is_array, is_tensor, to_array
from .calibration_report import FindingKind

if TYPE_CHECKING:
    from PIL.Image import Image

_MATRIX = 2  # dims of token ids: rows, tokens
Blob: TypeAlias = Path | io.BytesIO  # a file, or a member of an archive in memory


class SampleError(Exception):
    """A sample cannot be fed; `kind` is the kind of finding, `reason` one line."""

    hint: str = ""
    code: ErrorCode | None = None

    def __init__(self, kind: FindingKind, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason


def unreadable_error(error: BaseException) -> SampleError:
    """Return the error for a file that a library cannot read."""
    reason = f"cannot be read: {type(error).__name__}: {first_line(error, limit=160)}"
    return SampleError(FindingKind.UNREADABLE, reason)


@dataclass(frozen=True, kw_only=True)
class ImageLook:
    """An image as stored: its mode, and the number of distinct values of its pixels."""

    mode: str
    levels: int


@dataclass(frozen=True, kw_only=True)
class SampleContent:
    """The stored arrays by input; `surplus` names arrays that no input takes."""

    parts: Mapping[str, Array]
    surplus: tuple[str, ...] = ()
    look: ImageLook | None = None


@dataclass(frozen=True, kw_only=True)
class PromptForm:
    """The loop of a decoder in one graph, and the inputs of its cache."""

    loop: DecoderLoop
    states: Mapping[str, InputSpec]

    @classmethod
    def of(cls, signature: Signature) -> PromptForm | None:
        """Return the form of a model's prompts; None if it is no such decoder."""
        loop = find_cached_loop(signature)
        specs = {spec.name: spec for spec in signature.inputs}
        if loop is None:
            return None
        return cls(loop=loop, states={one.past: specs[one.past] for one in loop.cache})


def complete_prompt(value: object, form: PromptForm | None) -> object:
    """Return a decoder's token ids, [rows, tokens], with all other inputs of a prompt.

    A mask or positions that are given stay. What holds no ids, or a part of a past, is unchanged.
    """
    import numpy as np

    if form is None:
        return value
    loop, given = form.loop, value if isinstance(value, Mapping) else {form.loop.ids: value}
    ids: Any = given.get(loop.ids)
    shape = tuple(ids.shape) if is_array(ids) or is_tensor(ids) else ()
    if len(shape) != _MATRIX:
        return value
    mask = np.asarray(given.get(loop.mask, np.ones(shape, np.int64)))
    made: dict[str, object] = {} if loop.mask is None else {loop.mask: mask}
    if loop.positions is not None and mask.shape == shape:
        made[loop.positions] = np.maximum(mask.cumsum(1) - 1, 0)
    if not form.states.keys() & given.keys():
        for name, spec in form.states.items():
            sizes = shape[0], spec.dims[1].opt, 0, spec.dims[3].opt
            made[name] = np.zeros(sizes, spec.dtype)
    return {**made, **given}


def make_content(
    value: object, names: Sequence[str], look: ImageLook | None = None
) -> SampleContent:
    """Assign the arrays in `value` to inputs, as `core.nested_values.name_parts` does.

    Raises:
        SampleError: an input is missing, or it is no array.
    """
    found = name_parts(value, names, is_array)
    if found is None:
        raise SampleError(FindingKind.NAMES, f"holds one array; the inputs are {', '.join(names)}")
    missing = [name for name in names if name not in found.parts]
    if missing:
        held = ", ".join([*found.parts, *found.surplus]) or "nothing"
        raise SampleError(FindingKind.NAMES, f"lacks {', '.join(missing)}; it holds {held}")
    arrays = {name: _content_array(name, found.parts[name]) for name in names}
    return SampleContent(parts=arrays, surplus=found.surplus, look=look)


def _content_array(name: str, value: object) -> Array:
    import numpy as np

    if is_tensor(value):
        try:
            return to_array(value)  # type: ignore[arg-type]  # just asked
        except (RuntimeError, NotImplementedError, TypeError) as error:  # meta, nested, quantized
            reason = f"{name} is a tensor that holds no plain array: {first_line(error, limit=80)}"
            raise SampleError(FindingKind.DTYPE, reason) from error
    if is_array(value):
        return np.asarray(value)
    raise SampleError(
        FindingKind.DTYPE, f"{name} is a {type(value).__name__}, not an array or a tensor"
    )


# Images.


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
    """Reads an image as float32 or uint8, (channels, height, width) or the configured layout."""

    preprocess: Preprocess

    def __call__(self, blob: Blob) -> tuple[Array, ImageLook]:
        """Decode and preprocess one image; also describe it as stored.

        Raises:
            SampleError: the file is not an image, is damaged, has too many pixels, or is smaller
                than the crop.
        """
        from PIL import Image

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of sizes, which `_check_pixels` limits
                with Image.open(blob) as image:
                    _check_pixels(image, Image.MAX_IMAGE_PIXELS)
                    image.load()
                    return self._pixels(image), _inspect_image(image)
        except Image.DecompressionBombError as error:
            raise SampleError(FindingKind.UNREADABLE, f"cannot be read: {error}") from error
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
            f"has {width}x{height} pixels, more than Pillow's limit of {limit:,} "
            "(possible decompression bomb)",
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
    """Convert to 8-bit gray or RGB; wider modes become floats in 0..255. Drop transparency."""
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
    """Return the target (width, height); the longer side is rounded down, as in torchvision."""
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
    """Return `(x * scale - mean) / std` in float32, or the uint8 pixels if that is the identity."""
    import numpy as np

    if steps.scale == 1 and not steps.mean and not steps.std:
        return pixels
    values = pixels.astype(np.float32) * np.float32(steps.scale)
    if steps.mean:
        values -= np.asarray(steps.mean, dtype=np.float32)
    if steps.std:
        values /= np.asarray(steps.std, dtype=np.float32)
    return values
