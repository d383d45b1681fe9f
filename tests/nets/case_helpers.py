"""What the hand-made cases of coverage.py share: a short form of Case, and arrays for feeds.

Arrays are drawn from a seed and alike on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from modelc.tests.nets.cases import Case

if TYPE_CHECKING:
    from torch import nn

Array: TypeAlias = NDArray[Any]
Feeds: TypeAlias = list[dict[str, Array]]


def hard(
    name: str,
    build: Callable[[], nn.Module],
    *inputs: str,
    why: str,
    feeds: Callable[[], Feeds] | None = None,
    close: float | None = None,
) -> Case:
    """A hard case; `feeds` are its `more_feeds`."""
    return Case(
        name=name, family="hard", build=build, inputs=inputs, why=why, more_feeds=feeds, close=close
    )


def normal(seed: int, *shape: int, shift: float = 0.0, scale: float = 1.0) -> Array:
    """Normal float32 values around `shift` with the deviation `scale`."""
    drawn = np.random.default_rng(seed).normal(shift, scale, shape)
    return np.asarray(drawn, dtype=np.float32)


def whole(seed: int, *shape: int, low: int = 0, high: int = 1) -> Array:
    """Uniform int64 values, both ends included."""
    return np.random.default_rng(seed).integers(low, high, shape, dtype=np.int64, endpoint=True)


def flags(values: Sequence[bool] | Sequence[Sequence[bool]]) -> Array:
    """A bool array of these values."""
    return np.asarray(values, dtype=np.bool_)


def given(values: Sequence[int]) -> Array:
    """An int64 array of these values."""
    return np.asarray(values, dtype=np.int64)


def number(value: float) -> Array:
    """An int64 or float32 array without dims."""
    return np.asarray(value, dtype=np.int64 if isinstance(value, int) else np.float32)


def spiked(seed: int, *shape: int, value: float) -> Array:
    """Normal values with one, the first, that is `value`."""
    drawn = normal(seed, *shape)
    drawn.reshape(-1)[0] = value
    return drawn
