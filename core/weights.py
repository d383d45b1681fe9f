"""What a target says about the weights in its files, to compare them with the checkpoint's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from .contract import Array, Target


@runtime_checkable
class Weighted(Target, Protocol):
    """A target whose FP32 artifacts contain the checkpoint's weights as constants."""

    def weights(self, path: Path) -> Iterator[Array]:
        """Yield the float32 constants of a model file one at a time, as they are after folding.

        Raises:
            RunnerError: the file cannot be read.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class IntegerWeights:
    """Integer weights as the artifact computes with them, in blocks that share a scale.

    `radius` is how far rounding to nearest moves each weight at most: half a step, or a whole one
    where a block has no zero point (`zeroed` is false) and its largest weight of one sign is
    clipped. `blocks` numbers the block of each weight. All three have one shape.
    """

    values: Array
    radius: Array
    blocks: Array
    zeroed: bool = True

    @property
    def half_steps(self) -> Array:
        """Half a step of each weight's block."""
        return self.radius if self.zeroed else self.radius / 2


@runtime_checkable
class IntegerWeighted(Target, Protocol):
    """A target whose artifacts may have weights of integers, rounded from the checkpoint's."""

    def integer_weights(self, path: Path) -> Iterator[IntegerWeights]:
        """Yield the matrices of integer weights of a model file, one at a time.

        Raises:
            RunnerError: the file cannot be read.
        """
        ...
