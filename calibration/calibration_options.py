"""What the user asks of calibration and labelled data, checked before anything is read."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import Hint, Option, UsageError, unknown_name_error
from .preprocess import Preprocess

RANDOM = "random"  # the source that is no data at all
FIRST = "first"
SELECTIONS = (FIRST, RANDOM)
EVERY = sys.maxsize  # as `samples`: all there are
SAMPLES = 256  # TensorRT's and NNCF's guides calibrate with 300 to 500 at most; more moves little
HOLD_OUT = 16


def default_selection(source: str) -> str:
    """Random for what is on disk, which is often sorted by class; first for loaders.

    Loaders mostly shuffle, and a random choice would read many times what it uses.
    """
    return RANDOM if Path(source).exists() else FIRST


@dataclass(frozen=True, kw_only=True)
class CalibrationOptions:
    """Which samples to calibrate with, and how images become inputs.

    `source` is a path, `random`, or `package.module:loader`. `samples` is the most that are used
    for calibration, `hold_out` the most that are kept away from it to judge with. `seed` is that of
    the random selection and of random samples; an empty `selection` is `default_selection`.
    `preprocess` None follows the signature.
    """

    source: str
    samples: int = SAMPLES
    selection: str = ""
    seed: int = 0
    hold_out: int = HOLD_OUT
    preprocess: Preprocess | None = None

    def __post_init__(self) -> None:
        if not self.source.strip():
            raise UsageError(
                "the calibration source is empty",
                hint="name a folder of samples, PKG.MOD:LOADER or random",
            )
        if not self.selection:
            object.__setattr__(self, "selection", default_selection(self.source))
        if self.selection not in SELECTIONS:
            raise unknown_name_error("calibration selection", self.selection, SELECTIONS)
        if self.samples < 1:
            raise UsageError(
                f"{self.samples} calibration samples are none",
                hint=Hint("use ", Option("calib-samples", "1"), " or more"),
                option="calib-samples",
            )
        if self.hold_out < 0:
            raise UsageError(
                f"{self.hold_out} samples cannot be held out", hint="hold out 0 or more samples"
            )
        if self.seed < 0:
            raise UsageError(
                f"the calibration seed {self.seed} is below 0", hint="use a seed of 0 or more"
            )


# What the user asks of labelled data.


@dataclass(frozen=True, kw_only=True)
class LabelledOptions:
    """Where labelled samples are: a path or `package.module:loader`.

    `label` names the array that holds the labels, None finds it. `preprocess` is of images; None
    follows the signature.
    """

    source: str
    label: str | None = None
    preprocess: Preprocess | None = None

    def __post_init__(self) -> None:
        if not self.source.strip():
            raise UsageError(
                "the labelled data is empty", hint="name a folder, a file or PKG.MOD:LOADER"
            )
