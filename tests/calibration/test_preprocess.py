"""The language of `--preprocess`, and what it does to pixels."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from modelc.calibration.calibration_report import FindingKind
from modelc.calibration.sample_content import ImageReader, SampleError
from modelc.core.errors import UsageError
from modelc.core.preprocess import PRESETS, Preprocess

from .conftest import photo


def pixels(image: Image.Image, steps: str, form: str = "PNG") -> np.ndarray:
    """What the reader makes of the image once it is a file."""
    blob = io.BytesIO()
    image.save(blob, form)
    blob.seek(0)
    value = ImageReader(preprocess=Preprocess.parse(steps))(blob)[0]
    assert isinstance(value, np.ndarray)
    return value


@pytest.mark.parametrize(
    "text",
    [
        *PRESETS,
        "imagenet,resize=288,crop=288",
        "imagenet,mean=0.5,std=0.25",
        "scale=1/127.5,mean=1,layout=NHWC,channels=bgr",
        "resize=32x40,interpolation=nearest",
        "mean=0.1,0.2,0.3,std=1,2,3,channels=rgb",
    ],
)
def test_what_is_written_reads_to_the_same(text: str) -> None:
    steps = Preprocess.parse(text)
    assert Preprocess.parse(str(steps)) == steps


def test_pairs_change_their_preset_and_nothing_else() -> None:
    steps = Preprocess.parse("imagenet, resize=288 ,crop=288x300")
    assert (steps.resize, steps.crop) == ((288,), (288, 300))
    assert (steps.mean, steps.scale) == (PRESETS["imagenet"].mean, 1 / 255)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("imagenett", "preset 'imagenett'"),
        ("imagenet,size=3", "key 'size'"),
        ("imagenet,resize=big", "resize=big"),
        ("imagenet,resize=1x2x3", "resize=1x2x3"),
        ("imagenet,crop=0", "below 1"),
        ("imagenet,crop", "'crop'"),
        ("imagenet,crop=1,crop=2", "crop twice"),
        ("scale=0", "scale=0"),
        ("scale=1/0", "scale=1/0"),
        ("scale=nan", "scale=nan"),
        ("std=0", "of 0"),
        ("mean=1,2", "2 values"),
        ("imagenet,channels=gray", "3 values"),
        ("layout=CHWN", "layout 'CHWN'"),
        ("interpolation=", "interpolation="),
        ("", "preset ''"),
    ],
)
def test_errors_name_the_value_and_have_a_hint(text: str, shown: str) -> None:
    with pytest.raises(UsageError) as refusal:
        Preprocess.parse(text)
    assert shown in refusal.value.message
    assert refusal.value.hint


def test_imagenet_is_the_arithmetic_of_the_training_script() -> None:
    image = photo(1, height=300, width=400)
    width = int(256 * 400 / 300)
    left = round((width - 224) / 2)
    cut = image.resize((width, 256), Image.Resampling.BILINEAR).crop((left, 16, left + 224, 240))
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    wanted = ((np.asarray(cut) / 255 - mean) / std).transpose(2, 0, 1)
    np.testing.assert_allclose(pixels(image, "imagenet"), wanted, atol=1e-6)


def test_the_shorter_side_is_resized_whichever_it_is() -> None:
    assert pixels(photo(1, height=60, width=40), "resize=20").shape == (3, 30, 20)
    assert pixels(photo(1, height=40, width=60), "resize=20").shape == (3, 20, 30)


def test_bgr_turns_the_channels_before_their_means() -> None:
    image = photo(1)
    rgb = np.asarray(image).astype(np.float32).transpose(2, 0, 1)
    bgr = pixels(image, "channels=bgr,mean=1,2,3")
    np.testing.assert_array_equal(bgr, rgb[::-1] - np.array([1, 2, 3])[:, None, None])


def test_nhwc_keeps_the_channels_last() -> None:
    image = photo(1)
    np.testing.assert_array_equal(pixels(image, "layout=NHWC"), np.asarray(image))


def test_raw_images_stay_bytes() -> None:
    assert pixels(photo(1), "raw").dtype == np.uint8


@pytest.mark.parametrize("mode", ["L", "LA", "1", "P", "RGBA", "CMYK"])
@pytest.mark.parametrize(("channels", "count"), [("rgb", 3), ("gray", 1)])
def test_every_mode_becomes_the_channels_that_are_wanted(
    mode: str, channels: str, count: int
) -> None:
    form = "JPEG" if mode == "CMYK" else "PNG"
    value = pixels(photo(1).convert(mode), f"channels={channels}", form)
    assert value.shape == (count, 40, 48)
    assert value.dtype == np.uint8


@pytest.mark.parametrize(("channels", "count"), [("rgb", 3), ("gray", 1)])
def test_sixteen_bits_are_brought_to_the_range_of_eight(channels: str, count: int) -> None:
    deep = np.linspace(0, 65535, 40 * 48).astype(np.uint16).reshape(40, 48)
    value = pixels(Image.fromarray(deep), f"channels={channels}")
    assert value.shape == (count, 40, 48)
    np.testing.assert_allclose(value[0], deep / 257, atol=1e-3)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "BMP"])
def test_every_format_is_read(form: str) -> None:
    value = pixels(photo(1), "raw", form)
    assert np.abs(value.mean() - np.asarray(photo(1)).mean()) < 3


def test_an_image_smaller_than_its_crop_is_rejected_with_both_sizes() -> None:
    with pytest.raises(SampleError, match=r"40x48.*64x64"):
        pixels(photo(1), "crop=64")


def test_a_decompression_bomb_is_rejected_before_it_is_decoded(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.png"
    Image.new("1", (10_000, 9_000)).save(bomb)
    assert bomb.stat().st_size < 100_000
    with pytest.raises(SampleError, match="10000x9000"):
        ImageReader(preprocess=Preprocess())(bomb)


@pytest.mark.parametrize("kept", [0, 20, 200, -100])
def test_a_damaged_image_is_rejected_in_one_line(kept: int) -> None:
    blob = io.BytesIO()
    photo(1).save(blob, "PNG")
    with pytest.raises(SampleError) as refusal:
        ImageReader(preprocess=Preprocess())(io.BytesIO(blob.getvalue()[:kept]))
    assert "\n" not in refusal.value.reason
    assert refusal.value.kind is FindingKind.UNREADABLE
