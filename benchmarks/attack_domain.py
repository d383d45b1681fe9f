"""The domain that an artifact claims, read from the manifest, and feeds over the whole of it.

Nothing of modelc draws or reads here: the manifest is read as JSON, as its schema says.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Feed = dict[str, Array]
MOST = 4_000_000  # elements of one input
PRIMES = (
    2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 61, 71, 83, 97, 113, 127, 149, 173,
    199, 227, 251, 283, 313, 349, 383, 419, 457, 499, 541, 587, 631, 677, 727,
)  # fmt: skip
_SPECIAL = (
    *range(-9, 10), 255, 256, 2**24 + 1, *(sign * (2**31 + 5) for sign in (-1, 1)),
    2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**33 + 7, -(2**32), 2**40 - 3, -(2**40) + 3,
)  # fmt: skip
_MISSING = 0.2  # of the values of a feed with NaN
_SPIKES = 0.05
_ONES = 0.6
WIDE = 16  # a dim without bounds is tried up to here at least
FEEDS = 60


@dataclass(frozen=True, kw_only=True)
class Size:
    """A dim's size: a number, or a sum of `times * base` for bases that vary, and `plus`."""

    opt: int
    base: str | None = None
    times: int = 1
    plus: int = 0
    others: tuple[tuple[str, int], ...] = ()

    def at(self, sizes: Mapping[str, int]) -> int:
        """The size where the bases are these."""
        if self.base is None:
            return self.opt
        terms = ((self.base, self.times), *self.others)
        return self.plus + sum(times * sizes[name] for name, times in terms)


@dataclass(frozen=True, kw_only=True)
class Values:
    """The ends of what an input holds; an end may follow a dim."""

    low: float
    high: float
    low_size: Size | None = None
    high_size: Size | None = None

    def at(self, sizes: Mapping[str, int]) -> tuple[float, float]:
        """Both ends where the bases are these."""
        low = self.low if self.low_size is None else self.low_size.at(sizes)
        high = self.high if self.high_size is None else self.high_size.at(sizes)
        return low, high


@dataclass(frozen=True, kw_only=True)
class Input:
    """One input of the domain."""

    name: str
    dtype: str
    sizes: tuple[Size, ...]
    values: Values | None


@dataclass(frozen=True, kw_only=True)
class Domain:
    """All inputs, and by base the sizes low, opt, high."""

    inputs: tuple[Input, ...]
    bases: dict[str, tuple[int, int, int]]

    @property
    def summary(self) -> str:
        """`batch 1..8 (3), seq 1..6 (6), ids {0..39}`."""
        dims = [f"{name} {low}..{high} ({opt})" for name, (low, opt, high) in self.bases.items()]
        values = [
            f"{one.name} {{{one.values.low:.6g}..{one.values.high:.6g}}}"
            for one in self.inputs
            if one.values is not None
        ]
        return ", ".join([*dims, *values])


def read_domain(inputs: Sequence[Mapping[str, Any]]) -> Domain:
    """The domain from the `inputs` of a manifest's signature."""
    bases: dict[str, tuple[int, int, int]] = {}
    found = []
    for one in inputs:
        sizes = []
        for dim in one["dims"]:
            size = _size(dim)
            sizes.append(size)
            if (
                size.base is not None
                and not size.others
                and (size.base not in bases or not dim.get("relation"))
            ):
                bases[size.base] = _range(dim, size)
        values = _values(one.get("values"))
        found.append(Input(name=one["name"], dtype=one["dtype"], sizes=tuple(sizes), values=values))
    return Domain(inputs=tuple(found), bases=bases)


def _size(dim: Mapping[str, Any]) -> Size:
    relation = dim.get("relation")
    if relation:
        return Size(
            opt=dim["opt"], base=relation["base"], times=relation.get("times", 1),
            plus=relation.get("plus", 0),
            others=tuple((name, times) for name, times in relation.get("others", ())),
        )  # fmt: skip
    return Size(opt=dim["opt"], base=dim.get("name"))


def _range(dim: Mapping[str, Any], size: Size) -> tuple[int, int, int]:
    low, opt, high = (
        (dim[end] - size.plus) // max(size.times, 1) for end in ("low", "opt", "high")
    )
    if dim.get("bounded", True):
        return low, opt, high
    return min(low, 1), opt, max(high, 4 * opt, WIDE)


