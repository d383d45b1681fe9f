"""Image preprocessing as tensor operations of torch, for images of any size.

It computes what Pillow computes, with its filters and their support when an image shrinks, but
without rounding to whole pixel values in between. Sizes stay tensors: nothing depends on the size
of the image that a capture sees.

Pillow also clips between its two passes, whose order depends on its version and on the sizes (13
does the one first that shrinks more). That matters to filters with negative weights alone.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from ..core.preprocess import Preprocess

_CUBIC = -0.5  # Pillow's coefficient of bicubic
_LOBES = 3  # of Lanczos
_RANK = 4
FILTERS = (
    "bilinear",
    "bicubic",
    "lanczos",
)  # nearest and box have ties that Pillow rounds either way


def make_scale_constants(steps: Preprocess) -> dict[str, torch.Tensor]:
    """Return scale, mean and std as float32 tensors, without those that change nothing."""
    import torch

    form = (1, 1, 1, -1) if steps.layout == "NHWC" else (1, -1, 1, 1)
    values = {
        "scale": (steps.scale,) if steps.scale != 1 else (),
        "mean": steps.mean,
        "std": steps.std,
    }
    return {
        key: torch.tensor(value, dtype=torch.float32).view(form)
        for key, value in values.items()
        if value
    }


def preprocess_images(
    images: torch.Tensor, steps: Preprocess, constants: Mapping[str, torch.Tensor]
) -> torch.Tensor:
    """Convert uint8 images (N, H, W, C) in RGB or gray to the model's input.

    Raises:
        TypeError: they are not uint8 of this rank.
    """
    import torch

    if images.dtype is not torch.uint8 or images.dim() != _RANK:
        shape = ",".join(map(str, images.shape))
        raise TypeError(f"an image is uint8[N,height,width,channels], not {images.dtype}[{shape}]")
    pixels = images.permute(0, 3, 1, 2)
    if steps.channels == "bgr":
        pixels = pixels.flip(1)
    values = _resize_and_crop(pixels, steps).to(torch.float32)
    if steps.layout == "NHWC":
        values = values.permute(0, 2, 3, 1)
    if "scale" in constants:
        values = values * constants["scale"]
    if "mean" in constants:
        values = values - constants["mean"]
    return values / constants["std"] if "std" in constants else values


def _resize_and_crop(pixels: torch.Tensor, steps: Preprocess) -> torch.Tensor:
    """Resize (N, C, H, W), computing only the rows and columns that the crop keeps."""
    import torch

    if not steps.resize and not steps.crop:
        return pixels
    tall, wide = (torch.arange(pixels.shape[axis], device=pixels.device) for axis in (2, 3))
    height, width = tall[-1:] + 1, wide[-1:] + 1
    new_height, new_width = _new_sizes(height, width, steps.resize)
    rows = _crop_places(new_height, steps.image_size[0], cropped=bool(steps.crop))
    columns = _crop_places(new_width, steps.image_size[1], cropped=bool(steps.crop))
    if not steps.resize:
        return pixels.index_select(3, columns).index_select(2, rows)
    across = _filter_weights(wide, columns, width, new_width, steps.interpolation)
    down = _filter_weights(tall, rows, height, new_height, steps.interpolation)
    values = torch.matmul(pixels.to(torch.float32), across.transpose(0, 1)).clamp(0, 255)
    return torch.matmul(down, values).clamp(0, 255)


def _new_sizes(
    height: torch.Tensor, width: torch.Tensor, resize: tuple[int, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sizes after the resize; the longer side is rounded down."""
    import torch

    if not resize:
        return height, width
    if len(resize) > 1:
        return torch.full_like(height, resize[0]), torch.full_like(width, resize[1])
    short = torch.minimum(height, width)
    return _floor_divide(height * resize[0], short), _floor_divide(width * resize[0], short)


def _crop_places(size: torch.Tensor, kept: int, *, cropped: bool) -> torch.Tensor:
    """Return the places that a center crop keeps; half a pixel is rounded to the even place."""
    import torch

    places = torch.arange(kept, device=size.device)
    if not cropped:
        return places
    rest = size - kept
    half = _floor_divide(rest, torch.full_like(rest, 2))
    odd = (rest - 2 * half) * (half - 2 * _floor_divide(half, torch.full_like(half, 2)))
    return places + half + odd


def _floor_divide(above: torch.Tensor, below: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.div(above, below, rounding_mode="floor")


def _filter_weights(
    given: torch.Tensor,
    places: torch.Tensor,
    size: torch.Tensor,
    new_size: torch.Tensor,
    interpolation: str,
) -> torch.Tensor:
    """Return the weight of each given pixel (column) in each new one (row).

    The distance of two pixel centers is a fraction of integers.
    """
    import torch

    distance = (2 * given + 1)[None, :] * new_size - (2 * places + 1)[:, None] * size
    support = 2 * torch.maximum(size, new_size)
    ratio = distance.to(torch.float32).abs() / support.to(torch.float32)
    weights = _filter_values(ratio, interpolation)
    return weights / weights.sum(dim=1, keepdim=True)


def _filter_values(ratio: torch.Tensor, interpolation: str) -> torch.Tensor:
    """Return Pillow's filter at distances in units of its support."""
    import torch

    if interpolation == "bilinear":
        return (1 - ratio).clamp(min=0)
    if interpolation == "bicubic":
        near = ((_CUBIC + 2) * ratio - (_CUBIC + 3)) * ratio * ratio + 1
        far = (((ratio - 5) * ratio + 8) * ratio - 4) * _CUBIC
        return torch.where(ratio < 1, near, torch.where(ratio < 2, far, torch.zeros_like(ratio)))  # noqa: PLR2004
    angle = math.pi * ratio.clamp(min=1e-6)
    lobes = torch.sin(angle) / angle * torch.sin(angle / _LOBES) / (angle / _LOBES)
    return torch.where(ratio < _LOBES, lobes, torch.zeros_like(ratio))
