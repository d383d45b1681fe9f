"""Artifacts that are right in a part of the domain: which part, and eager within it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..capture.size_constraints import NarrowError
from ..core.contract import Feed, Runner
from ..core.dims import Dim, resolve_bounds
from ..core.domain import Domain
from ..core.errors import CheckpointError, ModelcError, RunnerError
from ..core.findings import SIZED
from ..core.signature import InputSpec, Signature
from ..validators.edge_case_feeds import find_batch_dim
from ..validators.feeds import FeedDrawer
from ..validators.output_pairs import is_close
from .eager_reference import EagerReference, refer_within
from .restrict_values import restrict_subject
from .run_progress import Progress

if TYPE_CHECKING:
    from ..core.verdict import Verdict

_DIFFERENCE = 1e-3  # of the largest value: what a wrong branch differs by, and roundoff does not


@dataclass(frozen=True, kw_only=True)
class SizeInterval:
    """The sizes of one free dim in which an artifact holds, both ends included."""

    dim: str
    low: int
    high: int

    def __str__(self) -> str:
        return f"{self.dim}={self.low}..{self.high}"

    def share_of(self, signature: Signature) -> float:
        """How much of the dim's own interval it keeps, 0 to 1."""
        dim = signature.free_dims[self.dim]
        return (self.high - self.low + 1) / (dim.high - dim.low + 1)

    def is_all_but_one(self, signature: Signature) -> bool:
        """Whether it leaves out size 1 alone, of a dim whose bounds nobody stated.

        torch takes 1 for a special size, and gives programs for all others.
        """
        dim = signature.free_dims[self.dim]
        return dim.chosen and (dim.low, self.low, self.high) == (1, 2, dim.high)

    def narrow(self, signature: Signature) -> Signature:
        """The signature with the dim, and what follows from it, in this interval."""
        return resolve_bounds(
            replace(
                signature,
                inputs=tuple(
                    replace(spec, dims=tuple(map(self._narrow_dim, spec.dims)))
                    for spec in signature.inputs
                ),
            )
        )

    def _narrow_dim(self, dim: Dim) -> Dim:
        free = dim.free
        if not dim.dynamic or free.name != self.dim:
            return dim
        opt = min(max(free.opt, self.low), self.high)
        free = replace(free, low=self.low, opt=opt, high=self.high)
        return free if dim.relation is None else Dim.follow(dim.name or "", dim.relation, free)


def domains_above_one(signature: Signature) -> Iterator[tuple[InputSpec, ...]]:
    """The inputs without size 1 of chosen dims: of all but the batch, then of the batch too."""
    batch = find_batch_dim(signature)
    names = [n for n, dim in signature.free_dims.items() if dim.chosen and dim.low == 1 < dim.high]
    rows = [name for name in names if batch is not None and name == batch.name]
    seen: list[list[str]] = [[]]
    for narrowed in ([name for name in names if name not in rows], names):
        if narrowed in seen:
            continue
        seen.append(narrowed)
        found = signature
        for name in narrowed:
            high = signature.free_dims[name].high
            found = SizeInterval(dim=name, low=2, high=high).narrow(found)
        yield found.inputs


def parse_interval(error: ModelcError, signature: Signature) -> SizeInterval | None:
    """The interval that a capture says it holds in; None where it says none."""
    if not isinstance(error, NarrowError) or error.interval is None:
        return None
    name, low, high = error.interval
    dim = signature.free_dims.get(name)
    if dim is None or not dim.low <= low <= high <= dim.high or low == high:
        return None
    return SizeInterval(dim=name, low=low, high=high)


def narrow_subject(
    eager: EagerReference, inputs: Sequence[InputSpec], progress: Progress
) -> EagerReference:
    """The eager side on feeds of these inputs alone; the subject itself where they are its own."""
    if tuple(inputs) == eager.signature.inputs:
        return eager
    if _usual_inputs(inputs) == _usual_inputs(eager.signature.inputs):
        return restrict_subject(eager, inputs)
    return refer_within(eager, replace(eager.signature, inputs=tuple(inputs)), progress)


