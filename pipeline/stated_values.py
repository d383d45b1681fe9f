"""Finds the input whose stated range of values goes beyond what eager takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Protocol

from ..core.contract import Feed
from ..core.signature import FLOATS, InputSpec, Signature


class ValueTrials(Protocol):
    """What runs eager on values, as `relating.Trials` does."""

    signature: Signature

    def takes(self, arrays: Feed) -> bool:
        """Whether eager takes this feed."""

    def others(self, sizes: dict[str, int]) -> Iterator[Feed]:
        """Feeds of these sizes with other values."""


def bounded_input(trials: ValueTrials, sizes: Mapping[str, int]) -> InputSpec | None:
    """The first integer input whose stated range goes beyond what eager takes, with less.

    The end is one for all sizes, as a table's is: it was the same at the least, these and the
    largest sizes.
    """
    free = trials.signature.free_dims
    places = [
        {name: dim.low for name, dim in free.items()},
        dict(sizes),
        {name: dim.high for name, dim in free.items()},
    ]
    for spec in trials.signature.inputs:
        values = spec.values
        if spec.dtype in FLOATS or values is None or values.chosen or values.follows:
            continue
        ends = {_largest(trials, spec, (int(values.low), int(values.high)), at) for at in places}
        end = ends.pop()
        if not ends and end is not None and end < values.high:
            dims = tuple(replace(dim, bounded=not dim.chosen) for dim in spec.dims)
            return replace(spec, dims=dims, values=replace(values, high=end))
    return None


def _largest(
    trials: ValueTrials, spec: InputSpec, ends: tuple[int, int], sizes: dict[str, int]
) -> int | None:
    """The largest value that eager takes the input full of, others as they are drawn."""
    import numpy as np

    for base in trials.others(dict(sizes)):

        def takes(value: int, base: Feed = base) -> bool:
            return trials.takes({**base, spec.name: np.full_like(base[spec.name], value)})

        good, bad = ends
        if not takes(good):
            continue
        if takes(bad):
            return bad
        while bad - good > 1:
            middle = (good + bad) // 2
            good, bad = (middle, bad) if takes(middle) else (good, middle)
        return good
    return None
