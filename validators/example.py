"""The sizes to capture at: none that a capture could take for a constant or for another dim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..core.signature import Dim, Relation, Signature

_FAR = 1 << 10  # a dim without bounds may take any size; this many are near enough to its opt


def example_sizes(signature: Signature) -> dict[str, int]:
    """A size for each free dim, near its opt: all sizes different if the ranges allow it."""
    followers = _followers(signature)
    options = {name: _nearest(dim, len(followers)) for name, dim in signature.free_dims.items()}
    found = _assign(list(options.items()), followers, frozenset())
    return _one_by_one(options, followers) if found is None else found


def telling(signature: Signature, sizes: Mapping[str, int]) -> bool:
    """Whether a capture at these sizes takes no dim for a constant or for another dim."""
    dims, followers = signature.free_dims, _followers(signature)
    wide = all(sizes[name] >= 2 for name, dim in dims.items() if _most(dim) >= 2)  # noqa: PLR2004 - 1 broadcasts
    best = len(_all_sizes(example_sizes(signature), followers))
    return wide and len(_all_sizes(sizes, followers)) >= best


def _followers(signature: Signature) -> list[tuple[str, Relation]]:
    """Each size that an input has: the free dim it follows from, and how. Equal ones once."""
    found = {
        (dim.free.name or "", dim.relation or Relation(base=dim.name or "")): None
        for dim in signature.dynamic_dims.values()
    }
    unique = {(base, relation.times, relation.plus): (base, relation) for base, relation in found}
    return list(unique.values())


def _all_sizes(sizes: Mapping[str, int], followers: Sequence[tuple[str, Relation]]) -> set[int]:
    return {relation.size(sizes[base]) for base, relation in followers}


def _most(dim: Dim) -> int:
    """The largest size to capture at."""
    return dim.high if dim.bounded else max(dim.high, _FAR)


def _nearest(dim: Dim, count: int) -> list[int]:
    """The `count` sizes nearest to the opt, from 2 on where the range has any; larger first."""
    low, high = min(max(dim.low, 2), _most(dim)), _most(dim)
    around = range(max(low, dim.opt - count), min(high, max(low, dim.opt) + count) + 1)
    return sorted(around, key=lambda size: (abs(size - dim.opt), -size))[:count]


def _assign(
    options: Sequence[tuple[str, Sequence[int]]],
    followers: Sequence[tuple[str, Relation]],
    used: frozenset[int],
) -> dict[str, int] | None:
    """One size for each free dim, so that no two inputs' sizes are the same; None if none does."""
    if not options:
        return {}
    (name, sizes), rest = options[0], options[1:]
    mine = [relation for base, relation in followers if base == name]
    for size in sizes:
        taken = [relation.size(size) for relation in mine]
        if len({*taken, *used}) == len(taken) + len(used):
            found = _assign(rest, followers, used.union(taken))
            if found is not None:
                return {name: size, **found}
    return None


def _one_by_one(
    options: Mapping[str, Sequence[int]], followers: Sequence[tuple[str, Relation]]
) -> dict[str, int]:
    """As many different sizes as come when each dim takes its nearest that is free."""
    sizes: dict[str, int] = {}
    used: set[int] = set()
    for name, choice in options.items():
        mine = [relation for base, relation in followers if base == name]
        free = (s for s in choice if not used & {relation.size(s) for relation in mine})
        sizes[name] = next(free, choice[0])
        used |= {relation.size(sizes[name]) for relation in mine}
    return sizes
