"""Dims: fixed, in a range, or following another dim; how to resolve and check them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .errors import ErrorCode, UsageError, unknown_name_error

if TYPE_CHECKING:
    from .signature import InputSpec, Signature, ValueRange

# bounds of a dim given by name alone until `pipeline/domain_search.py` chooses them
UNBOUNDED = (1, 4, 8)


@dataclass(frozen=True, kw_only=True)
class Relation:
    """A size as `times * base + plus`, where `base` is the name of a dim that varies freely.

    A sum has `others`, names and factors of more such dims: `past+seq`. `stated` is True if no
    input has the base as a dim of its own, so that its range is written with the relation:
    `h=32*(k=1..8)`.
    """

    base: str
    times: int = 1
    plus: int = 0
    stated: bool = False
    others: tuple[tuple[str, int], ...] = ()

    @property
    def terms(self) -> tuple[tuple[str, int], ...]:
        """The names and factors of all dims in it."""
        return (self.base, self.times), *self.others

    @property
    def bases(self) -> tuple[str, ...]:
        """The names of all dims in it."""
        return tuple(name for name, _ in self.terms)

    @property
    def equal(self) -> bool:
        """Whether the two dims are equal."""
        return (self.times, self.plus, self.others) == (1, 0, ())

    def size(self, base: int) -> int:
        """Return the size that follows from the only base's."""
        return self.size_at({self.base: base})

    def size_at(self, sizes: Mapping[str, int]) -> int:
        """Return the size that follows from those of all bases, by name."""
        return self.plus + sum(times * sizes[name] for name, times in self.terms)

    def base_of(self, size: int) -> int | None:
        """Return the base's size for this one; None if there is none."""
        if self.others:
            raise RuntimeError(f"{self} has no single base")
        found, rest = divmod(size - self.plus, self.times)
        return None if rest or found < 0 else found

    def fix(self, sizes: Mapping[str, int]) -> Relation:
        """Return the relation with these bases replaced by their sizes; one base must remain."""
        kept = [term for term in self.terms if term[0] not in sizes]
        plus = self.plus + sum(n * sizes[name] for name, n in self.terms if name in sizes)
        return _relation_of(dict(kept), plus)

    def of(self, base: str) -> str:
        """Format the relation for this text of the base, as in `--input`: `32*k`, `2*seq+1`."""
        terms = ((base, self.times), *self.others)
        text = "+".join(name if times == 1 else f"{times}*{name}" for name, times in terms)
        return f"{text}{f'{self.plus:+d}' if self.plus else ''}"

    def __str__(self) -> str:
        return self.of(self.base)


def _relation_of(terms: Mapping[str, int], plus: int) -> Relation:
    """Return the relation with these factors of dims, by name."""
    (base, times), *others = terms.items()
    return Relation(base=base, times=times, plus=plus, others=tuple(others))