def _usual_inputs(inputs: Sequence[InputSpec]) -> list[tuple[InputSpec, object]]:
    """The inputs with what all feeds but those of wide values depend on."""
    return [
        (replace(spec, values=None), spec.values and (spec.values.usual or spec.values))
        for spec in inputs
    ]


def domain_inputs(domain: Domain | None, eager: EagerReference) -> tuple[InputSpec, ...]:
    """The inputs of a recorded domain; the eager reference's own where none is on record."""
    return eager.signature.inputs if domain is None else domain.inputs


def find_interval(
    verdict: Verdict, eager: EagerReference, open_runner: Callable[[], Runner]
) -> SizeInterval | None:
    """The sizes of one dim in which a rejected artifact is right, as running it shows.

    Looked for where all feeds on which it is wrong differ in one dim from the size that it was
    captured at, and some others are right. One of the wrong feeds must have usual values: what is
    wrong on zeros is so at other sizes too. The ends are found by halving, each size run on eager
    and on the artifact.
    """
    feeds = [one.feed for one in eager.references if one.feed.sizes]
    sizes, sized = {one.name: one.sizes for one in feeds}, [f for f in feeds if f.kind in SIZED]
    answered = {one.feed for one in verdict.outputs}
    wrong = {one.feed for one in verdict.outputs if not one.passed and not one.loose}
    wrong |= {name for name in verdict.feeds if name not in answered}
    bad = [sizes[name] for name in wrong if name in sizes]
    good = [found for name, found in sizes.items() if name in answered - wrong]
    if len(bad) < len(wrong) or not good or not any(one.name in wrong for one in sized):
        return None
    around = [
        found
        for name, dim in eager.signature.free_dims.items()
        if (found := _separate_sizes(name, dim, bad, good)) is not None
    ]
    if not around:
        return None
    dim, (low, high), (worst_low, worst_high) = max(around, key=lambda one: one[1][1] - one[1][0])
    with open_runner() as runner:
        is_right = _SizeComparison(eager=eager, runner=runner, dim=dim, good=good).is_right
        low = _bisect(is_right, low, worst_low)
        high = _bisect(is_right, high, worst_high)
    return SizeInterval(dim=dim, low=low, high=high) if low < high else None


def _separate_sizes(
    name: str, dim: Dim, bad: Sequence[Mapping[str, int]], good: Sequence[Mapping[str, int]]
) -> tuple[str, tuple[int, int], tuple[int | None, int | None]] | None:
    """A dim with the right sizes around its middle, and the nearest wrong ones; None if mixed."""
    wrong = {sizes[name] for sizes in bad}
    right = sorted({sizes[name] for sizes in good} - wrong)
    if not right:
        return None
    start = min(right, key=lambda size: abs(size - dim.opt))
    below = max((size for size in wrong if size < start), default=None)
    above = min((size for size in wrong if size > start), default=None)
    inside = [
        size for size in right
        if (below is None or size > below) and (above is None or size < above)
    ]  # fmt: skip
    return name, (inside[0], inside[-1]), (below, above)


def _bisect(is_right: Callable[[int], bool], right: int, wrong: int | None) -> int:
    """The last right size on the way to a wrong one; the right one where there is no wrong one."""
    if wrong is None:
        return right
    while abs(right - wrong) > 1:
        middle = (right + wrong) // 2
        right, wrong = (middle, wrong) if is_right(middle) else (right, middle)
    return right


@dataclass(frozen=True, kw_only=True)
class _SizeComparison:
    """Eager beside an artifact at sizes of one dim, the other dims as in a feed that is right."""

    eager: EagerReference
    runner: Runner
    dim: str
    good: Sequence[Mapping[str, int]]

    def is_right(self, size: int) -> bool:
        """Whether the artifact gives about what eager gives at this size."""
        drawer = FeedDrawer.of(self.eager.signature, self.eager.feeds.seed, self._sample)
        feed = drawer.feed("narrow", {**self.good[0], self.dim: size})
        try:
            expected = self.eager.model.run(feed.arrays)
            given = self.runner.run(feed.arrays)
        except (CheckpointError, RunnerError):
            return False
        return is_close(expected, given, share=_DIFFERENCE)

    @property
    def _sample(self) -> Feed | None:
        return None if self.eager.given is None else self.eager.given.first
