"""Draw feeds of wide integers, which formats that narrow int64 compute wrongly."""

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

WIDE = "wide"  # the kind of the feeds and the prefix of their names
EXACT = 2**24  # float32 represents integers up to here exactly
SMALL = 1023  # largest value of the first feed; most integers of users are below
# Formats fail at these magnitudes: int32, float32, int16, bytes, and just beyond. ONNX Runtime 1.24
# compares only the low words where int64 differ by 2^31 to 2^32 (Min, Sign).
_EDGES = (
    2**31 + 5, 2**24 + 1, -(2**31) - 5, -(2**24) - 1, 2**31, 2**32 - 1, -(2**32) + 1, 2**31 - 1,
    32768, -32769, 255, 7, -1,
)  # fmt: skip
_ODD = 87
_NEAR = 2  # number of feeds in the upper half of the range, and of multiples there
_DIVISORS = (60, 3600, 86400, 7, 10, 1000, 3, 24, 100, 1024)
_FACTOR = 2**13  # 32 products of two values below this fit into int32
_COMBINED = 3  # bool inputs to combine; with more, all are true or all are false
_WORD = 2**32
_GROUP = 8  # values to either side of a group's middle
_MOST = 4  # maximum number of feeds to spread the edges over if an input has few elements


def find_wide_inputs(signature: Signature) -> tuple[InputSpec, ...]:
    """Return the integer inputs whose range exceeds what the other feeds show.

    These are chosen ranges with a usual part, and any range beyond what float32 holds exactly.
    """
    return tuple(spec for spec in signature.inputs if _is_wide(spec))


def _is_wide(spec: InputSpec) -> bool:
    if spec.values is None or spec.dtype in FLOATS:
        return False
    if spec.values.follows or spec.values.order:
        return False
    if spec.values.chosen and spec.values.usual not in (None, (spec.values.low, spec.values.high)):
        return True
    return _range_extent(spec) > EXACT


def draw_wide_feeds(
    signature: Signature, *, seed: int = 0, samples: Feed | None = None
) -> tuple[NamedFeed, ...]:
    """Draw `wide-1`, `wide-2`, ... at opt sizes with few rows, with values of all magnitudes.

    All inputs that `find_wide_inputs` returns are wide at once; without such inputs, the result is
    empty.

    * `wide-1` has values up to 1023. `wide-2` and on have the edges of bytes, int16, float32 and
      int32 within the range, of both signs, and values spread evenly over magnitudes.
    * `wide-high` and `wide-low` hold the ends of the range, so that sums overflow.
    * `wide-apart` alternates the two ends, so that differences overflow.
    * `wide-near-1` and `-2` hold the upper half of the range.
    * `wide-words` and `wide-words-low` mix small values with some not quite 2^32 away: a comparison
      of the low words picks the wrong maximum or minimum.
    * `wide-products` has odd values of 13 bits, whose products float32 rounds and int32 holds.
    * `wide-quotients-1` and on have multiples of the usual divisors, of time and of tens, and their
      neighbours, each divisor at least once: a division in floats gives the wrong integer.

    With bool inputs, the ends and the products come with each bool all true and all false.
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
        for place, spec in enumerate(specs):  # a different edge for each input
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
            s.name: _word_values(s, base, (seed, far), far)
            for s in specs
            if _is_in_range(s, far) or _is_in_range(s, -2 * far)  # on either side of 0
        }
        if arrays:
            yield f"{WIDE}-{name}", arrays


def _draw_upper_half(
    specs: Sequence[InputSpec], base: NamedFeed, seed: int
) -> Iterator[tuple[str, dict[str, Array]]]:
    """Yield feeds of the upper half of the range: any values, and neighbours of multiples.

    Only beyond 2^24 does float32 round the neighbour of a multiple to the multiple.
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


def _is_in_range(spec: InputSpec, value: int) -> bool:
    return spec.values is not None and spec.values.low <= value <= spec.values.high