@dataclass(frozen=True, kw_only=True)
class Dim:
    """One dimension. Fixed if it has no name; otherwise any size in low..high.

    `opt` is the size to capture at and to tune for. `bounded` is False for a dim given by name
    alone, until its bounds are chosen: the search for them begins at opt. `chosen` means that
    modelc found the bounds, and the user did not state them. With a `relation`, low, opt and high
    follow another dim's.
    """

    low: int
    opt: int
    high: int
    name: str | None = None
    bounded: bool = True
    relation: Relation | None = None
    chosen: bool = False

    @classmethod
    def of_size(cls, size: int) -> Dim:
        """Return a dim that is always `size`."""
        return cls(low=size, opt=size, high=size)

    @classmethod
    def any_size(cls, name: str) -> Dim:
        """Return a dim of any size."""
        low, opt, high = UNBOUNDED
        return cls(name=name, low=low, opt=opt, high=high, bounded=False)

    @classmethod
    def follow(cls, name: str, relation: Relation, *bases: Dim) -> Dim:
        """Return a dim whose size follows the bases in their order; they have no relation.

        Without a name of its own it is named after its relation: `2*seq`.

        Raises:
            UsageError: its least size would be below 1, or below 0 if all bases may be 0.
        """
        ends = [(base.low, base.opt, base.high) for base in bases]
        low, opt, high = (
            relation.size_at(dict(zip(relation.bases, sizes, strict=True)))
            for sizes in zip(*ends, strict=True)
        )
        if low < min(max(base.low for base in bases), 1):
            last, times = bases[-1], relation.terms[-1][1]
            where = " and ".join(f"{base.name} is {base.low}" for base in bases)
            raise UsageError(
                f"dim {name!r} would be {low} where {where}: {name}={relation}",
                hint=f"start {last.name} at {last.low - (low - 1) // times}",
            )
        return cls(
            name=name if name.isidentifier() else str(relation), low=low, opt=opt, high=high,
            bounded=all(base.bounded for base in bases), relation=relation,
            chosen=any(base.chosen for base in bases),
        )  # fmt: skip

    @property
    def dynamic(self) -> bool:
        """Whether the artifact must accept several sizes here."""
        return self.name is not None and (not self.bounded or self.low != self.high)

    @property
    def is_sum(self) -> bool:
        """Whether its size follows from those of several dims."""
        return self.relation is not None and bool(self.relation.others)

    @property
    def bases(self) -> tuple[str, ...]:
        """The names of the dims that vary here; of itself without a relation."""
        if self.relation is not None:
            return self.relation.bases
        return (self.name,) if self.name else ()

    @property
    def free(self) -> Dim:
        """The dim that varies here: the base of its relation, or itself. Not of a sum."""
        if self.relation is None:
            return self
        ends = (self.relation.base_of(size) for size in (self.low, self.opt, self.high))
        low, opt, high = (1 if size is None else size for size in ends)
        return Dim(
            name=self.relation.base, low=low, opt=opt, high=high, bounded=self.bounded,
            chosen=self.chosen,
        )  # fmt: skip

    def size(self, sizes: Mapping[str, int]) -> int:
        """Return its size for these sizes of free dims, by name; its opt if they lack it."""
        if self.relation is None:
            return sizes.get(self.name or "", self.opt)
        known = all(name in sizes for name in self.relation.bases)
        return self.relation.size_at(sizes) if known else self.opt

    def free_size(self, size: int) -> int | None:
        """Return the size of the free dim where this one has `size`; None if there is none."""
        return size if self.relation is None else self.relation.base_of(size)

    def __str__(self) -> str:
        """Format the dim such that `--input` parses the same dim."""
        fixed = self.bounded and self.low == self.high and self.relation is None
        if self.name is None or (fixed and not self.name.isidentifier()):
            return str(self.opt)
        if self.relation is not None:
            base = f"({self.free})" if self.relation.stated and self.bounded else None
            text = self.relation.of(base or self.relation.base)
            return text if self.name == str(self.relation) else f"{self.name}={text}"
        if not self.bounded:
            return self.name
        middle = "" if self.opt == default_opt(self.low, self.high) else f"{self.opt}.."
        return f"{self.name}={self.low}..{middle}{self.high}"


