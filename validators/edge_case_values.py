"""Edge-case values of one input: zeros, constants, far too large, odd masks and the like."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from ..core.signature import FLOATS, InputSpec
from .feed_values import ValueDistribution, make_generator, row_axis

if TYPE_CHECKING:
    import numpy as np

    from ..core.contract import Array

# How much larger the values of `large` are, and how much smaller those of `small`: what data has
# that was not normalised (images in 0..255 for 0..1, audio in 16 bits), and what is lost in an
# epsilon of 1e-6. Squares of `large` stay far below FP32's largest number, and above FP16's.
EDGE_MAGNITUDE = 1000.0
# A mask that is 0 in front leaves the first rows of a causal attention nothing to attend to, and
# what comes out of them is undefined: eager and an export may differ there, each in its right.
EMPTY_MASK = "mask-empty"  # the last row of a mask hides all, as where a batch is filled up
UNDEFINED_MASKS = ("mask-left", "mask-one", EMPTY_MASK)
# Not what samples show.
OUT_OF_RANGE = ("large", *UNDEFINED_MASKS)

# The input's array made hard; None where it cannot hold such values.
EdgeChange: TypeAlias = "Callable[[EdgeCase, InputSpec, Array], Array | None]"


@dataclass(frozen=True, kw_only=True)
class EdgeCase:
    """One kind of hard values of one input while it is drawn."""

    name: str
    values: ValueDistribution
    key: tuple[object, ...]

    @property
    def generator(self) -> np.random.Generator:
        """The same on every machine and in every order."""
        return make_generator(*self.key)


def _fill(hard: EdgeCase, array: Array, value: float) -> Array | None:
    """The array full of `value`; None where the input does not hold it."""
    import numpy as np

    low, high = hard.values.low, hard.values.high
    outside = low is not None and high is not None and not low <= value <= high
    return None if outside else np.full_like(array, value)


def _zeros(hard: EdgeCase, spec: InputSpec, array: Array) -> Array | None:
    return _fill(hard, array, 0.0) if spec.dtype in FLOATS else None


def _constant(hard: EdgeCase, spec: InputSpec, array: Array) -> Array | None:
    """1 where nothing is known of the values; `lowest` and `highest` are constants otherwise."""
    known = hard.values.low is not None
    return None if known or spec.dtype not in FLOATS else _fill(hard, array, 1.0)


def _scale(hard: EdgeCase, spec: InputSpec, array: Array, factor: float) -> Array | None:
    import numpy as np

    if spec.dtype not in FLOATS:
        return None
    reach = float(np.finfo(spec.dtype).max)
    scaled = np.clip(array.astype(np.float64) * factor, -reach, reach)
    low, high = hard.values.low, hard.values.high
    if spec.values is not None or factor < 1:  # a declared range is kept; a small value is usual
        low, high = -reach if low is None else low, reach if high is None else high
        if scaled.size and not low <= scaled.min() <= scaled.max() <= high:
            return None
    return np.asarray(scaled).astype(array.dtype)


def _small(hard: EdgeCase, spec: InputSpec, array: Array) -> Array | None:
    return _scale(hard, spec, array, 1 / EDGE_MAGNITUDE)


def _large(hard: EdgeCase, spec: InputSpec, array: Array) -> Array | None:
    return None if spec.values is not None else _scale(hard, spec, array, EDGE_MAGNITUDE)


def _fill_end(hard: EdgeCase, spec: InputSpec, array: Array, end: float | None) -> Array | None:
    if end is None or hard.values.masks(spec):
        return None
    return _fill(hard, array, end)


def _lowest(hard: EdgeCase, spec: InputSpec, array: Array) -> Array | None:
    return _fill_end(hard, spec, array, hard.values.low)


def _highest(hard: EdgeCase, spec: InputSpec, array: Array) -> Array | None:
    return _fill_end(hard, spec, array, hard.values.high)


def _signs(hard: EdgeCase, spec: InputSpec, array: Array) -> Array | None:
    """Every other sign or so flipped, where `negated` flips them all."""
    import numpy as np

    if spec.dtype not in FLOATS:
        return None
    flipped = hard.generator.integers(0, 1, array.shape, endpoint=True).astype(bool)
    return np.where(flipped, hard.values.mirror(array), array).astype(array.dtype)


def _one_hot(hard: EdgeCase, spec: InputSpec, array: Array) -> Array | None:
    """In each row one element at its highest, all others 0 or at their lowest."""
    import numpy as np

    if hard.values.masks(spec) or array.ndim == 0:
        return None
    low, high = hard.values.low, hard.values.high
    off = 0.0 if low is None or high is None or low <= 0 <= high else low
    if spec.dtype not in FLOATS:
        off = low or 0.0
    rows = np.full_like(array, off).reshape(array.shape[0] if array.ndim > 1 else 1, -1)
    places = hard.generator.integers(0, rows.shape[1], rows.shape[0])
    rows[np.arange(rows.shape[0]), places] = 1.0 if high is None else high
    return rows.reshape(array.shape)


def _mask(hard: EdgeCase, spec: InputSpec, array: Array) -> Array | None:
    """Masks as models get them seldom: padded on the left, with holes, of one position."""
    import numpy as np

    if not hard.values.masks(spec):
        return None
    rows = array.shape[: row_axis(spec) + 1]
    length = rows[-1]
    position = np.arange(length)
    kept = {
        "mask-left": position >= length // 2,
        "mask-holes": position % 2 == 0,
        "mask-one": position == length // 2,
    }[hard.name]
    bits = np.broadcast_to(kept != hard.values.hides, rows)
    return bits.reshape(array.shape).astype(array.dtype)


def _empty_last_mask(hard: EdgeCase, spec: InputSpec, array: Array) -> Array | None:
    """The last row of a mask of several rows hides all; the others are as they are."""
    if not hard.values.masks(spec) or array.ndim < 2 or array.shape[0] < 2:  # noqa: PLR2004 - rows
        return None
    changed = array.copy()
    changed[-1] = hard.values.hides
    return changed


EDGE_CHANGES: dict[str, EdgeChange] = {
    "zeros": _zeros,
    "constant": _constant,
    "small": _small,
    "large": _large,
    "lowest": _lowest,
    "highest": _highest,
    "signs": _signs,
    "one-hot": _one_hot,
    "mask-left": _mask,
    "mask-holes": _mask,
    "mask-one": _mask,
    EMPTY_MASK: _empty_last_mask,
}
