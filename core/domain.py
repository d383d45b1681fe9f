"""The domain of a verdict, and fitting dims to a condition."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from .dims import Dim, Relation
from .signature import InputSpec, Signature


@dataclass(frozen=True, kw_only=True)
class Domain:
    """The inputs for which an artifact was judged, and the runtime settings used.

    `inputs` have an interval or a relation for each dim, a dtype, and for integers the range of
    values; modelc found the dims and ranges with `chosen`, the user stated the others. `compute` is
    the share of the artifact's work by compute dtype, 0 to 1; empty if the format has one
    precision. `settings` are those of the judging runtime, by its own names.
    """

    inputs: tuple[InputSpec, ...]
    compute: dict[str, float] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def free_dims(self) -> dict[str, Dim]:
        """Return the dims whose sizes may be chosen, by name."""
        return Signature(inputs=self.inputs).free_dims

    def contains(self, sizes: Mapping[str, int]) -> bool:
        """Return whether free dims of these sizes lie in it; unknown names are ignored."""
        return all(
            dim.low <= sizes[name] <= dim.high
            for name, dim in self.free_dims.items()
            if name in sizes
        )

    def describe(self) -> str:
        """Describe what varies: `batch 1..8, ids 0..99; chosen: height 32..256 step 32`."""
        stated, chosen = ([*self._texts(chosen=of)] for of in (False, True))
        parts = [", ".join(stated)] if stated else []
        if chosen:
            text = ", ".join(chosen)
            parts.append(f"chosen: {text}" if stated else f"{text} (chosen)")
        return "; ".join(parts) or "fixed shapes"

    def describe_chosen(self) -> str:
        """Describe the dims and ranges that modelc found; a dim with one size as `height 224`."""
        return ", ".join(self._texts(chosen=True))

    def as_input(self) -> str:
        """Return the inputs in the form of `--input`, as embedded in artifacts."""
        return " ".join(str(spec) for spec in self.inputs)

    def _texts(self, *, chosen: bool) -> Iterator[str]:
        """Describe each dim with its interval, then each integer input with its values."""
        known: dict[str | None, Dim] = {
            dim.name: dim for spec in self.inputs for dim in spec.dims if dim.name is not None
        }
        for dim in known.values():
            if dim.chosen is chosen and (dim.dynamic or chosen):
                yield _describe_dim(dim, known)
        for spec in self.inputs:
            values = spec.values
            if (
                values is not None
                and values.chosen is chosen
                and not spec.dtype.startswith("float")
            ):
                yield f"{spec.name} {str(values)[1:-1]}"


def _describe_dim(dim: Dim, known: Mapping[str | None, Dim]) -> str:
    """Return `batch 1..8`, `height 32..256 step 32`, `height 224`; `n=seq+1` if `seq` is known."""
    relation = dim.relation
    if dim.low == dim.high:
        return f"{dim.name} {dim.low}"
    if relation is not None and all(name in known for name in relation.bases):
        return str(relation) if dim.name == str(relation) else f"{dim.name}={relation}"
    step = f" step {relation.times}" if relation is not None and relation.times > 1 else ""
    return f"{dim.name} {dim.low}..{dim.high}{step}"


Sizes: TypeAlias = Mapping[str, int]
Holds: TypeAlias = Callable[[Sizes], bool]

_ALL_SIZES = 128  # sizes of one dim that are all tested; of a longer range some
_END_SIZES = 16  # sizes tested one by one at each end of a longer range
_SPREAD_SIZES = 48  # sizes between these ends
_FAR_SIZE = 1 << 12  # the largest tested size of a dim without bounds
_MAX_PAIRS = 12  # sizes of each of two dims that are tested together


@dataclass(frozen=True, kw_only=True)
class DimFit:
    """What the dims must satisfy: a sentence, and what to write.

    `interval` is the free dim with its lowest and highest size, if the sizes form an interval.
    """

    said: str
    write: str
    interval: tuple[str, int, int] | None = None


def sample_sizes(dim: Dim) -> list[int]:
    """Return the sizes of a dim to test: all of a short range, ends and samples of others."""
    high = dim.high if dim.bounded else max(dim.high, _FAR_SIZE)
    if high - dim.low < _ALL_SIZES:
        return list(range(dim.low, high + 1))
    step = (high - dim.low) / _SPREAD_SIZES
    between = (dim.low + int(step * number) for number in range(_SPREAD_SIZES))
    odd = (dim.low + int(step * number) | 1 for number in range(_SPREAD_SIZES))
    powers = (1 << bit for bit in range(high.bit_length()))
    ends = (*range(dim.low, dim.low + _END_SIZES), *range(high - _END_SIZES, high + 1))
    found = {*between, *odd, *powers, *ends, dim.opt}
    return sorted(size for size in found if dim.low <= size <= high)


def sample_points(signature: Signature, base: Sizes) -> Iterator[dict[str, int]]:
    """Return the points to test: each free dim varied alone, every two together, all at an end."""
    dims = signature.free_dims
    for name, dim in dims.items():
        for size in sample_sizes(dim):
            yield {**base, name: size}
    for one, other in itertools.combinations(dims, 2):
        for size in _few_sizes(dims[one]):
            for second in _few_sizes(dims[other]):
                yield {**base, one: size, other: second}
    yield {name: dim.low for name, dim in dims.items()}
    yield {name: dim.high for name, dim in dims.items()}


def _few_sizes(dim: Dim) -> list[int]:
    sizes = sample_sizes(dim)
    step = max(len(sizes) // _MAX_PAIRS, 1)
    return sorted({*sizes[::step], *sizes[:3], *sizes[-2:]})


def fit_dims(holds: Holds, signature: Signature, base: Sizes) -> DimFit | None:
    """Return what the dims must satisfy for `holds`, which is true at `base`; None if unknown."""
    dims = signature.free_dims
    for name, dim in dims.items():
        sizes = sample_sizes(dim)
        good = [size for size in sizes if holds({**base, name: size})]
        if len(good) < len(sizes):
            found = (
                _fit_relation(holds, signature, base, name)
                or _fit_alone(signature, dim, good, sizes)
                or _fit_around(holds, signature, base, name)
            )
            if found is not None:
                return found
    return None


def _fit_around(holds: Holds, signature: Signature, base: Sizes, name: str) -> DimFit | None:
    """Return the sizes of a dim around the base's until the condition fails, for any other dims.

    Sizes that are excluded one by one leave no other interval.
    """
    dim, size = signature.free_dims[name], base[name]
    most = dim.high if dim.bounded else max(dim.high, _FAR_SIZE)

    def good(size: int) -> bool:
        return holds({**base, name: size})

    low = size - sum(1 for _ in itertools.takewhile(good, range(size - 1, dim.low - 1, -1)))
    high = size + sum(1 for _ in itertools.takewhile(good, range(size + 1, most + 1)))
    inside = (one for one in sample_points(signature, base) if low <= one[name] <= high)
    if low == high or not all(map(holds, inside)):
        return None
    text = f"dim {name!r} holds in {low}..{high} around {size}, not in all of {dim.low}..{dim.high}"
    return replace(range_fit(signature, dim, low, high), said=text)


def _fit_relation(holds: Holds, signature: Signature, base: Sizes, name: str) -> DimFit | None:
    """Return the relation of this dim to another, or of another to it, if the condition is one."""
    for other in signature.free_dims:
        if other == name:
            continue
        for first, second in ((name, other), (other, name)):
            relation = _find_relation(holds, signature, base, (first, second))
            if relation is not None:
                return relation_fit(signature, second, relation)
    return None


def _find_relation(
    holds: Holds, signature: Signature, base: Sizes, names: tuple[str, str]
) -> Relation | None:
    """Return the second dim's relation to the first, if each size of the first allows just one."""
    first, second = names
    dims = signature.free_dims
    found: list[tuple[int, int]] = []
    for size in _few_sizes(dims[first]):
        near = {size, 2 * size, size + 1, size - 1, *sample_sizes(dims[second])}
        good = [s for s in sorted(near) if s > 0 and holds({**base, first: size, second: s})]
        if len(good) > 1:
            return None
        found += [(size, good[0])] if good else []
    if len(found) < 3:  # noqa: PLR2004 - any two points are on a line
        return None
    (x, y), (x_end, y_end) = found[0], found[-1]
    times, rest = divmod(y_end - y, x_end - x)
    relation = Relation(base=first, times=times, plus=y - times * x)
    fits = times >= 1 and not rest and all(relation.size(a) == b for a, b in found)
    return relation if fits else None


