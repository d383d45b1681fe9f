"""Chooses bounds for dims that nobody bounded, by asking eager which sizes it accepts.

The search starts where eager is known or found to run and goes outward in all dims together. What
it finds is a box: an interval for each dim, or every so-manieth size, with relations between dims.
All decisions follow from counts and sizes, never from how fast the machine is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from ..checkpoints.eager_model import Eager
from ..core.contract import Feed
from ..core.dims import Dim, Relation, resolve_bounds
from ..core.signature import Signature, ValueRange
from ..validators.edge_case_feeds import find_batch_dim
from .run_reference import preserve_state
from .size_probe import SIZE_FACTOR, SizeProbe, Sizes, find_start

_STEPS_TO_TRY = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 24, 28, 32, 48, 56, 64, 112, 128)
_MAX_CORNERS = 4  # dims of which all corners are tried; of more, each dim alone at its ends
_MAX_SETS = 31  # of dims that are moved together with one: all of up to five
_MAX_ROUNDS = 12  # times that a box is made smaller because a point of it is rejected


def choose_dims(  # noqa: PLR0913 - eager, and all that is known of its sizes
    eager: Eager,
    signature: Signature,
    *,
    seed: int = 0,
    samples: Feed | None = None,
    further: Sequence[Feed] = (),
    rejected: Sequence[Sizes] = (),
    values: Mapping[str, ValueRange] | None = None,
) -> Signature:
    """The signature with bounds for every dim: those that were stated as they are.

    Dims without bounds get the sizes that eager accepts around the sample's size (without a sample
    around the first of `STARTS` that it accepts), at most `TIMES` as large, and no feed larger
    than `ELEMENTS` elements or `TIMES` the sample. A dim of which eager accepts one size only is
    fixed at it. Unchanged where eager accepts no start: its own error says more.

    Args:
        eager: the model, with this signature's inputs.
        signature: as the user gave it; dims with `bounded` False are chosen.
        seed: of the values that are drawn.
        samples: the user's own inputs, by name.
        further: more of them; the bounds reach as far as these do, where eager accepts it.
        rejected: sizes of all named dims that eager is known to reject, to be left out.
        values: ranges that were chosen for inputs without one, at sizes that were rejected then.

    Raises:
        CheckpointError: eager answers otherwise after it ran at other sizes.
    """
    loose = [name for name, dim in signature.free_dims.items() if not dim.bounded]
    if not loose:
        return signature
    known = values or {}
    inputs = (replace(s, values=s.values or known.get(s.name)) for s in signature.inputs)
    probe = SizeProbe(eager, replace(signature, inputs=tuple(inputs)), seed, samples, further)
    for sizes in rejected:
        probe.reject(sizes)
    before = eager.before()
    start = find_start(probe, loose, sampled=samples is not None)
    before.restore()
    if start is None:
        return signature
    with preserve_state(eager, probe.feed(start)):
        box = _find_box(probe, loose, start)
    return _apply_box(signature, box) if box else signature


@dataclass(kw_only=True)
class _DimRange:
    """One dim of the box: sizes `start + step * n`, from `low` to `high`.

    With a `relation` it follows from another dim of the box.
    """

    start: int
    low: int
    high: int
    step: int = 1
    relation: Relation | None = None

    def round(self, size: int) -> int:
        """The size of the side nearest to this one, on the way to its start."""
        return self.start + int((size - self.start) / self.step) * self.step


Box: TypeAlias = dict[str, _DimRange]


def _find_box(probe: SizeProbe, loose: Sequence[str], start: Sizes) -> Box:
    """The sizes around the start that eager accepts, in all dims together."""
    caps = _largest_sizes_to_try(probe, loose, start)
    dims = probe.signature.free_dims
    box = {
        name: _DimRange(start=start[name], low=dims[name].low, high=caps[name]) for name in loose
    }
    if all(probe.accepts(point) for point in _test_points(probe, box, start)):
        return box
    free = _find_relations(probe, box, start)
    batch = find_batch_dim(probe.signature)
    known: Sizes = {}
    for name in sorted(free, key=lambda one: batch is not None and one == batch.name):
        # Where eager accepts less than it could, the dims that come after may be larger.
        box[name].high = _largest_sizes_to_try(probe, loose, start, known)[name]
        _find_step(probe, box, start, name)
        _find_ends(probe, box, start, name)
        known[name] = box[name].high
    _shrink_to_fit(probe, box, start)
    return box


def _largest_sizes_to_try(
    probe: SizeProbe, loose: Sequence[str], start: Sizes, known: Mapping[str, int] | None = None
) -> Sizes:
    """The largest size of each dim: `TIMES` its start, less where a feed would be too large.

    Sides give way to twice their start first, then the batch to half of what it may be, then all.
    `known` are sizes beyond which a dim is not looked at.
    """
    dims, batch = probe.signature.free_dims, find_batch_dim(probe.signature)
    stated = {name: dim.high for name, dim in dims.items() if dim.bounded}
    caps = {
        name: max(SIZE_FACTOR * start[name], dims[name].high, probe.sampled.get(name, 1))
        for name in loose
    } | dict(known or {})
    rows = [name for name in loose if batch is not None and name == batch.name]
    sides = [name for name in loose if name not in rows]
    half = {name: max(cap // 2, start[name]) for name, cap in caps.items()}
    for names, least in ((sides, half), (rows, half), (sides, start), (rows, start)):
        while probe.elements({**start, **stated, **caps}) > probe.most_elements:
            name = max(names, key=lambda one: caps[one] / least[one], default="")
            if not name or caps[name] <= least[name]:
                break
            caps[name] = max(caps[name] * 7 // 8, least[name])
    return caps


def _resize_point(box: Box, start: Sizes, sizes: Mapping[str, int]) -> Sizes:
    """The start with these sizes, and what follows from them."""
    at = {**start, **sizes}
    for name, side in box.items():
        if side.relation is not None:
            at[name] = side.relation.size(at[side.relation.base])
    return at


def _test_points(probe: SizeProbe, box: Box, start: Sizes) -> Iterator[Sizes]:
    """Points of a box that show whether eager accepts all of it: corners, and odd sizes inside."""
    stated = {
        name: _DimRange(start=dim.opt, low=dim.low, high=dim.high)
        for name, dim in probe.signature.free_dims.items()
        if dim.bounded
    }
    sides = {**stated, **{name: side for name, side in box.items() if side.relation is None}}
    for corner in _corners(sides):
        yield _resize_point(box, start, corner)
    for shift in (1, 2):
        near = {n: min(s.start + shift * s.step, s.high) for n, s in sides.items() if n in box}
        yield _resize_point(box, start, near)
    for share in (0.37, 0.71):
        inside = {n: s.round(s.low + int(share * (s.high - s.low))) for n, s in sides.items()}
        yield _resize_point(box, start, inside)
    yield from (one for one in probe.rejected if _contains(box, one))
    for one in box:  # each dim alone: two that must be equal never differ above
        side = box[one]
        if side.relation is None:
            yield _resize_point(box, start, {one: min(side.start + side.step, side.high)})


def _contains(box: Box, sizes: Sizes) -> bool:
    """Whether sizes lie in the box; those that follow from others do so by themselves."""
    sides = ((side, sizes[name]) for name, side in box.items() if side.relation is None)
    return all(side.low <= size <= side.high and side.round(size) == size for side, size in sides)


def _corners(sides: Mapping[str, _DimRange]) -> Iterator[Sizes]:
    """All lowest, all highest, then the mixed corners; of many dims each alone at its ends."""
    yield {name: side.low for name, side in sides.items()}
    yield {name: side.high for name, side in sides.items()}
    if len(sides) > _MAX_CORNERS:
        for name, side in sides.items():
            yield {name: side.low}
            yield {name: side.high}
        return
    for ends in itertools.product((False, True), repeat=len(sides)):
        if len(set(ends)) > 1:
            both = zip(sides.items(), ends, strict=True)
            yield {name: side.high if end else side.low for (name, side), end in both}


def _find_relations(probe: SizeProbe, box: Box, start: Sizes) -> list[str]:
    """Ties dims that eager accepts together only; the dims that vary freely."""
    tied = [name for name in box if not _moves_alone(probe, start, name)]
    free = [name for name in box if name not in tied]
    while tied:
        first, *others = tied
        together = _find_dependent_dims(probe, start, first, others)
        for name, relation in together.items():
            box[name].relation = relation
        tied = [name for name in others if name not in together]
        if together or len(others) == len(tied):
            free.append(first)
    return free


def _moves_alone(probe: SizeProbe, start: Sizes, name: str) -> bool:
    """Whether eager accepts another size of this dim with all others at their start."""
    size = start[name]
    found = (size + sign * step for step in _STEPS_TO_TRY for sign in (1, -1))
    return any(probe.accepts({**start, name: one}) for one in found if one >= 2)  # noqa: PLR2004 - 1 broadcasts


def _find_dependent_dims(
    probe: SizeProbe, start: Sizes, first: str, others: Sequence[str]
) -> dict[str, Relation]:
    """The dims that eager wants moved with the first, and how; all by as much, or one of them."""
    sets = [
        list(names)
        for count in range(1, len(others) + 1)
        for names in itertools.combinations(others, count)
    ][:_MAX_SETS]
    for step, moved in itertools.product(_STEPS_TO_TRY, sets):
        for times in (1, 2) if len(moved) == 1 else (1,):
            sizes = {**start, first: start[first] + step}
            sizes |= {name: start[name] + times * step for name in moved}
            if probe.accepts(sizes):
                return {
                    name: Relation(base=first, times=times, plus=start[name] - times * start[first])
                    for name in moved
                }
    return {}


def _find_step(probe: SizeProbe, box: Box, start: Sizes, name: str) -> None:
    """The distance between sizes that eager accepts, from the start on."""
    side = box[name]
    for step in _STEPS_TO_TRY:
        up = [side.start + step, side.start + 2 * step, side.start + 3 * step]
        down = [side.start - step, side.start - 2 * step]
        for sizes in (up[:2], [up[0], down[0]], down):
            points = [_resize_point(box, start, {name: size}) for size in sizes]
            if min(sizes) >= 1 and all(map(probe.accepts, points)):
                side.step = step
                return
    for size in (*range(max(side.start - 3, 1), side.start + 4),):
        if size != side.start and probe.accepts(_resize_point(box, start, {name: size})):
            return  # a few sizes around the start, which the search for its ends finds
    side.low = side.high = side.start


def _find_ends(probe: SizeProbe, box: Box, start: Sizes, name: str) -> None:
    """The smallest and the largest size of a dim, all others at their start."""
    side = box[name]
    if side.low == side.high:
        return
    side.low = _boundary(probe, box, start, name, side.round(side.low))
    side.high = _boundary(probe, box, start, name, side.round(side.high))


def _boundary(probe: SizeProbe, box: Box, base: Sizes, name: str, end: int) -> int:
    """The last size that eager accepts on the way from the start to an end, by halving."""
    side = box[name]

    def accepts(steps: int) -> bool:
        size = side.start + steps * side.step
        return probe.accepts(_resize_point(box, base, {name: size}))

    good, bad = 0, (end - side.start) // side.step
    if bad == 0 or accepts(bad):
        return end
    while abs(good - bad) > 1:
        middle = (good + bad) // 2
        if accepts(middle):
            good = middle
        else:
            bad = middle
    return side.start + good * side.step


def _shrink_to_fit(probe: SizeProbe, box: Box, start: Sizes) -> None:
    """Make the box smaller until eager accepts its corners and what was tried inside."""
    for _ in range(_MAX_ROUNDS):
        points = _test_points(probe, box, start)
        rejected = next((point for point in points if not probe.accepts(point)), None)
        if rejected is None:
            return
        _exclude_point(probe, box, start, rejected)
    for side in box.values():  # no box was found in so many rounds: what is known is the start
        side.low = side.high = side.start


def _exclude_point(probe: SizeProbe, box: Box, start: Sizes, rejected: Sizes) -> None:
    """Move one end of the box, so that a rejected point is outside of it.

    The dim is one that eager rejects at this size with all others at their start; else one whose
    start makes the others right; else the one that is furthest from its start.
    """
    apart = [n for n, s in box.items() if s.relation is None and rejected[n] != s.start]
    alone = [n for n in apart if not probe.accepts(_resize_point(box, start, {n: rejected[n]}))]
    mended = [
        n for n in apart
        if probe.accepts(_resize_point(box, start, {**rejected, n: start[n]}))
    ]  # fmt: skip
    distance = {n: abs(math.log(rejected[n] / box[n].start)) for n in apart}
    batch = find_batch_dim(probe.signature)
    rows = batch.name if batch is not None else None
    choice = alone or [n for n in mended if n != rows] or mended or apart
    if not choice:
        return
    name = max(choice, key=lambda one: distance[one])
    side, base = box[name], start if name in alone else {**start, **rejected}
    kept = _boundary(probe, box, base, name, rejected[name])
    if name not in alone and kept == side.start and name not in mended:
        kept = side.round((side.start + rejected[name]) // 2)
    if rejected[name] > side.start:
        side.high = kept if kept < rejected[name] else side.round(rejected[name] - side.step)
    else:
        side.low = kept if kept > rejected[name] else side.round(rejected[name] + side.step)


def _apply_box(signature: Signature, box: Box) -> Signature:
    """The signature with the box's bounds for each dim, wherever its name stands."""
    names = {dim.name for dim in signature.dims_with_names()}
    chosen = {name: _as_dim(name, side, box, names) for name, side in box.items()}

    def bounded(dim: Dim) -> Dim:
        root = chosen.get(dim.free.name or "") if dim.dynamic else None
        if root is None or dim.relation is None:
            return root or dim
        return _dependent_dim(dim.name or "", dim.relation, root)

    fixed = {name: dim.opt for name, dim in chosen.items() if not dim.dynamic}
    inputs = (
        replace(
            spec,
            values=spec.values and spec.values.at(fixed),
            dims=tuple(map(bounded, spec.dims)),
        )
        for spec in signature.inputs
    )
    return resolve_bounds(replace(signature, inputs=tuple(inputs)))


