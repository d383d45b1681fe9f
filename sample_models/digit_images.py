"""Write digits as PNG images: python -m sample_models.digit_images [COUNT] [-o DIR].

They are the first COUNT digits that the digits net was trained with (see train_digits.py), grey,
8 by 8 pixels, ink from 0 (none) to 255 (full): DIR/<label>/<number>.png, as image folders are.
The shipped `digits_calib/` was made with COUNT 128: images to calibrate with.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from .train_digits import split

if TYPE_CHECKING:
    from collections.abc import Sequence

COUNT = 128
FULL = 255


def main(argv: Sequence[str] | None = None) -> None:
    """Read the command line, write the images, print the folder."""
    parser = argparse.ArgumentParser(
        prog="python -m sample_models.digit_images", description=__doc__
    )
    parser.add_argument("count", nargs="?", type=int, default=COUNT, help="how many images")
    parser.add_argument("-o", "--out", type=Path, default=Path("digits_calib"), help="folder")
    args = parser.parse_args(argv)
    print(write_images(args.out, args.count))


def write_images(folder: Path, count: int = COUNT) -> Path:
    """Write the first `count` training digits below `folder`; return that folder."""
    images, _, labels, _ = split()
    for number, (image, label) in enumerate(zip(images[:count], labels[:count], strict=True)):
        place = folder / str(label)
        place.mkdir(parents=True, exist_ok=True)
        pixels = np.round(image[0] * FULL).astype(np.uint8)
        Image.fromarray(pixels).save(place / f"{number:04}.png")
    return folder


if __name__ == "__main__":
    main()