def relation_fit(signature: Signature, name: str, relation: Relation) -> DimFit:
    """Return the fit of a dim that follows another."""
    places = [
        spec.name for spec in signature.inputs if any(dim.bases == (name,) for dim in spec.dims)
    ]
    where = ", ".join(places)
    return DimFit(
        said=f"dim {name!r} of {where} must be {relation}",
        write=f"write {name}={relation} in --input of {where}",
    )


def _fit_alone(
    signature: Signature, dim: Dim, good: Sequence[int], sizes: Sequence[int]
) -> DimFit | None:
    """Describe the allowed sizes of one dim: one size, a range, or multiples."""
    name = dim.name or ""
    if not good:
        return None
    if len(good) == 1:
        return single_size_fit(name, good[0])
    between = [size for size in sizes if good[0] <= size <= good[-1]]
    if between == list(good):
        return range_fit(signature, dim, good[0], good[-1])
    step = math.gcd(*(size - good[0] for size in good))
    if step > 1 and [s for s in between if (s - good[0]) % step == 0] == list(good):
        return multiples_fit(signature, dim, step=step, ends=(good[0], good[-1]))
    return None


def single_size_fit(name: str, size: int) -> DimFit:
    """Return the fit of a dim with one size only."""
    return DimFit(
        said=f"dim {name!r} is fixed at {size} by the model's code", write=f"--static {name}"
    )


