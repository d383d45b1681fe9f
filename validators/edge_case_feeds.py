"""Edge-case feeds: corners and odd sizes, repeated rows, values at the edge, NaN and Inf."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from ..core.signature import FLOATS, Dim, InputSpec, Signature
from .edge_case_values import EDGE_CHANGES, OUT_OF_RANGE, UNDEFINED_MASKS, EdgeCase
from .feed_values import make_generator
from .feeds import NEGATED, OPT, FeedDrawer, NamedFeed

if TYPE_CHECKING:
    from ..core.contract import Array, Feed

REPEATED = "repeated"
BATCHES = (1, 2, 3, 7)
_COMBINED = 3  # dynamic dims of which all corners are drawn: 8 less `min` and `max`
_FEW_ROWS = 2  # rows of a feed that is about values alone: what they do shows on few
_BETWEEN = 3  # primes of each dim, between its lowest and its highest size
_LARGE_ROW = 1 << 16  # elements: of rows as large as an image of 150 x 150, one has to do


def draw_edge_case_feeds(
    signature: Signature, *, seed: int = 0, samples: Feed | None = None
) -> tuple[NamedFeed, ...]:
    """Draw the feeds on which conversions go wrong that hold on usual ones.

    Sizes: `corner:<dims>` (the named dims at their highest, the others at their lowest), or
    `lowest:<dim>`, `highest:<dim>` and `pairs-<n>` where there are more than three; `odd`;
    `nearly-max`; `prime-1`, `-2` and `-3` (every dim at a prime between its ends, with few rows);
    `batch-1`, `-2`, `-3` and `-7`, the other dims at a prime below their opt. Rows: `repeated`.
    Values, with one or two rows: `zeros`, `constant`, `small`, `large`, `lowest`, `highest`,
    `signs`, `one-hot`, `mask-left`, `mask-holes`, `mask-one`, `mask-empty`; `max-highest` has one
    row of the largest sizes, and integers at their highest, of which sums are largest. What would
    say nothing new (a size that is drawn already, values as another feed has) is left out.

    Raises:
        UsageError: the samples do not fit the signature.
    """
    drawer = FeedDrawer.of(signature, seed, samples)
    sized = tuple(_draw_sized(drawer))
    return (
        *sized,
        *_draw_repeated(drawer),
        *_draw_edge_values(drawer),
        *_draw_largest_sums(drawer),
    )


def _draw_largest_sums(drawer: FeedDrawer) -> Iterator[NamedFeed]:
    """`max-highest`, where dims are dynamic and integers are more than a mask."""
    dims, batch = drawer.signature.free_dims, find_batch_dim(drawer.signature)
    sizes = {name: dim.low if dim == batch else dim.high for name, dim in dims.items()}
    high: dict[str, float] = {}
    for spec in drawer.signature.inputs:
        values = drawer.values_at(spec, sizes)
        whole = spec.dtype not in FLOATS and spec.dtype != "bool" and not values.masks(spec)
        free = spec.values is None or not (spec.values.follows or spec.values.order)
        if whole and free and values.high is not None and values.high > 1:
            high[spec.name] = values.high
    if sizes and high:
        feed = drawer.feed("max-highest", sizes, "value")
        for name, value in high.items():
            feed.arrays[name][...] = value
            if (
                value % 2 == 0 and feed.arrays[name].ndim
            ):  # sums of even numbers alone have zeros at their end to be lost
                feed.arrays[name][..., :1] -= 1
        yield feed


def find_batch_dim(signature: Signature) -> Dim | None:
    """The dim that counts rows: the first input's first dim that is dynamic, if there is one.

    What it follows from, where it is equal to another; a multiple of another counts no rows.
    """
    firsts = (spec.dims[0] for spec in signature.inputs if spec.dims)
    counts = (dim for dim in firsts if dim.dynamic and (not dim.relation or dim.relation.equal))
    return next((dim.free for dim in counts), None)


def _draw_sized(drawer: FeedDrawer) -> Iterator[NamedFeed]:
    """Feeds at sizes that no other feed has for certain."""
    dims = drawer.signature.free_dims
    if not dims:
        return
    seen = [feed.sizes for feed in drawer.corners().values()]
    for name, sizes, kind in (
        *_corner_sizes(dims), *_odd_sizes(drawer), *_near_highest_sizes(drawer),
        *_prime_sizes(drawer), *_batch_sizes(drawer)
    ):  # fmt: skip
        if sizes not in seen:
            seen.append(sizes)
            yield drawer.feed(name, sizes, kind)


_SizedFeeds: TypeAlias = Iterator[tuple[str, dict[str, int], str]]  # name, sizes, kind


def _corner_sizes(dims: Mapping[str, Dim]) -> _SizedFeeds:
    """Every combination of lowest and highest; each dim alone where these would be too many."""
    if len(dims) > _COMBINED:
        opt = {name: dim.opt for name, dim in dims.items()}
        for name, dim in dims.items():
            yield f"lowest:{name}", {**opt, name: dim.low}, "shape"
            yield f"highest:{name}", {**opt, name: dim.high}, "shape"
        yield from _opposite_sizes(dims)
        return
    for ends in itertools.product((False, True), repeat=len(dims)):
        high = [name for name, end in zip(dims, ends, strict=True) if end]
        sizes = {name: dim.high if name in high else dim.low for name, dim in dims.items()}
        yield f"corner:{'+'.join(high)}", sizes, "shape"


def _opposite_sizes(dims: Mapping[str, Dim]) -> _SizedFeeds:
    """Feeds in which, taken together, each two dims are once at opposite ends.

    The number of two dims differs in one binary digit at least: a feed for each digit, with the
    dims high that have it set, and one with these low. `min` and `max` are the other two cases.
    """
    for digit in range((len(dims) - 1).bit_length()):
        for up in (True, False):
            sizes = {
                name: dim.high if (bool(number >> digit & 1) is up) else dim.low
                for number, (name, dim) in enumerate(dims.items())
            }
            yield f"pairs-{2 * digit + (1 if up else 2)}", sizes, "shape"


def _odd_sizes(drawer: FeedDrawer) -> _SizedFeeds:
    """Every dim but the batch at an odd size near its opt: what halves it must round."""
    batch = find_batch_dim(drawer.signature)
    sizes: dict[str, int] = {}
    for name, dim in drawer.signature.free_dims.items():
        odd = [size for size in (dim.opt + 1, dim.opt - 1, dim.opt + 2, dim.opt - 2) if size % 2]
        fit = [size for size in odd if dim.low <= size <= dim.high and size not in sizes.values()]
        sizes[name] = dim.opt if dim == batch or not fit else fit[0]
    yield "odd", sizes, "shape"


def _near_highest_sizes(drawer: FeedDrawer) -> _SizedFeeds:
    """Every dim but the batch one below its highest: off by one where a length is compared."""
    batch = find_batch_dim(drawer.signature)
    dims = drawer.signature.free_dims
    if any(dim != batch for dim in dims.values()):
        low = {name: dim.low for name, dim in dims.items()}
        high = {n: dim.high - 1 for n, dim in dims.items() if dim != batch and dim.high > dim.low}
        yield "nearly-max", {**low, **high}, "shape"


def _prime_sizes(drawer: FeedDrawer) -> _SizedFeeds:
    """Every dim but the batch at primes between its ends, each step the same factor further.

    A capture that is right at the ends and at the example alone is wrong at some of these: a prime
    is a multiple of nothing. Dims take them in another order each, so that no two rise together.
    A batch that varies alone has them itself, above those of `BATCHES`.
    """
    batch = find_batch_dim(drawer.signature)
    dims = drawer.signature.free_dims
    varied = {name: dim for name, dim in dims.items() if dim != batch}
    found = {name: primes_between(dim.low, dim.high) for name, dim in varied.items()}
    if not varied and batch is not None and batch.name and batch.high > BATCHES[-1]:
        found = {batch.name: primes_between(max(batch.low, BATCHES[-1]), batch.high, most=1)}
    if not any(found.values()):
        return
    for number in range(max(map(len, found.values()))):
        sizes = {name: dim.low for name, dim in dims.items()}
        for place, (name, primes) in enumerate(found.items()):
            if primes:
                sizes[name] = primes[(number + place) % len(primes)]
        yield f"prime-{number + 1}", sizes, "shape"


def primes_between(low: int, high: int, *, most: int = _BETWEEN) -> list[int]:
    """Up to so many primes above `low` and below `high`, rising, spread by equal factors."""
    least = max(low, 1)
    found: set[int] = set()
    for part in range(1, most + 1):
        aim = round(least * (high / least) ** (part / (most + 1)))
        near = (aim + by * side for by in range(high - low) for side in (1, -1))
        free = (size for size in near if low < size < high and size not in found)
        found.update(itertools.islice(filter(_is_prime, free), 1))
    return sorted(found)


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % factor for factor in range(2, math.isqrt(number) + 1))


def _batch_sizes(drawer: FeedDrawer) -> _SizedFeeds:
    batch = find_batch_dim(drawer.signature)
    shorter = _short_sizes(drawer.signature, batch)
    for size in BATCHES:
        if batch is not None and batch.name and batch.low <= size <= batch.high:
            yield f"batch-{size}", {**shorter, batch.name: size}, "batch"


def _short_sizes(signature: Signature, batch: Dim | None) -> dict[str, int]:
    """Every dim but the batch at a prime below its opt: feeds about rows need no long ones."""
    dims = signature.free_dims
    primes = {name: primes_between(dim.low, dim.opt, most=1) for name, dim in dims.items()}
    return {
        name: dim.opt if dim == batch or not primes[name] else primes[name][0]
        for name, dim in dims.items()
    }


def _draw_repeated(drawer: FeedDrawer) -> Iterator[NamedFeed]:
    """One row again and again: whatever the artifact makes of it, it is the same in each."""
    import numpy as np

    batch = find_batch_dim(drawer.signature)
    if batch is None or batch.name is None or batch.high < 2:  # noqa: PLR2004 - one row repeats nothing
        return
    if any(_is_multiple(spec, batch) for spec in drawer.signature.inputs):
        return  # its rows are no multiple of one row's
    rows = min(batch.high, max(batch.low, BATCHES[2]))
    base = drawer.feed(OPT, {**_short_sizes(drawer.signature, batch), batch.name: rows})
    arrays = {
        spec.name: np.repeat(base.arrays[spec.name][:1], rows, axis=0)
        if spec.dims and spec.dims[0].dynamic and spec.dims[0].free == batch
        else base.arrays[spec.name]
        for spec in drawer.signature.inputs
    }
    yield NamedFeed(name=REPEATED, arrays=arrays, sizes=base.sizes, kind="batch")


def _is_multiple(spec: InputSpec, batch: Dim) -> bool:
    """Whether the input's first dim is another number than the batch, but follows from it."""
    first = next(iter(spec.dims), None)
    relation = None if first is None else first.relation
    return relation is not None and relation.base == batch.name and not relation.equal


