"""Feeds with NaN and Inf, for models that ask about them: imputation, clean-up of sensor data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ..core.signature import FLOATS, InputSpec, Signature
from .draw import make_generator
from .feeds import FeedDrawer, NamedFeed
from .hard import draw_few_rows

if TYPE_CHECKING:
    from ..core.contract import Array, Feed

# Feeds with NaN and Inf, for models that ask about them: imputation, clean-up of sensor data.


NONFINITE = "nonfinite"  # the kind of the feeds
_SHARE = 0.125  # of the elements
_FILLS = {"nan": ("nan",), "inf": ("inf", "-inf")}


def draw_nonfinite_feeds(
    signature: Signature, *, seed: int = 0, samples: Feed | None = None
) -> tuple[NamedFeed, ...]:
    """Draw `nan` and `inf`: `opt` with few rows, an eighth of its floats NaN, or Inf of both signs.

    Inputs with a stated range hold neither. There is none where no input can.
    """
    specs = [one for one in signature.inputs if one.dtype in FLOATS and one.values is None]
    drawer = FeedDrawer.of(signature, seed, samples)
    return tuple(_draw_nonfinite(drawer, specs)) if specs else ()


def _draw_nonfinite(drawer: FeedDrawer, specs: list[InputSpec]) -> Iterator[NamedFeed]:
    base = draw_few_rows(drawer)
    for name, fills in _FILLS.items():
        arrays = dict(base.arrays)
        for spec in specs:
            arrays[spec.name] = _replace_some(
                arrays[spec.name], fills, (drawer.seed, name, spec.name)
            )
        yield replace(base, name=name, kind=NONFINITE, arrays=arrays)


def _replace_some(array: Array, fills: tuple[str, ...], key: tuple[object, ...]) -> Array:
    """The array with some elements at random places replaced, one of each fill at least."""
    import numpy as np

    generator = make_generator(*key)
    flat = np.atleast_1d(array.copy()).reshape(-1)
    count = min(max(int(flat.size * _SHARE), len(fills)), flat.size)
    places = generator.permutation(flat.size)[:count]
    flat[places] = np.resize(np.asarray([float(fill) for fill in fills], flat.dtype), count)
    return np.asarray(flat.reshape(array.shape))
