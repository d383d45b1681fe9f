"""Draw the feeds to judge an artifact on, and the sizes to capture at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ..core.contract import Array, Feed
from ..core.errors import ErrorCode, UsageError
from ..core.findings import FeedRecord
from ..core.signature import FLOATS, Dim, InputSpec, Relation, RowOrder, Signature
from .feed_values import ValueDistribution, check_samples, distribution_of, make_generator

LEAST_FEEDS = 5
SAMPLE, OPT, NEGATED, VARY = "sample", "opt", "negated", "vary:"
_REDRAWS = 16  # a small mask may repeat by chance; after sixteen repeats the input cannot vary


@dataclass(frozen=True, kw_only=True)
class NamedFeed:
    """One feed: its name, its arrays by input, and the sizes of its free dims.

    `kind` and `beyond` are as in `FeedRecord`; `hiding` names the masks in which True hides a
    position.
    """

    name: str
    arrays: Feed
    sizes: dict[str, int]
    kind: str = "sample"
    beyond: bool = False
    hiding: frozenset[str] = frozenset()

    @property
    def elements(self) -> int:
        """Number of elements of all arrays."""
        return sum(array.size for array in self.arrays.values())

    @property
    def basic(self) -> bool:
        """Whether a model must accept the feed; if eager rejects it, that is an error."""
        return self.name in (SAMPLE, "min", OPT, "max")

    def record(self, skipped: str = "") -> FeedRecord:
        """Return the manifest record; `skipped` is the reason if the feed is not judged."""
        return FeedRecord(
            name=self.name, kind=self.kind, sizes=self.sizes, skipped=skipped, beyond=self.beyond
        )


def describe_named_feed(feed: NamedFeed) -> str:
    """Format the feed for a message: `max (batch=8, seq=128)`."""
    sizes = ", ".join(f"{name}={size}" for name, size in feed.sizes.items())
    return f"{feed.name} ({sizes})" if sizes else feed.name


def draw_feeds(
    signature: Signature, *, count: int = LEAST_FEEDS, seed: int = 0, samples: Feed | None = None
) -> tuple[NamedFeed, ...]:
    """Draw the feeds that every model is judged on; see also `draw_edge_case_feeds`.

    In order: `sample` (the user's own), `min`, `opt`, `max` (without dynamic dims only `opt`),
    `negated` (`opt` with its floats flipped, if there are floats), `seed-1`, `seed-2`, ... at
    random sizes up to `count` feeds; then, with several inputs, `vary:<input>` (`opt` with one
    input redrawn) for each input that can vary. An array depends only on the seed, the names of the
    feed and the input, its shape and its values, not on other feeds.

    Raises:
        UsageError: `count` is below 5, or the samples do not fit the signature.
    """
    if count < LEAST_FEEDS:
        raise UsageError(
            f"{count} feeds are too few to judge on, at least {LEAST_FEEDS} are drawn",
            hint=f"ask for {LEAST_FEEDS} or more",
            code=ErrorCode.INVALID_VALUE,
        )
    drawer = FeedDrawer.of(signature, seed, samples)
    feeds = [] if samples is None else [_make_sample_feed(signature, samples)]
    corners = drawer.corners()
    opt = corners[OPT]
    feeds += corners.values()
    if any(spec.dtype in FLOATS for spec in signature.inputs):
        feeds.append(drawer.draw_negated(opt))
    for number in range(1, count - len(feeds) + 1):
        feeds.append(drawer.draw_seeded(f"seed-{number}"))
    return (*feeds, *drawer.draw_varied(opt))


def find_unranged(signature: Signature, samples: Feed | None) -> tuple[str, ...]:
    """Return the integer inputs that are drawn as 0 and 1 for lack of a value range and a sample.

    Bools are never among them, nor is uint8, which is drawn over 0..255.
    """
    known = samples or {}
    return tuple(
        spec.name
        for spec in signature.inputs
        if spec.values is None
        and spec.name not in known
        and spec.dtype not in (*FLOATS, "uint8", "bool")
    )


def draw_example_feed(signature: Signature, seed: int = 0, samples: Feed | None = None) -> Feed:
    """Draw the feed to capture at: the opt sizes, changed where they would mislead a capture.

    As far as the ranges allow, each dynamic dim is at least 2 (a size of 1 broadcasts) and no two
    have the same size (a capture may take equal sizes for one dim). Samples whose sizes meet this
    are used unchanged; otherwise similar arrays are drawn.

    Raises:
        UsageError: the samples do not fit the signature.
    """
    if samples is not None:
        sample = _make_sample_feed(signature, samples)
        if is_unambiguous(signature, sample.sizes):
            return sample.arrays
    return (
        FeedDrawer.of(signature, seed, samples)
        .feed("example", choose_example_sizes(signature))
        .arrays
    )


def _make_sample_feed(signature: Signature, samples: Feed) -> NamedFeed:
    arrays, sizes = check_samples(signature, samples)
    return NamedFeed(name=SAMPLE, arrays=arrays, sizes=sizes)


@dataclass(frozen=True, kw_only=True)
class FeedDrawer:
    """Draws feeds of one signature from one seed.

    `values` holds the distribution of each input at any sizes; see `values_at`.
    """

    signature: Signature
    seed: int
    values: Mapping[str, ValueDistribution]

    @classmethod
    def of(cls, signature: Signature, seed: int, samples: Feed | None) -> FeedDrawer:
        """Create a drawer of values like the samples' or as the signature declares."""
        arrays = {} if samples is None else check_samples(signature, samples)[0]
        values = {
            spec.name: distribution_of(spec, arrays.get(spec.name)) for spec in signature.inputs
        }
        return cls(signature=signature, seed=seed, values=values)

    def values_at(self, spec: InputSpec, sizes: Mapping[str, int]) -> ValueDistribution:
        """Return the distribution of the input at these sizes of the free dims."""
        if spec.values is None or not spec.values.follows:
            found, last = self.values[spec.name], spec.dims[-1].relation if spec.dims else None
            if last is None or not last.others or found.order is not RowOrder.ASCENDING:
                return found
            # What is at the left of a sum comes first: masks hide a part of that only.
            first, times = last.terms[0]
            return replace(found, padding=times * sizes[first])
        bounds = spec.values.at(self.signature.sizes_by_name(sizes))
        return replace(distribution_of(replace(spec, values=bounds), None), follows=True)

    def values_in(self, spec: InputSpec, arrays: Feed) -> ValueDistribution:
        """Return the distribution of the input at the sizes of a feed's arrays."""
        free: dict[str, int] = {}
        for one in self.signature.inputs:
            for dim, size in zip(one.dims, arrays[one.name].shape, strict=True):
                if dim.name and not dim.is_sum:
                    base = dim.free_size(size)
                    free[dim.free.name or ""] = dim.free.opt if base is None else base
        return self.values_at(spec, free)

    def array(self, feed: str, spec: InputSpec, sizes: Mapping[str, int]) -> Array:
        """Draw one input of the named feed."""
        shape = [dim.size(sizes) for dim in spec.dims]
        values, generator = self.values_at(spec, sizes), make_generator(self.seed, feed, spec.name)
        if values.masks(spec):
            return values.draw_mask(spec, shape, generator, feed)
        return values.draw(shape, generator)

    def feed(self, name: str, sizes: dict[str, int], kind: str = "shape") -> NamedFeed:
        """Draw the named feed at these sizes."""
        arrays = {spec.name: self.array(name, spec, sizes) for spec in self.signature.inputs}
        return NamedFeed(name=name, arrays=arrays, sizes=sizes, kind=kind)

    def corners(self) -> dict[str, NamedFeed]:
        """Draw `min`, `opt` and `max`: all dims at their lowest, opt and highest."""
        dims = self.signature.free_dims
        pick: dict[str, Callable[[Dim], int]] = {
            "min": lambda dim: dim.low,
            OPT: lambda dim: dim.opt,
            "max": lambda dim: dim.high,
        }
        return {
            name: self.feed(name, {key: size(dim) for key, dim in dims.items()})
            for name, size in pick.items()
            if dims or name == OPT
        }

    def at_ends(self, base: NamedFeed, names: Sequence[str]) -> Iterator[Feed]:
        """Yield the feed with these inputs filled with their lowest, then their highest value."""
        import numpy as np

        specs = [spec for spec in self.signature.inputs if spec.name in names]
        for end in (min, max):
            arrays = dict(base.arrays)
            for spec in specs:
                values = self.values_at(spec, base.sizes)
                known = [one for one in (values.low, values.high) if one is not None]
                if known:
                    arrays[spec.name] = np.full_like(arrays[spec.name], end(known))
            yield arrays

    def draw_negated(self, opt: NamedFeed) -> NamedFeed:
        """Return `opt` with its floats mirrored."""
        arrays = dict(opt.arrays)
        for spec in self.signature.inputs:
            if spec.dtype in FLOATS:
                arrays[spec.name] = self.values_at(spec, opt.sizes).mirror(arrays[spec.name])
        return NamedFeed(name=NEGATED, arrays=arrays, sizes=opt.sizes, kind="value")

    def draw_seeded(self, name: str) -> NamedFeed:
        """Draw a feed at random sizes."""
        sizes: dict[str, int] = {}
        for key, dim in self.signature.free_dims.items():
            generator = make_generator(self.seed, name, "size of", key)
            sizes[key] = int(generator.integers(dim.low, dim.high, endpoint=True))
        return self.feed(name, sizes, "seed")

    def draw_varied(self, opt: NamedFeed) -> Iterator[NamedFeed]:
        """Yield `opt` with one input redrawn, for each input that can vary."""
        import numpy as np

        for spec in self.signature.inputs if len(self.signature.inputs) > 1 else ():
            name = f"{VARY}{spec.name}"
            for attempt in range(_REDRAWS):
                again = self.array(f"{name}#{attempt}", spec, opt.sizes)
                if not np.array_equal(again, opt.arrays[spec.name]):
                    arrays = {**opt.arrays, spec.name: again}
                    yield NamedFeed(name=name, arrays=arrays, sizes=opt.sizes, kind="vary")
                    break


# Sizes to capture at, which a capture cannot take for a constant or for another dim.


_CAPTURE_LIMIT = 1 << 10  # upper limit for a dim without bounds


def choose_example_sizes(signature: Signature) -> dict[str, int]:
    """Choose a size for each free dim near its opt, all different if the ranges allow it."""
    followers = _list_followers(signature)
    options = {
        name: _nearest_sizes(dim, len(followers)) for name, dim in signature.free_dims.items()
    }
    found = _assign_sizes(list(options.items()), followers, {})
    return _assign_greedily(options, followers) if found is None else found


def is_unambiguous(signature: Signature, sizes: Mapping[str, int]) -> bool:
    """Whether a capture at these sizes cannot take a dim for a constant or for another dim."""
    dims, followers = signature.free_dims, _list_followers(signature)
    wide = all(sizes[name] >= 2 for name, dim in dims.items() if _largest_capture_size(dim) >= 2)  # noqa: PLR2004 - 1 broadcasts
    best = len(_all_sizes(choose_example_sizes(signature), followers))
    return wide and len(_all_sizes(sizes, followers)) >= best


def _list_followers(signature: Signature) -> list[Relation]:
    """Return the relation to free dims behind each distinct size of the inputs."""
    relations = (
        replace(dim.relation, stated=False) if dim.relation else Relation(base=dim.name or "")
        for dim in signature.dynamic_dims.values()
    )
    return list(dict.fromkeys(relations))


def _all_sizes(sizes: Mapping[str, int], followers: Iterable[Relation]) -> set[int]:
    return {relation.size_at(sizes) for relation in followers}


def _largest_capture_size(dim: Dim) -> int:
    return dim.high if dim.bounded else max(dim.high, _CAPTURE_LIMIT)


def _nearest_sizes(dim: Dim, count: int) -> list[int]:
    """Return the `count` sizes nearest to opt, at least 2 if the range allows it, larger first."""
    low, high = min(max(dim.low, 2), _largest_capture_size(dim)), _largest_capture_size(dim)
    around = range(max(low, dim.opt - count), min(high, max(low, dim.opt) + count) + 1)
    return sorted(around, key=lambda size: (abs(size - dim.opt), -size))[:count]


def _assign_sizes(
    options: Sequence[tuple[str, Sequence[int]]],
    followers: Sequence[Relation],
    sizes: dict[str, int],
) -> dict[str, int] | None:
    """Add one size per further free dim such that all input sizes differ; None if impossible."""
    if len(sizes) == len(options):
        return sizes
    name, choices = options[len(sizes)]
    for size in choices:
        at = {**sizes, name: size}
        known = [relation for relation in followers if at.keys() >= {*relation.bases}]
        if len(_all_sizes(at, known)) == len(known):
            found = _assign_sizes(options, followers, at)
            if found is not None:
                return found
    return None


def _assign_greedily(
    options: Mapping[str, Sequence[int]], followers: Sequence[Relation]
) -> dict[str, int]:
    """Choose for each dim in turn the nearest size not yet used; repeats a size if none is free."""
    sizes: dict[str, int] = {}
    for name, choice in options.items():
        known = [one for one in followers if sizes.keys() | {name} >= {*one.bases}]
        before = [one for one in known if name not in one.bases]
        new = [one for one in known if name in one.bases]
        used = _all_sizes(sizes, before)
        free = (s for s in choice if not used & _all_sizes({**sizes, name: s}, new))
        sizes[name] = next(free, choice[0])
    return sizes
