"""Settles dims that are written apart: a range given once, and relations to other dims."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from .dims import Dim, Relation
from .errors import UsageError


def settle_dims(dims: Iterable[Dim]) -> list[Dim]:
    """The dims in order, each with its range: one given once holds wherever the name stands.

    Raises:
        UsageError: a relation leads back to itself, or below a size of 1.
    """
    dims = list(dims)
    known = _collect_known(dims)
    plain: dict[str | None, Dim] = {}
    for dim in dims:
        if dim.relation is None and not (dim.name in plain and plain[dim.name].bounded):
            plain[dim.name] = dim
    return [_settle_dim(dim, known, plain) for dim in dims]


def _collect_known(dims: Iterable[Dim]) -> dict[str, Dim]:
    """What says most of each name: a relation, then a range, then the largest sample."""
    known: dict[str, Dim] = {}
    for dim in dims:
        if dim.name is not None:
            _keep_strongest(known, dim)
    for dim in dims:
        if dim.relation is not None and known.get(dim.relation.base, dim.free).relation is None:
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
    base = known[root.base]
    relation = replace(root, stated=root.base not in plain)
    if dim.relation is not None and dim.relation.stated and dim.bounded:
        given = plain.get(root.base, base)
        _check_one_range(dim.free, given if given.bounded else base)
    return Dim.follow(dim.name, relation, base)


def _root_relation(relation: Relation, known: Mapping[str, Dim], seen: tuple[str, ...]) -> Relation:
    """The relation to a dim that has none itself: `a=2*b` with `b=3*c` is `a=6*c`."""
    if relation.base in seen:
        raise UsageError(
            f"dims follow from each other in a circle: {' from '.join((*seen, relation.base))}",
            hint="give one of them a range, as batch=1..8",
        )
    further = known[relation.base].relation
    if further is None:
        return relation
    composed = Relation(
        base=further.base,
        times=relation.times * further.times,
        plus=relation.times * further.plus + relation.plus,
    )
    return _root_relation(composed, known, (*seen, relation.base))


def _check_one_range(given: Dim, base: Dim) -> None:
    if given != base:
        raise UsageError(
            f"dim {given.name!r} has two ranges: {base} and {given}",
            hint=f"give the range once and write plain '{given.name}' elsewhere",
        )
