"""What a target says about the weights in its files, to compare them with the checkpoint's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from .contract import Array, Target
from .errors import Hint
from .kinds import Precision

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


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


@dataclass(frozen=True, kw_only=True)
class IntegerMatrix:
    """Integer weights in a file, of which some rows are in memory at a time.

    `read_rows` returns those of a range; numbers of blocks hold within it. A block that another
    range shares is cut. The graph looks rows of a table up, multiplies by a matrix, or does both,
    by `table` and `factor`.
    """

    shape: tuple[int, ...]
    read_rows: Callable[[int, int], IntegerWeights]
    table: bool = False
    factor: bool = True

    def read_all(self) -> IntegerWeights:
        """Return all rows."""
        return self.read_rows(0, self.shape[0])


@dataclass(frozen=True, kw_only=True)
class RoundedWeight:
    """A weight of the checkpoint as an artifact's integers have it.

    `turned` if the matrix in the file is transposed. `nearest` if it is rounded to nearest, and not
    by a method that moves weights further, with another scale or by a factor.
    """

    name: str
    shape: tuple[int, ...]
    matrix: IntegerMatrix
    turned: bool
    nearest: bool = True

    def read_rows(self, first: int, last: int) -> Array:
        """Return rows of the weight, as the artifact computes with them, in float32."""
        import numpy as np

        by_row = not self.turned and self.matrix.shape[0] == self.shape[0]
        if by_row:
            values = self.matrix.read_rows(first, last).values.reshape(-1, *self.shape[1:])
        else:
            whole = self.matrix.read_all().values
            values = (whole.T if self.turned else whole.reshape(self.shape))[first:last]
        return np.ascontiguousarray(values, np.float32)


@runtime_checkable
class IntegerWeighted(Target, Protocol):
    """A target whose artifacts may have weights of integers, rounded from the checkpoint's."""

    def integer_weights(self, path: Path) -> Iterator[IntegerMatrix]:
        """Yield the matrices of integer weights of a model file.

        Raises:
            RunnerError: the file cannot be read.
        """
        ...


def read_constants(target: Target, path: Path) -> Iterator[Array]:
    """Yield the float32 constants of a model file, and the values of its integer weights.

    Raises:
        RunnerError: the file cannot be read.
    """
    if isinstance(target, Weighted):
        yield from target.weights(path)
    if isinstance(target, IntegerWeighted):
        yield from (matrix.read_all().values for matrix in target.integer_weights(path))


@dataclass(frozen=True, kw_only=True)
class QuantizedMatrix:
    """A matrix (outputs, inputs) that a checkpoint has as integers of `bits`, signed.

    `scales` and `zeros` have the shape (outputs, blocks of inputs): a weight is (integer - zero) *
    scale, in float32. `source` is the library that quantized it.
    """

    integers: Array
    scales: Array
    zeros: Array
    bits: int
    source: str

    @property
    def block(self) -> int:
        """The number of inputs that share a scale."""
        return int(self.integers.shape[1] // self.scales.shape[1])

    def dequantize(self) -> NDArray[np.float32]:
        """Return the weights that the integers stand for."""
        import numpy as np

        outputs, blocks = self.scales.shape
        steps = self.integers.astype(np.int16).reshape(outputs, blocks, -1) - self.zeros[:, :, None]
        found: NDArray[np.float32] = steps.astype(np.float32) * self.scales[:, :, None]
        return found.reshape(outputs, -1)

    def __deepcopy__(self, _: object) -> QuantizedMatrix:
        """Return itself: a copied module shares its integers."""
        return self


@dataclass(frozen=True, kw_only=True)
class QuantizationStep:
    """A rounding to integers or the way back, with constant scales, one or one for each channel.

    `integers` are those of a constant; an activation has none. `zeros` is None if the zero points
    are computed at run time. `place` is its node. Scales are not `exact` where a file has the ends
    of ranges in their place.
    """

    place: str
    scales: Array
    zeros: Array | None
    integers: Array | None = None
    exact: bool = True


@runtime_checkable
class QuantizationCarrying(Target, Protocol):
    """A target whose artifacts have the scales of a quantized program as constants."""

    def quantization_steps(self, path: Path) -> Iterator[QuantizationStep]:
        """Yield the steps of a model file that have constant scales.

        Raises:
            RunnerError: the file cannot be read.
        """
        ...


@runtime_checkable
class PrecisionAdvising(Target, Protocol):
    """A target that has something else in place of a precision that it does not offer."""

    PRECISION_ADVICE: Mapping[Precision, Hint]


@runtime_checkable
class WeightCopying(Target, Protocol):
    """A target whose runtime copies the weights of a model into memory before it runs it."""

    def estimate_copies(self, weights: int, precision: Precision) -> int:
        """Return the bytes of the copies of so many weights."""
        ...