def _values(values: Mapping[str, Any] | None) -> Values | None:
    if values is None:
        return None
    ends = [values.get("low_dim"), values.get("high_dim")]
    low, high = (
        Size(opt=0, base=e["base"], times=e.get("times", 1), plus=e.get("plus", 0)) if e else None
        for e in ends
    )
    return Values(low=values["low"], high=values["high"], low_size=low, high_size=high)


def sizes_of(domain: Domain, rng: np.random.Generator, count: int = FEEDS) -> list[dict[str, int]]:
    """Corners, primes, neighbours of the ends, random sizes; `count` where there are so many."""
    bases = domain.bases
    if not bases:
        return [{}]
    names = list(bases)
    rows = [{name: bases[name][1] for name in names}]
    corners = itertools.islice(itertools.product((0, 2), repeat=len(names)), 16)
    rows += [{n: bases[n][end] for n, end in zip(names, ends, strict=True)} for ends in corners]
    for name in names:
        low, opt, high = bases[name]
        special = {low, low + 1, high - 1, high, opt - 1, opt + 1, 2 * opt, (low + high) // 2}
        inside = [p for p in PRIMES if low <= p <= high]
        special |= set(inside[:: max(1, len(inside) // 12)])
        if high - low <= FEEDS // 2:
            special |= set(range(low, high + 1))
        for size in sorted(s for s in special if low <= s <= high):
            rows.append({**rows[0], name: size})
            others = {n: int(rng.integers(bases[n][0], bases[n][2] + 1)) for n in names}
            if len(names) > 1:
                rows.append({**others, name: size})
    while len(rows) < count:
        rows.append({n: int(rng.integers(bases[n][0], bases[n][2] + 1)) for n in names})
    unique = list({tuple(row.items()): row for row in rows}.values())
    if len(unique) <= count:
        return unique
    kept = unique[:17]
    rest = rng.permutation(len(unique) - 17)[: max(count - 17, 0)]
    return kept + [unique[17 + int(at)] for at in sorted(rest)]


FLOATS = ("like", "like", "normal", "large", "small", "integers", "zeros", "ones", "positive",
          "ramp", "huge", "spike")  # fmt: skip
INTS = ("range", "range", "low", "high", "range", "zero-rows", "ones", "padded", "wide", "negative")


def feeds_of(  # noqa: PLR0913 - all but two are keywords
    domain: Domain,
    sample: Mapping[str, Array],
    *,
    seed: int,
    calm: bool = False,
    nan: bool = False,
    count: int = FEEDS,
) -> Iterator[tuple[str, Feed]]:
    """Feeds with a word on each; `calm` draws as the sample is, for lower precision."""
    rng = np.random.default_rng(seed)
    rows = sizes_of(domain, rng, count)
    turns = max(count, len(rows))
    for turn in range(turns):
        sizes = rows[turn % len(rows)]
        first = turn == 0 or calm
        of_floats = "like" if first else FLOATS[turn % len(FLOATS)]
        of_ints = "range" if first else INTS[turn % len(INTS)]
        feed = {}
        for one in domain.inputs:
            shape = tuple(size.at(sizes) for size in one.sizes)
            if int(np.prod(shape, dtype=np.int64)) > MOST or min(shape, default=1) < 0:
                break
            kinds = _Kinds(floats=of_floats, ints=of_ints, like=sample.get(one.name))
            array = _draw_array(one, sizes, kinds, rng)
            if nan and turn % 2 and array.dtype.kind == "f":
                array[rng.random(shape) < _MISSING] = np.nan
            feed[one.name] = array
        else:
            summary = " ".join(f"{n}={s}" for n, s in sizes.items())
            yield f"{summary} floats:{of_floats} ints:{of_ints}", feed


def feed_at(domain: Domain, sizes: Mapping[str, int], sample: Mapping[str, Array]) -> Feed:
    """One ordinary feed at these sizes, which may lie beyond the domain."""
    rng = np.random.default_rng(0)
    return {
        one.name: _draw_array(one, sizes, _Kinds(like=sample.get(one.name)), rng)
        for one in domain.inputs
    }


@dataclass(frozen=True, kw_only=True)
class _Kinds:
    """How one feed's floats and integers are drawn, and the sample that they may be like."""

    floats: str = "like"
    ints: str = "range"
    like: Array | None = None


def _draw_array(
    one: Input, sizes: Mapping[str, int], kinds: _Kinds, rng: np.random.Generator
) -> Array:
    shape = tuple(size.at(sizes) for size in one.sizes)
    ends = None if one.values is None else one.values.at(sizes)
    if one.dtype == "bool":
        return _mask(shape, kinds.ints, rng)
    if not one.dtype.startswith(("float", "bfloat")):
        return _ints(one.dtype, shape, kinds.ints, rng, ends)
    if ends is not None:
        return _floats_within(shape, kinds.floats, rng, ends).astype(one.dtype)
    return _floats(shape, kinds, rng).astype(one.dtype)


def _floats_within(
    shape: tuple[int, ...], kind: str, rng: np.random.Generator, ends: tuple[float, float]
) -> Array:
    low, high = ends
    fixed = {"zeros": min(max(0.0, low), high), "ones": high, "spike": low}
    return np.full(shape, fixed[kind]) if kind in fixed else np.asarray(rng.uniform(*ends, shape))


def _floats(shape: tuple[int, ...], kinds: _Kinds, rng: np.random.Generator) -> Array:
    like = kinds.like
    base = np.asarray(rng.standard_normal(shape))
    mean, spread = (0.0, 1.0) if like is None or not like.size else (like.mean(), like.std())
    mean, spread = (0.0, 1.0) if not np.isfinite(mean + spread) else (mean, spread or 1.0)
    made: dict[str, Callable[[], Array]] = {
        "like": lambda: base * spread + mean,
        "large": lambda: base * 30,
        "small": lambda: base * 1e-3,
        "integers": lambda: np.round(base * 3),
        "zeros": lambda: np.zeros(shape),
        "ones": lambda: np.ones(shape),
        "positive": lambda: np.abs(base) + 0.1,
        "ramp": lambda: np.arange(base.size).reshape(shape) / max(base.size, 1) * 4 - 2,
        "huge": lambda: base * 3e4,
        "spike": lambda: np.where(rng.random(shape) < _SPIKES, 8.0, base * 1e-2),
    }
    drawn: Array = made.get(kinds.floats, lambda: base)()
    return drawn


def _mask(shape: tuple[int, ...], kind: str, rng: np.random.Generator) -> Array:
    if kind in ("ones", "high"):
        return np.ones(shape, bool)
    if kind in ("low", "negative"):
        return np.zeros(shape, bool)
    found = np.asarray(rng.random(shape) < _ONES)
    if not shape:
        return found
    if kind == "padded":
        lengths = rng.integers(1, max(shape[-1], 1) + 1, (*shape[:-1], 1))
        return np.broadcast_to(np.arange(shape[-1]) < lengths, shape).copy()
    if kind == "zero-rows":
        found[0] = False
    elif shape[-1]:
        found[..., 0] = True
    return found


def _ints(
    dtype: str, shape: tuple[int, ...], kind: str, rng: np.random.Generator,
    ends: tuple[float, float] | None,
) -> Array:  # fmt: skip
    info = np.iinfo(dtype)
    if ends is not None:
        low, high = max(int(ends[0]), info.min), min(int(ends[1]), info.max)
        if (low, high) == (0, 1):
            return _mask(shape, kind, rng).astype(dtype)
        fixed = {"low": low, "high": high, "ones": min(max(1, low), high)}
        if kind in fixed:
            return np.full(shape, fixed[kind], dtype)
        special = [value for value in _SPECIAL if low <= value <= high]
        if kind in ("wide", "negative") and high >= 2**31:
            return rng.choice(np.array(special, np.int64), shape).astype(dtype)
        drawn: Array = rng.integers(low, max(high, low), shape, endpoint=True).astype(dtype)
        return drawn
    span = {
        "range": (0, 1), "low": (0, 3), "high": (0, 255), "zero-rows": (-3, 3), "ones": (1, 1),
        "padded": (0, 9), "wide": (-(2**40), 2**40), "negative": (-(2**31) - 5, 2**31 + 5),
    }[kind]  # fmt: skip
    low, high = max(span[0], info.min), min(span[1], info.max)
    found: Array = rng.integers(low, high, shape, np.int64, endpoint=True).astype(dtype)
    if kind == "wide" and found.size and info.max > 2**31 + 5:
        found.flat[0] = 2**31 + 5
    return found
