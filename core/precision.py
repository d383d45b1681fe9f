"""The numeric precisions that an artifact can have: a closed set."""

from __future__ import annotations

from enum import StrEnum


class Precision(StrEnum):
    """What the weights of an artifact are stored and computed in."""

    FP32 = "fp32"
    FP16 = "fp16"
