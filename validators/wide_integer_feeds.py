"""Feeds of wide integers: values that formats compute wrongly where they narrow int64."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..core.signature import FLOATS, InputSpec, Signature
from .edge_case_feeds import draw_few_rows
from .feed_values import make_generator
from .feeds import FeedDrawer, NamedFeed

if TYPE_CHECKING:
    from ..core.contract import Array, Feed

WIDE = "wide"  # the kind, and the name of the feeds
EXACT = 2**24  # integers up to here are exact in float32
SMALL = 1023  # values of the first feed: what most integers of users are below
# At these magnitudes formats fail: int32, float32, int16, bytes, and just beyond.
# ONNX Runtime 1.24 compares the low words alone where int64 differ by 2^31 to 2^32 (Min, Sign).
_EDGES = (
    2**31 + 5, 2**24 + 1, -(2**31) - 5, -(2**24) - 1, 2**31, 2**32 - 1, -(2**32) + 1, 2**31 - 1,
    32768, -32769, 255, 7, -1,
)  # fmt: skip
_ODD = 87
_NEAR = 2  # feeds in the upper half of the range, and of multiples there
_DIVISORS = (60, 3600, 86400, 7, 10, 1000, 3, 24, 100, 1024)
_FACTOR = 2**13  # a product of two below fits into int32 32 times
_COMBINED = 3  # bool inputs; of more, all are true or all false
_WORD = 2**32
_GROUP = 8  # values to either side of a group's middle
_MOST = 4  # feeds that edges are spread over where an input has few elements


def find_wide_inputs(signature: Signature) -> tuple[InputSpec, ...]:
    """The integer inputs whose range has more than the drawn feeds show.

    Chosen ranges with a usual part, and any range beyond what float32 holds exactly.
    """
    return tuple(spec for spec in signature.inputs if _is_wide(spec))


def _is_wide(spec: InputSpec) -> bool:
    if spec.values is None or spec.dtype in FLOATS:
        return False
    if spec.values.follows or spec.values.order:
        return False
    if spec.values.chosen and spec.values.usual not in (None, (spec.values.low, spec.values.high)):
        return True
    return max(abs(spec.values.low), abs(spec.values.high)) > EXACT


def draw_wide_feeds(
    signature: Signature, *, seed: int = 0, samples: Feed | None = None
) -> tuple[NamedFeed, ...]:
    """Draw `wide-1`, `wide-2`, ...: at opt sizes with few rows, values over all magnitudes.

    `wide-1` has values up to 1023, the others the edges of bytes, int16, float32 and int32 within
    the range, of both signs, beside values drawn evenly over all magnitudes. `wide-high` and
    `wide-low` hold the ends of the range alone, `wide-near-1` and `-2` its upper half. `wide-words`
    and `wide-words-low` have small values beside some that are not quite 2^32 away: what compares
    the low words takes the wrong one for the greatest or the least of all. `wide-products` has odd
    values of 13 bits: products that float32 rounds and int32 holds. Beside bools, the ends and the
    products come with each of them all true and all false. `wide-apart` has the two ends side by
    side: differences overflow. `wide-quotients` has multiples of the usual divisors, of time and of
    tens, and their neighbours, each divisor at least once: what divides in floats takes the wrong
    whole number. All inputs that `find_wide_inputs` names are wide at once. There is none where no
    input is.
    """
    specs = find_wide_inputs(signature)
    if not specs:
        return ()
    drawer = FeedDrawer.of(signature, seed, samples)
    base = draw_few_rows(drawer)
    return tuple(
        replace(base, name=name, kind=WIDE, arrays={**base.arrays, **arrays})
        for name, arrays in _draw_wide(specs, base, seed)
    )


def _draw_wide(
    specs: Sequence[InputSpec], base: NamedFeed, seed: int
) -> Iterator[tuple[str, dict[str, Array]]]:
    size = min(base.arrays[spec.name].size for spec in specs)
    if not size:
        return
    chosen = [spec for spec in specs if spec.values and spec.values.chosen]
    if any(_range_extent(spec) > SMALL for spec in chosen):
        yield f"{WIDE}-1", {s.name: _log_values(s, base, (seed, 1), SMALL, ()) for s in chosen}
    most = max(len(edge_values(spec)) for spec in specs)
    count = min(-(-most // size), _MOST)
    for number in range(2, count + 2):
        arrays = {}
        for place, spec in enumerate(specs):  # not the same edge for each input
            edges = edge_values(spec)[(number - 2 + place) % count :: count]
            arrays[spec.name] = _log_values(spec, base, (seed, number), _range_extent(spec), edges)
        yield f"{WIDE}-{number}", arrays
    yield from _draw_ends(specs, base)
    yield from _draw_products(specs, base, seed)
    yield (
        f"{WIDE}-apart",
        {s.name: _alternate_ends(s, base, place) for place, s in enumerate(specs)},
    )
    yield from _draw_upper_half(specs, base, seed)
    for name, far in (("words", _WORD), ("words-low", -_WORD)):
        arrays = {
            s.name: _word_values(s, base, (seed, far), far) for s in specs if _has_word(s, far)
        }
        if arrays:
            yield f"{WIDE}-{name}", arrays


def _draw_upper_half(
    specs: Sequence[InputSpec], base: NamedFeed, seed: int
) -> Iterator[tuple[str, dict[str, Array]]]:
    """Feeds of the upper half of the range: any values, and neighbours of multiples.

    Float32 takes the neighbour of a multiple for the multiple beyond 2^24 alone.
    """
    size = min(base.arrays[spec.name].size for spec in specs)
    turns = min(max(-(-2 * len(_DIVISORS) // size), _NEAR), len(_DIVISORS))
    turns = turns if max(map(_range_extent, specs)) > EXACT else _NEAR
    for name, draw, count in (
        ("near", _upper_values, _NEAR),
        ("quotients", _multiple_values, turns),
    ):
        for number in range(1, count + 1):
            yield f"{WIDE}-{name}-{number}", {s.name: draw(s, base, (seed, number)) for s in specs}


def _has_word(spec: InputSpec, far: int) -> bool:
    """Whether the range holds values that are as far apart, on its own side of 0 or the other."""
    return _is_in_range(spec, far) or _is_in_range(spec, -2 * far)


def _is_in_range(spec: InputSpec, value: int) -> bool:
    return spec.values is not None and spec.values.low <= value <= spec.values.high


def _draw_products(
    specs: Sequence[InputSpec], base: NamedFeed, seed: int
) -> Iterator[tuple[str, dict[str, Array]]]:
    """Odd values from 2^12 to 2^13: products of two have 25 or 26 bits."""
    import numpy as np

    arrays = {}
    for spec in specs:
        if _is_in_range(spec, _FACTOR):
            generator = make_generator(seed, "products", spec.name)
            half = generator.integers(_FACTOR // 4, _FACTOR // 2, base.arrays[spec.name].shape)
            arrays[spec.name] = np.asarray(2 * half + 1, dtype=spec.dtype)
    if arrays:
        yield from _combine_bools(f"{WIDE}-products", base, arrays)


def _combine_bools(
    name: str, base: NamedFeed, arrays: Mapping[str, Array]
) -> Iterator[tuple[str, dict[str, Array]]]:
    """The feed with each bool input all true and all false, in combination where they are few.

    What chooses between values would hide the wide ones.
    """
    import numpy as np

    bools = [one for one, array in base.arrays.items() if array.dtype == bool]
    few = len(bools) <= _COMBINED
    ways = list(itertools.product((True, False), repeat=len(bools) if few else 1))
    for number, way in enumerate(ways, start=1):
        chosen = zip(bools, way if few else way * len(bools), strict=True)
        held = {one: np.full_like(base.arrays[one], value) for one, value in chosen}
        yield name if number == 1 else f"{name}-{number}", {**held, **arrays}


def _word_values(spec: InputSpec, base: NamedFeed, key: tuple[int, ...], far: int) -> Array:
    """Values around 0, or as many less than 2^32 away as keeps any two of them below that.

    Where the range ends before, the same values twice as far down, or up.
    """
    import numpy as np

    shape = base.arrays[spec.name].shape
    generator = make_generator(*key, "words", spec.name)
    near = generator.integers(-_GROUP, _GROUP, shape)
    least, most = (int(spec.values.low), int(spec.values.high)) if spec.values else (0, 0)
    away = near + (far - 4 * _GROUP if far > 0 else far + 4 * _GROUP)
    shift = 0 if _is_in_range(spec, far) else -2 * far
    near = near if shift else np.maximum(near, least)
    found = np.where(generator.random(shape) < 0.5, near, away) + shift  # noqa: PLR2004 - a half
    return np.asarray(np.clip(found, least, most)).astype(spec.dtype)


def _upper_values(spec: InputSpec, base: NamedFeed, key: tuple[int, ...]) -> Array:
    """Values in the upper half of the range: quotients and products of floats round there."""
    high = int(spec.values.high) if spec.values else 0
    generator = make_generator(*key, "near", spec.name)
    low = int(spec.values.low) if spec.values else 0
    found: Array = generator.integers(
        max(low, high // 2 if high > 0 else low), high, base.arrays[spec.name].shape, endpoint=True
    )
    return found.astype(spec.dtype)


def _alternate_ends(spec: InputSpec, base: NamedFeed, place: int) -> Array:
    """The ends of the range in turn along each axis, the other way round in every second input."""
    import numpy as np

    low, high = (int(spec.values.low), int(spec.values.high)) if spec.values else (0, 0)
    shape = base.arrays[spec.name].shape
    turn = np.indices(shape).sum(axis=0) % 2 == place % 2
    return np.asarray(np.where(turn, high, low)).astype(spec.dtype)


def _multiple_values(spec: InputSpec, base: NamedFeed, key: tuple[int, ...]) -> Array:
    """Multiples of `_DIVISORS` in the upper half of the range, less 1 first, in turn over feeds."""
    import numpy as np

    seed, number = key
    high = int(spec.values.high) if spec.values else 0
    size = base.arrays[spec.name].size
    divisors = make_generator(seed, "divisors", spec.name).permutation(
        np.array(_DIVISORS, np.int64)
    )
    turn = np.arange((number - 1) * size, number * size) % (2 * len(divisors))
    step = divisors[turn % len(divisors)]
    low = int(spec.values.low) if spec.values else 0
    least = max(low, high // 2 if high > 0 else low)
    generator = make_generator(*key, "multiples", spec.name)
    found = generator.integers(least, high, size, endpoint=True) // step * step
    found -= turn < len(divisors)
    held = np.clip(found, least, high).reshape(base.arrays[spec.name].shape)
    return np.asarray(held).astype(spec.dtype)


def _draw_ends(
    specs: Sequence[InputSpec], base: NamedFeed
) -> Iterator[tuple[str, dict[str, Array]]]:
    """All elements at the highest value, and at the lowest: what is summed of them overflows."""
    import numpy as np

    ranged = [(spec, spec.values) for spec in specs if spec.values is not None]
    ends = {
        "high": {spec.name: int(values.high) for spec, values in ranged},
        "low": {spec.name: int(values.low) for spec, values in ranged if values.low < 0},
    }
    for name, found in ends.items():
        if found:
            arrays = {one: np.full_like(base.arrays[one], value) for one, value in found.items()}
            yield from _combine_bools(f"{WIDE}-{name}", base, arrays)


def _range_extent(spec: InputSpec) -> int:
    values = spec.values
    return 0 if values is None else int(max(abs(values.low), abs(values.high)))


def edge_values(spec: InputSpec) -> tuple[int, ...]:
    """The edge values within the input's range, the most telling first.

    A power of two is exact in any float, so the first is a little below the end of the range.
    """
    if spec.values is None:
        return ()
    low, high = int(spec.values.low), int(spec.values.high)
    ends = (high - _ODD if high > EXACT else high, low + _ODD if low < -EXACT else low, high, low)
    edges = (ends[0], ends[1], -7, *ends[2:], *_EDGES)
    return tuple(dict.fromkeys(edge for edge in edges if low <= edge <= high))


def _log_values(
    spec: InputSpec, base: NamedFeed, key: tuple[int, ...], most: int, edges: Sequence[int]
) -> Array:
    """Values within the range and `-most..most`, even over magnitudes, with the edges in front."""
    import numpy as np

    low, high = (spec.values.low, spec.values.high) if spec.values else (0, 0)
    shape = base.arrays[spec.name].shape
    generator = make_generator(*key, WIDE, spec.name)
    exponents = generator.uniform(0, math.log2(most + 1), shape)
    found = np.floor(2.0**exponents).astype(np.int64) - 1
    signs = generator.integers(0, 1, shape, endpoint=True) if low < 0 else np.zeros(shape, np.int64)
    found = np.where(signs == 1, -found, found)
    flat = np.atleast_1d(found).reshape(-1)
    places = generator.permutation(flat.size)[: len(edges)]
    flat[places] = np.asarray(edges[: places.size], dtype=np.int64)
    held = np.clip(flat, max(int(low), -most), min(int(high), most))
    return np.asarray(held.reshape(shape)).astype(spec.dtype)
