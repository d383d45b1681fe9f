"""The sizes to capture at: none that a capture could take for a constant or for another dim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..core.signature import Dim, Relation, Signature

# The sizes to capture at: none that a capture could take for a constant or for another dim.


_CAPTURE_LIMIT = (
    1 << 10
)  # a dim without bounds may take any size; this many are near enough to its opt


def choose_example_sizes(signature: Signature) -> dict[str, int]:
    """A size for each free dim, near its opt: all sizes different if the ranges allow it."""
    followers = _list_followers(signature)
    options = {
        name: _nearest_sizes(dim, len(followers)) for name, dim in signature.free_dims.items()
    }
    found = _assign_sizes(list(options.items()), followers, frozenset())
    return _assign_greedily(options, followers) if found is None else found


def is_unambiguous(signature: Signature, sizes: Mapping[str, int]) -> bool:
    """Whether a capture at these sizes takes no dim for a constant or for another dim."""
    dims, followers = signature.free_dims, _list_followers(signature)
    wide = all(sizes[name] >= 2 for name, dim in dims.items() if _largest_capture_size(dim) >= 2)  # noqa: PLR2004 - 1 broadcasts
    best = len(_all_sizes(choose_example_sizes(signature), followers))
    return wide and len(_all_sizes(sizes, followers)) >= best


def _list_followers(signature: Signature) -> list[tuple[str, Relation]]:
    """Each size that an input has: the free dim it follows from, and how. Equal ones once."""
    found = {
        (dim.free.name or "", dim.relation or Relation(base=dim.name or "")): None
        for dim in signature.dynamic_dims.values()
    }
    unique = {(base, relation.times, relation.plus): (base, relation) for base, relation in found}
    return list(unique.values())


def _all_sizes(sizes: Mapping[str, int], followers: Sequence[tuple[str, Relation]]) -> set[int]:
    return {relation.size(sizes[base]) for base, relation in followers}


def _largest_capture_size(dim: Dim) -> int:
    """The largest size to capture at."""
    return dim.high if dim.bounded else max(dim.high, _CAPTURE_LIMIT)


def _nearest_sizes(dim: Dim, count: int) -> list[int]:
    """The `count` sizes nearest to the opt, from 2 on where the range has any; larger first."""
    low, high = min(max(dim.low, 2), _largest_capture_size(dim)), _largest_capture_size(dim)
    around = range(max(low, dim.opt - count), min(high, max(low, dim.opt) + count) + 1)
    return sorted(around, key=lambda size: (abs(size - dim.opt), -size))[:count]


def _assign_sizes(
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
            found = _assign_sizes(rest, followers, used.union(taken))
            if found is not None:
                return {name: size, **found}
    return None


def _assign_greedily(
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
