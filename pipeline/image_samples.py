"""Images for a model that preprocesses them itself: what it can do, and images as samples."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..calibration.sample_content import IMAGE_SUFFIXES, ImageReader, SampleError
from ..checkpoints.image_steps import FILTERS
from ..core.contract import Array, Feed
from ..core.errors import ErrorCode, Hint, Option, UsageError
from ..core.preprocess import Preprocess
from ..core.records import joint_digest, record_of, sha256_of

MAX_IMAGES = 32  # of a folder; each is fed to eager and to every artifact


def raw_images(included: str) -> Preprocess:
    """Return what is left to do with an image whose preprocessing a model includes: nothing."""
    steps = Preprocess.parse(included)
    return Preprocess(layout="NHWC", channels="gray" if steps.channels == "gray" else "rgb")


def check_includable(steps: Preprocess) -> None:
    """Check that preprocessing can be computed inside a model.

    Raises:
        UsageError: its filter cannot, or the size of the result follows that of the image.
    """
    if steps.resize and steps.interpolation not in FILTERS:
        raise _include_fault(
            f"{steps.interpolation} is not computed inside a model",
            f"preprocess={replace(steps, interpolation='bilinear')}",
        )
    if steps.resize and not steps.image_size:
        raise _include_fault(
            f"resize={steps.resize[0]} alone gives images of many sizes",
            f"preprocess={replace(steps, crop=(steps.resize[0], steps.resize[0]))}",
        )
    kept = steps.resize if len(steps.resize) > 1 else steps.resize * len(steps.crop)
    if steps.crop and kept and any(c > r for c, r in zip(steps.crop, kept, strict=True)):
        raise _include_fault(
            "the crop is larger than the resized image",
            f"preprocess={replace(steps, resize=(max(steps.crop),))}",
        )


def _include_fault(problem: str, example: str) -> UsageError:
    return UsageError(
        f"--include-preprocess: {problem}",
        hint=Hint("give ", Option("meta", example)),
        option="include-preprocess",
        code=ErrorCode.UNSUPPORTED,
    )


def list_images(path: Path) -> tuple[Path, ...]:
    """Return an image, or the first images of a folder by name; none for other files."""
    if path.is_dir():
        found = (one for one in path.iterdir() if one.suffix.lower() in IMAGE_SUFFIXES)
        return tuple(sorted(found)[:MAX_IMAGES])
    return (path,) if path.suffix.lower() in IMAGE_SUFFIXES else ()


def digest_samples(path: Path) -> str:
    """Return the SHA-256 of a file of samples, or of the images of a folder that are used."""
    if path.is_dir():
        return joint_digest([record_of(one) for one in list_images(path)])
    return sha256_of(path)


def read_images(path: Path, name: str, left: Preprocess) -> list[Feed]:
    """Return a feed for each image, of one input.

    Args:
        path: an image, or a folder of them.
        name: the input that takes the image.
        left: what is left to do outside of the model.

    Raises:
        UsageError: there is no image, or one cannot be read.
    """
    files = list_images(path)
    if not files:
        raise UsageError(
            f"there are no images in {path}",
            hint=Hint("give ", Option("samples", "FOLDER"), f" with {' '.join(IMAGE_SUFFIXES)}"),
            option="samples",
            code=ErrorCode.NO_SAMPLES,
        )
    return [{name: _read_image(file, left)[None]} for file in files]


def _read_image(file: Path, left: Preprocess) -> Array:
    import numpy as np

    try:
        return np.ascontiguousarray(ImageReader(preprocess=left)(file)[0])
    except SampleError as error:
        raise UsageError(
            f"{file} {error.reason}",
            hint="remove it, or give another folder",
            option="samples",
            code=ErrorCode.CORRUPT_FILE,
        ) from error