def range_fit(signature: Signature, dim: Dim, low: int, high: int) -> DimFit:
    """Return the fit of a dim with fewer sizes than asked for."""
    relation, given = f"{low}..{high}", f"{dim.low}..{dim.high}"
    names = ", ".join(_dim_names(signature, dim))
    text = f"write {dim.name}={relation}" if dim.name in signature.dynamic_dims else (
        f"write {dim.name}={relation} in the relation of {names}"
    )  # fmt: skip
    return DimFit(
        said=f"dim {dim.name!r} holds in {relation} only, not in {given}",
        write=text,
        interval=(dim.name or "", low, high),
    )


def _dim_names(signature: Signature, dim: Dim) -> list[str]:
    """Return the inputs' dims that are this one or follow it."""
    return [name for name, one in signature.dynamic_dims.items() if one.bases == (dim.name,)]


def multiples_fit(
    signature: Signature, dim: Dim, *, step: int, ends: tuple[int, int], number: int = 0
) -> DimFit:
    """Return the fit of a dim of which every `step`-th size is allowed, within `ends`.

    Such dims of one model get the numbers 0, 1, 2: each has a factor of its own.
    """
    rest = ends[0] % step
    low, high = ((end - rest) // step for end in ends)
    low = max(low, 1)
    factor = _free_name(signature, number)
    parts = []
    for one in (signature.dynamic_dims[name] for name in _dim_names(signature, dim)):
        own = one.relation or Relation(base=factor)
        base = f"({factor}={low}..{high})" if dim.bounded and low < high else factor
        relation = Relation(base=factor, times=own.times * step, plus=own.times * rest + own.plus)
        parts.append(f"{one.name}={relation.of(base)}")
    what = f"a multiple of {step}" if not rest else f"{step}*{factor}+{rest}"
    return DimFit(said=f"dim {dim.name!r} must be {what}", write=f"write {', '.join(parts)}")


def _free_name(signature: Signature, number: int) -> str:
    """Return `k`, `k2`, `k3` and so on: the first that is not a dim's name."""
    known = {*signature.dynamic_dims, *signature.free_dims}
    free = (name for name in ("k", *(f"k{i}" for i in range(2, 99))) if name not in known)
    return next(itertools.islice(free, number, None))
