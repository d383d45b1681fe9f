"""Choose bounds for dims without declared bounds, by running eager at trial sizes.

The search starts at sizes that eager accepts and expands in all dims together. The result is a
box: an interval for each dim, possibly with a step, and relations between dims. Decisions depend
only on counts and sizes, never on the speed of the machine, so the result is reproducible.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from ..checkpoints.eager_model import Eager
from ..core.contract import Feed
from ..core.dims import Dim, Relation, bisect_boundary, resolve_bounds
from ..core.signature import Signature, ValueRange, settle_inputs
from ..validators.edge_case_feeds import find_batch_dim
from .run_reference import preserve_state
from .size_probe import SIZE_FACTOR, SizeProbe, Sizes, find_start

_STEPS_TO_TRY = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 24, 28, 32, 48, 56, 64, 112, 128)
_MAX_CORNERS = 4  # above this number of dims, each dim moves to its ends alone
_MAX_SETS = 31  # sets of dims to move together with one; all subsets of five
_MAX_ROUNDS = 12  # times to shrink a box that contains a rejected point


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
    """Return the signature with bounds for every dim; declared bounds stay as they are.

    The bounds of the other dims enclose sizes that eager accepts around the sample's size, or
    around the first of `START_SIZES` that it accepts. They end at `SIZE_FACTOR` times the
    start, as far as the limit of `SizeProbe` on the elements of a feed allows. A dim with a single
    accepted size is fixed. The signature is returned unchanged if eager accepts no start, so that
    eager's own error is reported.

    Args:
        eager: the eager model.
        signature: the signature as the user gave it; bounds are chosen for dims with `bounded`
            False.
        seed: seed of the random values.
        samples: the user's own inputs, by name.
        further: more samples; the bounds include their sizes if eager accepts them.
        rejected: sizes of all named dims that eager is known to reject; the box excludes them.
        values: value ranges chosen for inputs without a declared one.

    Raises:
        CheckpointError: eager's outputs change after it ran at other sizes.
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
    """One dim of the box: sizes `start + step * n` from `low` to `high`.

    With a `relation`, the size depends on another dim of the box instead.
    """

    start: int
    low: int
    high: int
    step: int = 1
    relation: Relation | None = None

    def round(self, size: int) -> int:
        """Round a size toward the start, to a multiple of the step."""
        return self.start + int((size - self.start) / self.step) * self.step


Box: TypeAlias = dict[str, _DimRange]


def _find_box(probe: SizeProbe, loose: Sequence[str], start: Sizes) -> Box:
    """Return a box of sizes around the start that eager accepts."""
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
        # If an earlier dim ends below its cap, later dims may be larger.
        box[name].high = _largest_sizes_to_try(probe, loose, start, known)[name]
        _find_step(probe, box, start, name)
        _find_ends(probe, box, start, name)
        known[name] = box[name].high
    _shrink_to_fit(probe, box, start)
    return box


