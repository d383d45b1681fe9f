"""Options of calibration and labelled data, checked before anything is read."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import Hint, Option, UsageError, unknown_name_error
from ..core.preprocess import Preprocess

RANDOM = "random"  # the source that draws synthetic samples
FIRST = "first"
SELECTIONS = (FIRST, RANDOM)
EVERY = sys.maxsize  # a value of `samples`: use all
SAMPLES = 256  # the guides of TensorRT and NNCF use 300 to 500 at most; more changes little
HOLD_OUT = 16


def default_selection(source: str) -> str:
    """Return random for files, which are often sorted by class, and first for loaders.

    Loaders mostly shuffle, and a random selection would read far more samples than it uses.
    """
    return RANDOM if Path(source).exists() else FIRST


@dataclass(frozen=True, kw_only=True)
class CalibrationOptions:
    """The samples to calibrate with, and the preprocessing of images.

    `source` is a path, `random`, or `package.module:loader`. At most `samples` are used for
    calibration, at most `hold_out` for judging. `seed` is used for random selection and random
    samples. An empty `selection` means `default_selection`; `preprocess` None follows the
    signature.
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
                f"--calib-samples must be at least 1, not {self.samples}",
                hint=Hint("use ", Option("calib-samples", "256")),
                option="calib-samples",
            )
        if self.hold_out < 0:
            raise UsageError(
                f"hold_out must be at least 0, not {self.hold_out}", hint="use 0 or more"
            )
        if self.seed < 0:
            raise UsageError(
                f"the calibration seed must be at least 0, not {self.seed}",
                hint="use a seed of 0 or more",
            )


# What the user asks of labelled data.


@dataclass(frozen=True, kw_only=True)
class LabelledOptions:
    """Labelled samples: a path or `package.module:loader`.

    `label` names the array of labels; None finds it. `preprocess` None follows the signature.
    """

    source: str
    label: str | None = None
    preprocess: Preprocess | None = None

    def __post_init__(self) -> None:
        if not self.source.strip():
            raise UsageError(
                "the labelled data is empty", hint="name a folder, a file or PKG.MOD:LOADER"
            )
