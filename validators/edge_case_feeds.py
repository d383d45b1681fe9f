"""Draw edge-case feeds: extreme and odd sizes, repeated rows, extreme values, NaN and Inf."""

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
_COMBINED = 3  # up to this many dynamic dims, draw all corners: 8 less `min` and `max`
_FEW_ROWS = 2  # rows of feeds that test values, where a few rows are enough
_BETWEEN = 3  # primes per dim, between its lowest and its highest size
_LARGE_ROW = 1 << 16  # elements; of rows this large (an image of 150 x 150) one is enough


def draw_edge_case_feeds(
    signature: Signature, *, seed: int = 0, samples: Feed | None = None
) -> tuple[NamedFeed, ...]:
    """Draw the feeds that expose conversions which are only right on usual feeds.

    Sizes: `corner:<dims>` (the named dims at their highest, the others at their lowest), or, with
    more than three dims, `lowest:<dim>`, `highest:<dim>` and `pairs-<n>`; `odd`; `nearly-max`;
    `prime-1`, `-2` and `-3` (every dim at a prime between its ends, with few rows); `batch-1`,
    `-2`, `-3` and `-7`, the other dims at a prime below their opt. Rows: `repeated`. Values, with
    one or two rows: `zeros`, `constant`, `small`, `large`, `lowest`, `highest`, `signs`, `one-hot`,
    `mask-left`, `mask-holes`, `mask-one`, `mask-empty`; `max-highest` has one row of the largest
    sizes with integers at their highest, where sums are largest; `mask-left-new` is a decoder's
    padded prompt. Feeds that repeat the sizes or values of another feed are omitted.

    Raises:
        UsageError: the samples do not fit the signature.
    """
    drawer = FeedDrawer.of(signature, seed, samples)
    return (
        *_draw_sized(drawer),
        *_draw_repeated(drawer),
        *_draw_edge_values(drawer),
        *_draw_padded(drawer),
        *_draw_largest_sums(drawer),
    )


def _draw_largest_sums(drawer: FeedDrawer) -> Iterator[NamedFeed]:
    """Yield `max-highest` if there are dynamic dims and integer inputs other than masks."""
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
            ):  # sums of even numbers end in zero bits and would hide a loss of precision
                feed.arrays[name][..., :1] -= 1
        yield feed


def find_batch_dim(signature: Signature) -> Dim | None:
    """Return the dim that counts rows: the free dim of the first input with a dynamic first dim.

    A first dim that equals another dim counts; a multiple of another does not.
    """
    firsts = (spec.dims[0] for spec in signature.inputs if spec.dims)
    counts = (dim for dim in firsts if dim.dynamic and (not dim.relation or dim.relation.equal))
    return next((dim.free for dim in counts), None)


def _draw_sized(drawer: FeedDrawer) -> Iterator[NamedFeed]:
    """Yield feeds at sizes that no other feed is certain to have."""
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
    """Yield every combination of lowest and highest, or, with many dims, each dim's ends alone."""
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
    """Yield sizes that put every two dims at opposite ends at least once.

    The indices of two dims differ in at least one binary digit: for each digit there is one feed
    with the dims high that have it set, and one with them low. `min` and `max` cover equal ends.
    """
    for digit in range((len(dims) - 1).bit_length()):
        for up in (True, False):
            sizes = {
                name: dim.high if (bool(number >> digit & 1) is up) else dim.low
                for number, (name, dim) in enumerate(dims.items())
            }
            yield f"pairs-{2 * digit + (1 if up else 2)}", sizes, "shape"


def _odd_sizes(drawer: FeedDrawer) -> _SizedFeeds:
    """Yield an odd size near opt for every dim but the batch, to test rounding in halved sizes."""
    batch = find_batch_dim(drawer.signature)
    sizes: dict[str, int] = {}
    for name, dim in drawer.signature.free_dims.items():
        odd = [size for size in (dim.opt + 1, dim.opt - 1, dim.opt + 2, dim.opt - 2) if size % 2]
        fit = [size for size in odd if dim.low <= size <= dim.high and size not in sizes.values()]
        sizes[name] = dim.opt if dim == batch or not fit else fit[0]
    yield "odd", sizes, "shape"


def _near_highest_sizes(drawer: FeedDrawer) -> _SizedFeeds:
    """Yield every dim but the batch one below its highest, to find off-by-one comparisons."""
    batch = find_batch_dim(drawer.signature)
    dims = drawer.signature.free_dims
    if any(dim != batch for dim in dims.values()):
        low = {name: dim.low for name, dim in dims.items()}
        high = {n: dim.high - 1 for n, dim in dims.items() if dim != batch and dim.high > dim.low}
        yield "nearly-max", {**low, **high}, "shape"


