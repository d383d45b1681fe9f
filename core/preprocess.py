"""Image preprocessing: resize, crop, channels, scale, mean and std, parsed from text.

A preset's name, then `key=value` pairs that change it: `imagenet`, `imagenet,resize=288,crop=288`.
Without a name the pairs change `raw`, which does nothing: `scale=1/255,mean=0.5,std=0.5`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace

from .errors import UsageError, unknown_name_error

LAYOUTS = ("NCHW", "NHWC")
CHANNELS = {"rgb": 3, "bgr": 3, "gray": 1}
INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos", "box")
_SIDES = 2
_LARGEST = 1 << 15  # pixels of a side


@dataclass(frozen=True, kw_only=True)
class Preprocess:
    """The steps in their order: resize, center crop, channels, `(x * scale - mean) / std`, layout.

    `resize` is `(shorter side,)` or `(height, width)`, `crop` is `(height, width)`, in pixels;
    empty skips the step. `mean` and `std` are one value, or one per channel in the order of
    `channels`. An empty `layout` or `channels` is inferred from the signature.
    """

    resize: tuple[int, ...] = ()
    crop: tuple[int, ...] = ()
    layout: str = ""
    channels: str = ""
    scale: float = 1.0
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    interpolation: str = "bilinear"

    def __post_init__(self) -> None:
        for key, value, known in (
            ("layout", self.layout, LAYOUTS),
            ("channels", self.channels, tuple(CHANNELS)),
            ("interpolation", self.interpolation, INTERPOLATIONS),
        ):
            if value not in ("", *known) or (key == "interpolation" and not value):
                raise unknown_name_error(f"preprocessing {key}", value, known)
        if any(size > _LARGEST for size in (*self.resize, *self.crop)):
            raise _preprocess_error(
                f"a size above {_LARGEST}", "give sizes in pixels, as in resize=256"
            )
        if any(size < 1 for size in (*self.resize, *self.crop)):
            raise _preprocess_error(
                "a size below 1", "give sizes in pixels, as in resize=256,crop=224"
            )
        if not math.isfinite(self.scale) or self.scale == 0:
            raise _preprocess_error(f"scale={self.scale:g}", "for example scale=1/255")
        if 0 in self.std or not all(map(math.isfinite, (*self.mean, *self.std))):
            raise _preprocess_error(
                "a std of 0, or a mean or std that is not finite", "give finite numbers"
            )
        self._check_lengths()

    def _check_lengths(self) -> None:
        count = CHANNELS.get(self.channels)
        for key, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in ((0, 1, 3) if count is None else (0, 1, count)):
                raise _preprocess_error(
                    f"{key} with {len(values)} values", f"give one {key}, or one for each channel"
                )

    @classmethod
    def parse(cls, text: str) -> Preprocess:
        """Read a preset's name, `key=value,...`, or both.

        Raises:
            UsageError: the preset or key is unknown, or a value is invalid.
        """
        first, *rest = [part.strip() for part in text.split(",")]
        if "=" in first:
            first, rest = "raw", [first, *rest]
        if first not in PRESETS:
            raise unknown_name_error("preprocessing preset", first, list(PRESETS))
        return _apply_pairs(PRESETS[first], _parse_pairs(rest, text))

    @property
    def image_size(self) -> tuple[int, ...]:
        """The (height, width) that all images have afterwards; empty if they differ."""
        return self.crop or (self.resize if len(self.resize) == _SIDES else ())

    @property
    def value_range(self) -> tuple[float, float]:
        """The least and the greatest value that pixels of 0 to 255 become."""
        ends = [
            (pixel * self.scale - mean) / std
            for pixel in (0, 255)
            for mean, std in _per_channel(self.mean or (0.0,), self.std or (1.0,))
        ]
        return min(ends), max(ends)

    def __str__(self) -> str:
        """Return text that `parse` reads back; `raw` for no steps."""
        parts = [
            f"{field.name}={_WRITERS.get(field.name, str)(getattr(self, field.name))}"
            for field in fields(self)
            if getattr(self, field.name) != field.default
        ]
        return ",".join(parts) or "raw"


_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
PRESETS: dict[str, Preprocess] = {
    # torchvision's ImageClassification preset, which most ImageNet checkpoints were judged with
    "imagenet": Preprocess(
        resize=(256,), crop=(224, 224), scale=1 / 255, mean=_IMAGENET_MEAN, std=_IMAGENET_STD
    ),
    # as Inception, ViT and EfficientNet-lite checkpoints of TensorFlow's origin: values in -1..1
    "imagenet-inception": Preprocess(
        resize=(342,), crop=(299, 299), scale=1 / 255, mean=(0.5,), std=(0.5,)
    ),
    "unit": Preprocess(scale=1 / 255),
    "raw": Preprocess(),
}


def _per_channel(mean: tuple[float, ...], std: tuple[float, ...]) -> list[tuple[float, float]]:
    """Pair means and standard deviations; one value stands for all channels."""
    count = max(len(mean), len(std))
    means = mean * count if len(mean) == 1 else mean
    return list(zip(means, std * count if len(std) == 1 else std, strict=True))


def _preprocess_error(what: str, hint: str) -> UsageError:
    return UsageError(f"the preprocessing has {what}", hint=hint, option="preprocess")


def _parse_pairs(parts: list[str], text: str) -> dict[str, str]:
    """Return the `key=value` parts; a part without a key continues the list before it."""
    pairs: dict[str, str] = {}
    key = ""
    for part in parts:
        name, sign, value = part.partition("=")
        if sign:
            key = name.strip()
            if key in pairs:
                raise _preprocess_error(f"{key} twice", f"give {key} once")
            pairs[key] = value.strip()
        elif key in ("mean", "std") and part:
            pairs[key] += f",{part}"
        else:
            raise _preprocess_error(
                f"{part!r} in {text!r}, which is not key=value", "for example imagenet,crop=192"
            )
    return pairs


def _apply_pairs(base: Preprocess, pairs: Mapping[str, str]) -> Preprocess:
    changes: dict[str, object] = {}
    for key, value in pairs.items():
        if key not in _READERS:
            raise unknown_name_error("preprocessing key", key, list(_READERS))
        try:
            changes[key] = _READERS[key](value)
        except (ValueError, ZeroDivisionError) as error:
            raise _preprocess_error(f"{key}={value}", f"for example {_EXAMPLES[key]}") from error
    return replace(base, **changes)  # type: ignore[arg-type]  # each reader gives its field's type


def _parse_resize(text: str) -> tuple[int, ...]:
    sizes = tuple(map(int, text.lower().split("x")))
    if not 1 <= len(sizes) <= _SIDES:
        raise ValueError(text)
    return sizes


def _parse_crop(text: str) -> tuple[int, ...]:
    sizes = _parse_resize(text)
    return sizes if len(sizes) == _SIDES else sizes * _SIDES


def _parse_number(text: str) -> float:
    above, slash, below = text.partition("/")
    return float(above) / float(below) if slash else float(above)


def _parse_numbers(text: str) -> tuple[float, ...]:
    return tuple(map(_parse_number, text.split(",")))


def _parse_word(text: str) -> str:
    if not text:
        raise ValueError(text)
    return text


_READERS: dict[str, Callable[[str], object]] = {
    "resize": _parse_resize,
    "crop": _parse_crop,
    "layout": lambda text: _parse_word(text).upper(),
    "channels": lambda text: _parse_word(text).lower(),
    "scale": _parse_number,
    "mean": _parse_numbers,
    "std": _parse_numbers,
    "interpolation": lambda text: _parse_word(text).lower(),
}
_EXAMPLES = {
    "resize": "resize=256 (the shorter side) or resize=224x320 (height x width)",
    "crop": "crop=224 or crop=224x320",
    "layout": "layout=NHWC",
    "channels": "channels=bgr",
    "scale": "scale=1/255",
    "mean": "mean=0.485,0.456,0.406",
    "std": "std=0.229,0.224,0.225",
    "interpolation": "interpolation=bicubic",
}


def _sizes_text(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, sizes))


def _number_text(value: float) -> str:
    """Write a number without loss; 1/255 as a fraction."""
    return "1/255" if value == 1 / 255 else repr(value).removesuffix(".0")


_WRITERS: dict[str, Callable[..., str]] = {
    "resize": _sizes_text,
    "crop": _sizes_text,
    "scale": _number_text,
    "mean": lambda values: ",".join(map(_number_text, values)),
    "std": lambda values: ",".join(map(_number_text, values)),
}
