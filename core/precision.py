"""The numeric precisions that an artifact can have: a closed set."""

from __future__ import annotations

from enum import StrEnum


class Precision(StrEnum):
    """What the weights of an artifact are stored and computed in.

    INT8 is 8-bit integer weights and activations with static scales; layers that are kept out
    of it compute in FP32.
    """

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    INT8 = "int8"
