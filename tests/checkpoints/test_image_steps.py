"""Preprocessing in torch computes what Pillow computes, at any size."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from modelc.checkpoints.image_steps import make_scale_constants, preprocess_images
from modelc.core.preprocess import Preprocess
from modelc.pipeline.enclosed_checks import measure_levels, read_with_pillow

SIZES = ((37, 51), (24, 24), (8, 200), (333, 17), (97, 89), (500, 301), (1, 9))


def image_of(height: int, width: int, channels: int = 3) -> np.ndarray:
    rng = np.random.default_rng(height * width)
    return rng.integers(0, 256, (height, width, channels), dtype=np.uint8)


def ours(image: np.ndarray, steps: Preprocess) -> np.ndarray:
    given = torch.from_numpy(image[None])
    return preprocess_images(given, steps, make_scale_constants(steps))[0].numpy()


@pytest.mark.parametrize(
    ("text", "levels"),
    [
        ("resize=32,crop=24", 1.05),
        ("resize=24x40", 1.05),
        ("imagenet,channels=bgr", 1.05),
        ("imagenet,layout=NHWC", 1.05),
        ("imagenet,interpolation=bicubic", 16),
        ("resize=48,crop=31x33,interpolation=lanczos", 16),
    ],
)
def test_images_of_all_sizes_are_as_in_pillow(text: str, levels: float) -> None:
    steps = Preprocess.parse(text)
    steps = replace(steps, layout=steps.layout or "NCHW", channels=steps.channels or "rgb")
    for size in SIZES:
        image = image_of(*size)
        error = measure_levels(ours(image, steps), read_with_pillow(image, steps), steps)
        assert error.worst <= levels, size
        assert error.mean <= 0.6, size


@pytest.mark.parametrize("crop", ["24x24", "23x24", "31x30"])
def test_a_crop_without_a_resize_is_exact(crop: str) -> None:
    steps = Preprocess.parse(f"crop={crop},channels=rgb,layout=NCHW")
    for size in ((32, 32), (33, 35), (34, 37), (35, 36)):
        image = image_of(*size)
        assert np.array_equal(ours(image, steps), read_with_pillow(image, steps)), size


def test_gray_images() -> None:
    steps = Preprocess.parse("resize=20,crop=16,channels=gray,layout=NCHW,scale=1/255,mean=0.5")
    image = image_of(29, 41, channels=1)
    error = measure_levels(ours(image, steps), read_with_pillow(image, steps), steps)
    assert error.worst <= 1.05


def test_other_dtypes_and_ranks_are_refused() -> None:
    steps = Preprocess.parse("imagenet,channels=rgb,layout=NCHW")
    for given in (torch.zeros(1, 8, 8, 3), torch.zeros(8, 8, 3, dtype=torch.uint8)):
        with pytest.raises(TypeError):
            preprocess_images(given, steps, {})