def _as_dim(name: str, side: _DimRange, box: Box, names: Collection[str | None]) -> Dim:
    """The side as a dim; every so-manieth size is a multiple of a dim of its own."""
    if side.relation is not None:
        base = side.relation.base
        return _dependent_dim(name, side.relation, _as_dim(base, box[base], box, names))
    if side.low == side.high:
        return _make_fixed_dim(name, side.start)
    if side.step == 1:
        return Dim(name=name, low=side.low, opt=side.start, high=side.high, chosen=True)
    factor = next(one for one in (f"k_{name}", *(f"k{n}_{name}" for n in range(99)))
                  if one not in names)  # fmt: skip
    relation = Relation(base=factor, times=side.step, plus=side.start % side.step, stated=True)
    ends = [(size - relation.plus) // side.step for size in (side.low, side.start, side.high)]
    low, opt, high = (max(end, 1) for end in ends)
    if low == high:
        return _make_fixed_dim(name, relation.size(low))
    return Dim.follow(name, relation, Dim(name=factor, low=low, opt=opt, high=high, chosen=True))


def _make_fixed_dim(name: str, size: int) -> Dim:
    """A dim of which eager accepts one size only; it keeps its name, for people to read."""
    return Dim(name=name, low=size, opt=size, high=size, chosen=True)


def _dependent_dim(name: str, relation: Relation, root: Dim) -> Dim:
    """A dim that follows from another one, which is fixed, free, or follows itself."""
    if not root.dynamic:
        return _make_fixed_dim(name, relation.size(root.opt))
    if root.relation is None:
        return Dim.follow(name, relation, root)
    composed = replace(
        root.relation,
        times=relation.times * root.relation.times,
        plus=relation.times * root.relation.plus + relation.plus,
    )
    return Dim.follow(name, composed, root.free)