def default_opt(low: int, high: int) -> int:
    """Return the middle of a range, but never 0: the default size to capture at."""
    return max((low + high) // 2, 1)


def settle_dims(dims: Iterable[Dim]) -> list[Dim]:
    """Return the dims in order with their ranges; a range applies to all dims of its name.

    Raises:
        UsageError: a relation is circular, or leads to a size below 1.
    """
    dims = list(dims)
    known = _collect_known(dims)
    plain: dict[str | None, Dim] = {}
    for dim in dims:
        if dim.relation is None and not (dim.name in plain and plain[dim.name].bounded):
            plain[dim.name] = dim
    return [_settle_dim(dim, known, plain) for dim in dims]


def _collect_known(dims: Iterable[Dim]) -> dict[str, Dim]:
    """Return each name's most specific definition: a relation, a range, or the largest sample."""
    known: dict[str, Dim] = {}
    for dim in dims:
        if dim.name is not None:
            _keep_strongest(known, dim)
    for dim in dims:
        if dim.relation is None or dim.is_sum:
            continue
        if known.get(dim.relation.base, dim.free).relation is None:
            _keep_strongest(known, dim.free)
    return known


def _keep_strongest(known: dict[str, Dim], dim: Dim) -> None:
    name = dim.name or ""
    if name not in known or _definition_rank(dim) > _definition_rank(known[name]):
        known[name] = dim


def _definition_rank(dim: Dim) -> tuple[bool, bool, int]:
    return dim.relation is not None, dim.bounded, dim.high


def _settle_dim(dim: Dim, known: Mapping[str, Dim], plain: Mapping[str | None, Dim]) -> Dim:
    chosen = known.get(dim.name or "", dim)
    if dim.name is None or (dim.relation is None and dim.bounded):
        return dim
    if dim.relation is None and chosen.relation is None:
        return chosen
    relation = dim.relation or chosen.relation
    if relation is None:
        raise RuntimeError(f"dim {dim.name} has neither range nor relation")
    root = _root_relation(relation, known, (dim.name,))
    fixed = {n: known[n].opt for n in root.bases if known[n].bounded and not known[n].dynamic}
    if 0 < len(fixed) < len(root.bases):
        root = root.fix(fixed)
    if root.others:
        return Dim.follow(dim.name, root, *(known[name] for name in root.bases))
    base = known[root.base]
    relation = replace(root, stated=root.base not in plain)
    if dim.relation is not None and dim.relation.stated and dim.bounded:
        given = plain.get(root.base, base)
        check_one_range(dim.free, given if given.bounded else base)
    return Dim.follow(dim.name, relation, base)


def _root_relation(relation: Relation, known: Mapping[str, Dim], seen: tuple[str, ...]) -> Relation:
    """Return the relation to dims without a relation: `a=2*b` with `b=3*c` is `a=6*c`."""
    terms: Counter[str] = Counter()
    plus = relation.plus
    for base, times in relation.terms:
        if base in seen:
            raise UsageError(
                f"dims follow each other in a circle: {' from '.join((*seen, base))}",
                hint="give one of them a range, as batch=1..8",
            )
        if base not in known:
            raise UsageError(
                f"dim {seen[0]!r} is {relation}, and no input has the dim {base!r}",
                hint=f"write {base} where an input has it, as x[{base}=1..8]",
                option="input",
            )
        further = known[base].relation
        if further is None:
            terms[base] += times
            continue
        root = _root_relation(further, known, (*seen, base))
        terms.update({name: times * factor for name, factor in root.terms})
        plus += times * root.plus
    return _relation_of(terms, plus)


def check_one_range(given: Dim, base: Dim) -> None:
    """Raise a UsageError if two dims of one name have different ranges."""
    if given != base:
        raise UsageError(
            f"dim {given.name!r} has two ranges: {base} and {given}",
            hint=f"give the range once and write plain '{given.name}' elsewhere",
            code=ErrorCode.CONFLICTING_RANGES,
        )


def resolve_bounds(signature: Signature) -> Signature:
    """Resolve the least and the greatest of all values that follow a dim.

    Raises:
        UsageError: no input has the dim, or some of its sizes leave no values.
    """
    dims = {
        **signature.free_dims,
        **{dim.name: dim for dim in signature.dims_with_names() if dim.name},
    }
    return replace(signature, inputs=tuple(_resolve_spec(spec, dims) for spec in signature.inputs))


def _resolve_spec(spec: InputSpec, dims: Mapping[str, Dim]) -> InputSpec:
    values = spec.values
    if values is None or not values.follows:
        return spec
    for base in values.bases:
        if base not in dims:
            raise unknown_name_error(
                f"dim in the values of {spec.name}:", base, list(dims) or ["(none)"]
            )
    _check_not_empty(spec, values, dims)
    low, high = values.low_dim, values.high_dim
    return replace(
        spec,
        values=replace(
            values,
            low=values.low if low is None else low.size(dims[low.base].low),
            high=values.high if high is None else high.size(dims[high.base].high),
        ),
    )


def _check_not_empty(spec: InputSpec, values: ValueRange, dims: Mapping[str, Dim]) -> None:
    """Check that values exist: both ends are linear in the sizes, so all corners suffice."""
    free = {
        (dims.get(name) or dims[base].free).name or "": dims.get(name) or dims[base].free
        for base in values.bases
        for name in dims[base].bases
    }
    for sizes in itertools.product(*((dim.low, dim.high) for dim in free.values())):
        roots = dict(zip(free, sizes, strict=True))
        at = {base: dims[base].size(roots) for base in dict.fromkeys(values.bases)}
        found = values.at(at)
        if found.low > found.high:
            where = ", ".join(f"{name} is {size}" for name, size in at.items())
            raise UsageError(
                f"input {spec.name!r} has no values {values} where {where}",
                hint="start the dim at a larger size, or widen the values",
                code=ErrorCode.INVALID_VALUE,
            )


def bisect_boundary(accepts: Callable[[int], bool], good: int, bad: int) -> int:
    """Return the last accepted integer between an accepted and a rejected one."""
    while abs(good - bad) > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if accepts(middle) else (good, middle)
    return good