def _draw_products(
    specs: Sequence[InputSpec], base: NamedFeed, seed: int
) -> Iterator[tuple[str, dict[str, Array]]]:
    """Yield odd values from 2^12 to 2^13, whose products have 25 or 26 bits."""
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
    """Yield the feed with each bool input all true and all false, in combination if they are few.

    Mixed bools that select between values could hide the wide ones.
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
    """Draw values around 0 or a little less than 2^32 away, so that any two differ by less.

    If the range ends before that, shift the same values to the other side of 0.
    """
    import numpy as np

    shape = base.arrays[spec.name].shape
    generator = make_generator(*key, "words", spec.name)
    near = generator.integers(-_GROUP, _GROUP, shape)
    least, most = _ends(spec)
    away = near + (far - 4 * _GROUP if far > 0 else far + 4 * _GROUP)
    shift = 0 if _is_in_range(spec, far) else -2 * far
    near = near if shift else np.maximum(near, least)
    found = np.where(generator.random(shape) < 0.5, near, away) + shift  # noqa: PLR2004 - a half
    return np.asarray(np.clip(found, least, most)).astype(spec.dtype)


def _upper_values(spec: InputSpec, base: NamedFeed, key: tuple[int, ...]) -> Array:
    """Draw values in the upper half of the range, where float quotients and products round."""
    generator = make_generator(*key, "near", spec.name)
    least, high = _upper_ends(spec)
    found: Array = generator.integers(least, high, base.arrays[spec.name].shape, endpoint=True)
    return found.astype(spec.dtype)


def _upper_ends(spec: InputSpec) -> tuple[int, int]:
    low, high = _ends(spec)
    return max(low, high // 2 if high > 0 else low), high


def _alternate_ends(spec: InputSpec, base: NamedFeed, place: int) -> Array:
    """Alternate the ends of the range along each axis, in opposite phase for every second input."""
    import numpy as np

    low, high = _ends(spec)
    turn = np.indices(base.arrays[spec.name].shape).sum(axis=0) % 2 == place % 2
    return np.asarray(np.where(turn, high, low)).astype(spec.dtype)


def _multiple_values(spec: InputSpec, base: NamedFeed, key: tuple[int, ...]) -> Array:
    """Draw multiples of `_DIVISORS` in the upper half, less 1 first, continuing over feeds."""
    import numpy as np

    seed, number = key
    size = base.arrays[spec.name].size
    divisors = make_generator(seed, "divisors", spec.name).permutation(
        np.array(_DIVISORS, np.int64)
    )
    turn = np.arange((number - 1) * size, number * size) % (2 * len(divisors))
    step = divisors[turn % len(divisors)]
    least, high = _upper_ends(spec)
    generator = make_generator(*key, "multiples", spec.name)
    found = generator.integers(least, high, size, endpoint=True) // step * step
    found -= turn < len(divisors)
    held = np.clip(found, least, high).reshape(base.arrays[spec.name].shape)
    return np.asarray(held).astype(spec.dtype)


def _draw_ends(
    specs: Sequence[InputSpec], base: NamedFeed
) -> Iterator[tuple[str, dict[str, Array]]]:
    """Yield all elements at the highest, then at the lowest value, so that sums overflow."""
    import numpy as np

    ends = {
        "high": {spec.name: _ends(spec)[1] for spec in specs},
        "low": {spec.name: _ends(spec)[0] for spec in specs if _ends(spec)[0] < 0},
    }
    for name, found in ends.items():
        if found:
            arrays = {one: np.full_like(base.arrays[one], value) for one, value in found.items()}
            yield from _combine_bools(f"{WIDE}-{name}", base, arrays)


def _ends(spec: InputSpec) -> tuple[int, int]:
    return (int(spec.values.low), int(spec.values.high)) if spec.values else (0, 0)


def _range_extent(spec: InputSpec) -> int:
    return max(map(abs, _ends(spec)))


def edge_values(spec: InputSpec) -> tuple[int, ...]:
    """Return the edge values within the input's range, the most effective first.

    A power of two is exact in any float, so the first is a little below the end of the range.
    """
    low, high = _ends(spec)
    ends = (high - _ODD if high > EXACT else high, low + _ODD if low < -EXACT else low, high, low)
    edges = (ends[0], ends[1], -7, *ends[2:], *_EDGES)
    return tuple(dict.fromkeys(edge for edge in edges if low <= edge <= high))


def _log_values(
    spec: InputSpec, base: NamedFeed, key: tuple[int, ...], most: int, edges: Sequence[int]
) -> Array:
    """Draw values in `-most..most`, even over magnitudes, with the edges at random places."""
    import numpy as np

    low, high = _ends(spec)
    shape = base.arrays[spec.name].shape
    generator = make_generator(*key, WIDE, spec.name)
    exponents = generator.uniform(0, math.log2(most + 1), shape)
    found = np.floor(2.0**exponents).astype(np.int64) - 1
    signs = generator.integers(0, 1, shape, endpoint=True) if low < 0 else np.zeros(shape, np.int64)
    found = np.where(signs == 1, -found, found)
    flat = np.atleast_1d(found).reshape(-1)
    places = generator.permutation(flat.size)[: len(edges)]
    flat[places] = np.asarray(edges[: places.size], dtype=np.int64)
    held = np.clip(flat, max(low, -most), min(high, most))
    return np.asarray(held.reshape(shape)).astype(spec.dtype)