def _largest_sizes_to_try(
    probe: SizeProbe, loose: Sequence[str], start: Sizes, known: Mapping[str, int] | None = None
) -> Sizes:
    """Return the largest size to try for each dim, so that feeds stay below the element limit.

    Start from `SIZE_FACTOR` times the start. While the largest feed is too large, reduce the dims
    other than the batch to half of that, then the batch to half, then both down to the start.
    `known` are sizes already found for some dims, which replace their caps.
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
        while probe.signature.count_elements({**start, **stated, **caps}) > probe.most_elements:
            name = max(names, key=lambda one: caps[one] / least[one], default="")
            if not name or caps[name] <= least[name]:
                break
            caps[name] = max(caps[name] * 7 // 8, least[name])
    return caps


def _resize_point(box: Box, start: Sizes, sizes: Mapping[str, int]) -> Sizes:
    """Return the start with these sizes, and the dependent sizes by their relations."""
    at = {**start, **sizes}
    for name, side in box.items():
        if side.relation is not None:
            at[name] = side.relation.size(at[side.relation.base])
    return at


def _test_points(probe: SizeProbe, box: Box, start: Sizes) -> Iterator[Sizes]:
    """Yield points to check that eager accepts a box: corners, points inside, known rejections."""
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
    for name, side in box.items():  # move each dim alone, as equal dims may not differ above
        if side.relation is None:
            yield _resize_point(box, start, {name: min(side.start + side.step, side.high)})


def _contains(box: Box, sizes: Sizes) -> bool:
    """Return whether the independent sizes lie in the box."""
    sides = ((side, sizes[name]) for name, side in box.items() if side.relation is None)
    return all(side.low <= size <= side.high and side.round(size) == size for side, size in sides)


def _corners(sides: Mapping[str, _DimRange]) -> Iterator[Sizes]:
    """Yield all low, all high, then the mixed corners.

    Above `_MAX_CORNERS` dims, yield each dim alone at its ends instead of the mixed corners.
    """
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
    """Set relations between dims that eager accepts only together; return the independent dims."""
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
    """Return whether eager accepts another size of this dim with all others at their start."""
    size = start[name]
    found = (size + sign * step for step in _STEPS_TO_TRY for sign in (1, -1))
    return any(probe.accepts({**start, name: one}) for one in found if one >= 2)  # noqa: PLR2004 - 1 broadcasts


def _find_dependent_dims(
    probe: SizeProbe, start: Sizes, first: str, others: Sequence[str]
) -> dict[str, Relation]:
    """Return the dims that must change together with `first`, and their relations to it.

    A set of dims changes by the same amount as `first`; a single dim may change by twice as much.
    """
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
    """Set the step between accepted sizes of a dim; fix the dim if no other size is accepted."""
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
            return  # a short interval around the start; `_find_ends` finds its ends
    side.low = side.high = side.start


def _find_ends(probe: SizeProbe, box: Box, start: Sizes, name: str) -> None:
    """Set the lowest and highest accepted size of a dim, with all others at their start."""
    side = box[name]
    if side.low == side.high:
        return
    side.low = _boundary(probe, box, start, name, side.round(side.low))
    side.high = _boundary(probe, box, start, name, side.round(side.high))


def _boundary(probe: SizeProbe, box: Box, base: Sizes, name: str, end: int) -> int:
    """Bisect from the start to an end; return the last size that eager accepts."""
    side = box[name]

    def accepts(steps: int) -> bool:
        size = side.start + steps * side.step
        return probe.accepts(_resize_point(box, base, {name: size}))

    steps = (end - side.start) // side.step
    if steps == 0 or accepts(steps):
        return end
    return side.start + bisect_boundary(accepts, 0, steps) * side.step


def _shrink_to_fit(probe: SizeProbe, box: Box, start: Sizes) -> None:
    """Shrink the box until eager accepts all test points; fall back to the start alone."""
    for _ in range(_MAX_ROUNDS):
        points = _test_points(probe, box, start)
        rejected = next((point for point in points if not probe.accepts(point)), None)
        if rejected is None:
            return
        _exclude_point(probe, box, start, rejected)
    for side in box.values():  # no box found; only the start is known
        side.low = side.high = side.start


def _exclude_point(probe: SizeProbe, box: Box, start: Sizes, rejected: Sizes) -> None:
    """Move one end of the box so that it excludes a rejected point.

    Choose among the dims whose size eager rejects even with all others at their start; else among
    those whose reset to the start makes the point accepted, the batch last; else among all. Of
    these, move the dim whose size is furthest from its start.
    """
    apart = [n for n, s in box.items() if s.relation is None and rejected[n] != s.start]
    alone = [n for n in apart if not probe.accepts(_resize_point(box, start, {n: rejected[n]}))]
    cured = [
        n for n in apart
        if probe.accepts(_resize_point(box, start, {**rejected, n: start[n]}))
    ]  # fmt: skip
    distance = {n: abs(math.log(max(rejected[n], 0.5) / box[n].start)) for n in apart}
    batch = find_batch_dim(probe.signature)
    rows = batch.name if batch is not None else None
    choice = alone or [n for n in cured if n != rows] or cured or apart
    if not choice:
        return
    name = max(choice, key=lambda one: distance[one])
    side, base = box[name], start if name in alone else {**start, **rejected}
    kept = _boundary(probe, box, base, name, rejected[name])
    if name not in alone and kept == side.start and name not in cured:
        kept = side.round((side.start + rejected[name]) // 2)
    if rejected[name] > side.start:
        side.high = kept if kept < rejected[name] else side.round(rejected[name] - side.step)
    else:
        side.low = kept if kept > rejected[name] else side.round(rejected[name] + side.step)


def _apply_box(signature: Signature, box: Box) -> Signature:
    """Return the signature with the bounds of the box for each dim, by name."""
    names = {dim.name for dim in signature.dims_with_names()}
    chosen = {name: _as_dim(name, side, box, names) for name, side in box.items()}

    def with_bounds(dim: Dim) -> Dim:
        root = chosen.get(dim.bases[0]) if dim.dynamic and not dim.is_sum else None
        if root is None or dim.relation is None:
            return root or dim
        return _dependent_dim(dim.name or "", dim.relation, root)

    fixed = {name: dim.opt for name, dim in chosen.items() if not dim.dynamic}
    inputs = [
        replace(
            spec,
            values=spec.values and spec.values.at(fixed),
            dims=tuple(map(with_bounds, spec.dims)),
        )
        for spec in signature.inputs
    ]
    return resolve_bounds(replace(signature, inputs=settle_inputs(inputs)))


def _as_dim(name: str, side: _DimRange, box: Box, names: Collection[str | None]) -> Dim:
    """Convert a side of the box to a dim; a step becomes a relation to a new factor dim."""
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
    """Return a dim with a single size that keeps its name for readability."""
    return Dim(name=name, low=size, opt=size, high=size, chosen=True)


def _dependent_dim(name: str, relation: Relation, root: Dim) -> Dim:
    """Return a dim that depends on `root`, which is fixed, free or itself dependent."""
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