def _draw_edge_values(drawer: FeedDrawer) -> Iterator[NamedFeed]:
    """`opt` with few rows, its values made hard in every input that can hold such values."""
    base = draw_few_rows(drawer)
    seen = [base, replace(drawer.draw_negated(base), name=NEGATED)]
    hiding = frozenset(spec.name for spec in drawer.signature.inputs if spec.hides)
    for name, change in EDGE_CHANGES.items():
        arrays = dict(base.arrays)
        for spec in drawer.signature.inputs:
            hard = EdgeCase(
                name=name,
                values=drawer.values_at(spec, base.sizes),
                key=(drawer.seed, name, spec.name),
            )
            changed = change(hard, spec, arrays[spec.name])
            if changed is not None:
                arrays[spec.name] = hard.values.in_order(changed)
        if not any(_is_same_arrays(arrays, feed.arrays) for feed in seen):
            kind = "mask" if name in UNDEFINED_MASKS else "value"
            seen.append(
                NamedFeed(
                    name=name,
                    arrays=arrays,
                    sizes=base.sizes,
                    kind=kind,
                    beyond=name in OUT_OF_RANGE,
                    hiding=hiding,
                )
            )
            yield seen[-1]


def draw_few_rows(drawer: FeedDrawer) -> NamedFeed:
    """`opt` with one row or two, as feeds have that are about values alone."""
    sizes = {name: dim.opt for name, dim in drawer.signature.free_dims.items()}
    batch = find_batch_dim(drawer.signature)
    if batch is not None and batch.name:
        rows = 1 if _row_size(drawer.signature, batch) > _LARGE_ROW else _FEW_ROWS
        sizes[batch.name] = max(batch.low, min(batch.opt, rows))
    return drawer.feed(OPT, sizes)


def _row_size(signature: Signature, batch: Dim) -> int:
    """Elements of one row over all inputs, at the opt sizes."""
    return sum(
        math.prod(dim.opt for dim in spec.dims if not dim.name or dim.free != batch)
        for spec in signature.inputs
    )


def _is_same_arrays(one: Feed, other: Feed) -> bool:
    import numpy as np

    return all(np.array_equal(one[name], other[name]) for name in one)


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