def _prime_sizes(drawer: FeedDrawer) -> _SizedFeeds:
    """Yield primes between the ends of every dim but the batch, spaced by equal factors.

    A prime is not a multiple of any size, so these sizes expose a capture that is right only at the
    ends and at the example. Each dim starts at another prime so that no two rise together. A batch
    that is the only dynamic dim takes a prime above `BATCHES`.
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
    """Return up to `most` primes strictly between `low` and `high`, spaced by equal factors."""
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
    """Return a prime below opt for every dim but the batch, as feeds about rows can be short."""
    dims = signature.free_dims
    primes = {name: primes_between(dim.low, dim.opt, most=1) for name, dim in dims.items()}
    return {
        name: dim.opt if dim == batch or not primes[name] else primes[name][0]
        for name, dim in dims.items()
    }


def _draw_repeated(drawer: FeedDrawer) -> Iterator[NamedFeed]:
    """Yield a feed that repeats one row; the artifact must give the same result for each."""
    import numpy as np

    batch = find_batch_dim(drawer.signature)
    if batch is None or batch.name is None or batch.high < 2:  # noqa: PLR2004 - one row
        return
    firsts = (spec.dims[0].relation for spec in drawer.signature.inputs if spec.dims)
    if any(one and batch.name in one.bases and not one.equal for one in firsts):
        return  # an input with a multiple of the batch's rows does not repeat with them
    rows = min(batch.high, max(batch.low, BATCHES[2]))
    base = drawer.feed(OPT, {**_short_sizes(drawer.signature, batch), batch.name: rows})
    arrays = {
        spec.name: np.repeat(base.arrays[spec.name][:1], rows, axis=0)
        if spec.dims and spec.dims[0].dynamic and spec.dims[0].bases == (batch.name,)
        else base.arrays[spec.name]
        for spec in drawer.signature.inputs
    }
    yield NamedFeed(name=REPEATED, arrays=arrays, sizes=base.sizes, kind="batch")


def _draw_edge_values(drawer: FeedDrawer) -> Iterator[NamedFeed]:
    """Yield `opt` with few rows and edge-case values in every input that can hold them."""
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
            kind, beyond = "mask" if name in UNDEFINED_MASKS else "value", name in OUT_OF_RANGE
            feed = replace(base, name=name, arrays=arrays, kind=kind, beyond=beyond, hiding=hiding)
            seen.append(feed)
            yield feed


def _draw_padded(drawer: FeedDrawer) -> Iterator[NamedFeed]:
    """Yield a feed with padding in what is new of a sum, where what comes before may be empty.

    It is the prompt of a decoder, in which only the first row is padded.
    """
    low, batch = drawer.signature.low_sizes, find_batch_dim(drawer.signature)
    short = _short_sizes(drawer.signature, batch)
    for spec in drawer.signature.inputs:
        relation = spec.dims[-1].relation if spec.dims else None
        if relation is None or not relation.others or low[relation.base] or len(spec.dims) == 1:
            continue
        sizes = {**short, relation.base: 0}
        if drawer.values_at(spec, sizes).padding is not None:
            feed = drawer.feed("mask-left-new", sizes, "mask")
            mask = feed.arrays[spec.name]
            mask[0, ..., : mask.shape[-1] // 2] = 0
            yield replace(feed, beyond=True)


def draw_few_rows(drawer: FeedDrawer) -> NamedFeed:
    """Draw `opt` with one or two rows, for feeds that test values."""
    sizes = {name: dim.opt for name, dim in drawer.signature.free_dims.items()}
    batch = find_batch_dim(drawer.signature)
    if batch is not None and batch.name:
        row = sum(
            math.prod(dim.opt for dim in spec.dims if batch.name not in dim.bases)
            for spec in drawer.signature.inputs
        )
        rows = 1 if row > _LARGE_ROW else _FEW_ROWS
        sizes[batch.name] = max(batch.low, min(batch.opt, rows))
    return drawer.feed(OPT, sizes)


def _is_same_arrays(one: Feed, other: Feed) -> bool:
    import numpy as np

    return all(np.array_equal(one[name], other[name]) for name in one)


# Feeds with NaN and Inf, for models that test for them (imputation, sensor data cleanup).


NONFINITE = "nonfinite"  # the kind of the feeds
_SHARE = 0.125  # of the elements
_FILLS = {"nan": ("nan",), "inf": ("inf", "-inf")}


def draw_nonfinite_feeds(
    signature: Signature, *, seed: int = 0, samples: Feed | None = None
) -> tuple[NamedFeed, ...]:
    """Draw `nan` and `inf`: `opt` with few rows, an eighth of its floats NaN or +-Inf.

    Inputs with a declared range keep finite values. Returns nothing if no input can hold NaN or
    Inf.
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
    """Replace elements at random places, at least one with each fill."""
    import numpy as np

    generator = make_generator(*key)
    flat = np.atleast_1d(array.copy()).reshape(-1)
    count = min(max(int(flat.size * _SHARE), len(fills)), flat.size)
    places = generator.permutation(flat.size)[:count]
    flat[places] = np.resize(np.asarray([float(fill) for fill in fills], flat.dtype), count)
    return np.asarray(flat.reshape(array.shape))
