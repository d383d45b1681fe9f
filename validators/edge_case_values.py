"""Edge-case values of one input: zeros, constants, very large values, unusual masks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from ..core.signature import FLOATS, InputSpec
from .feed_values import ValueDistribution, make_generator, row_axis

if TYPE_CHECKING:
    import numpy as np

    from ..core.contract import Array

# Factor of `large`, and divisor of `small`. Data that was not normalised is this large (images in
# 0..255 for 0..1, audio in 16 bits); values this small vanish in an epsilon of 1e-6. Squares of
# `large` stay far below FP32's largest number and exceed FP16's.
EDGE_MAGNITUDE = 1000.0
# A mask that starts with 0 leaves the first rows of a causal attention nothing to attend to. Their
# result is undefined, so eager and an export may legitimately differ there.
EMPTY_MASK = "mask-empty"  # the last row of a mask hides everything, as in a padded batch
UNDEFINED_MASKS = ("mask-left", "mask-one", EMPTY_MASK)
# Names of the values that samples do not show.
OUT_OF_RANGE = ("large", *UNDEFINED_MASKS)

# Changes the input's array to edge-case values; None if the input cannot hold them.
EdgeChange: TypeAlias = "Callable[[EdgeCase, InputSpec, Array], Array | None]"


@dataclass(frozen=True, kw_only=True)
class EdgeCase:
    """One kind of edge-case values while they are drawn for one input."""

    name: str
    values: ValueDistribution
    key: tuple[object, ...]

    @property
    def generator(self) -> np.random.Generator:
        """A generator that depends on `key` alone."""
        return make_generator(*self.key)


def _fill(hard: EdgeCase, array: Array, value: float) -> Array | None:
    """Return the array filled with `value`; None if that is out of the input's range."""
    import numpy as np

    low, high = hard.values.low, hard.values.high
    outside = low is not None and high is not None and not low <= value <= high
    return None if outside else np.full_like(array, value)


def _constant(hard: EdgeCase, spec: InputSpec, array: Array) -> Array | None:
    """Fill with 0, or with 1 if no range is known: `lowest` and `highest` are constants too."""
    value = 0.0 if hard.name == "zeros" else 1.0
    known = value and hard.values.low is not None
    return None if known or spec.dtype not in FLOATS else _fill(hard, array, value)


def _scale(hard: EdgeCase, spec: InputSpec, array: Array) -> Array | None:
    """Scale to `small` or `large` values; a declared range has no `large` ones."""
    import numpy as np

    small = hard.name == "small"
    if spec.dtype not in FLOATS or not (small or spec.values is None):
        return None
    largest = float(np.finfo(spec.dtype).max)
    factor = 1 / EDGE_MAGNITUDE if small else EDGE_MAGNITUDE
    scaled = np.clip(array.astype(np.float64) * factor, -largest, largest)
    low, high = hard.values.low, hard.values.high
    if small:  # a known range is kept
        low, high = -largest if low is None else low, largest if high is None else high
        if scaled.size and not low <= scaled.min() <= scaled.max() <= high:
            return None
    return np.asarray(scaled).astype(array.dtype)


def _end(hard: EdgeCase, spec: InputSpec, array: Array) -> Array | None:
    """Fill with the `lowest` or the `highest` value, if there is a range."""
    end = hard.values.low if hard.name == "lowest" else hard.values.high
    return None if end is None or hard.values.masks(spec) else _fill(hard, array, end)


def _signs(hard: EdgeCase, spec: InputSpec, array: Array) -> Array | None:
    """Flip about half of the signs; `negated` flips all of them."""
    import numpy as np

    if spec.dtype not in FLOATS:
        return None
    flipped = hard.generator.integers(0, 1, array.shape, endpoint=True).astype(bool)
    return np.where(flipped, hard.values.mirror(array), array).astype(array.dtype)


def _one_hot(hard: EdgeCase, spec: InputSpec, array: Array) -> Array | None:
    """Set one element per row to its highest, and all others to 0 or their lowest."""
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
    """Draw rare masks: padded on the left, with holes, or with a single position."""
    import numpy as np

    padding = hard.values.padding
    if not hard.values.masks(spec) or (padding is not None and hard.name != "mask-left"):
        return None
    rows = array.shape[: row_axis(spec) + 1]
    length = rows[-1]
    position = np.arange(length)
    kept = {
        "mask-left": position >= (length + (padding or 0)) // 2,
        "mask-holes": position % 2 == 0,
        "mask-one": position == length // 2,
    }[hard.name]
    bits = np.broadcast_to(kept != hard.values.hides, rows)
    return bits.reshape(array.shape).astype(array.dtype)


def _empty_last_mask(hard: EdgeCase, spec: InputSpec, array: Array) -> Array | None:
    """Hide everything in the last row of a mask with several rows; keep the others."""
    if not hard.values.masks(spec) or array.ndim < 2 or array.shape[0] < 2:  # noqa: PLR2004 - rows
        return None
    changed = array.copy()
    changed[-1] = hard.values.hides
    return changed


EDGE_CHANGES: dict[str, EdgeChange] = {
    "zeros": _constant,
    "constant": _constant,
    "small": _scale,
    "large": _scale,
    "lowest": _end,
    "highest": _end,
    "signs": _signs,
    "one-hot": _one_hot,
    "mask-left": _mask,
    "mask-holes": _mask,
    "mask-one": _mask,
    EMPTY_MASK: _empty_last_mask,
}
