"""Artifacts that are right in a part of the domain: find that part and run eager within it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..capture.size_constraints import NarrowError
from ..core.contract import Runner
from ..core.dims import Dim, bisect_boundary, resolve_bounds
from ..core.domain import Domain
from ..core.errors import CheckpointError, ModelcError, RunnerError
from ..core.findings import SIZED
from ..core.signature import InputSpec, Signature, settle_inputs
from ..validators.edge_case_feeds import find_batch_dim
from ..validators.feeds import FeedDrawer
from ..validators.output_pairs import is_close
from .eager_reference import EagerReference, refer_within
from .restrict_values import restrict_reference
from .run_progress import Progress

if TYPE_CHECKING:
    from ..core.verdict import Verdict

_DIFFERENCE = 1e-3  # share of the largest value; a wrong branch exceeds it, roundoff does not


@dataclass(frozen=True, kw_only=True)
class SizeInterval:
    """The sizes of one free dim, both ends included, in which an artifact is right."""

    dim: str
    low: int
    high: int

    def __str__(self) -> str:
        return f"{self.dim}={self.low}..{self.high}"

    def share_of(self, signature: Signature) -> float:
        """Return the share of the dim's own interval that this one covers, 0 to 1."""
        dim = signature.free_dims[self.dim]
        return (self.high - self.low + 1) / (dim.high - dim.low + 1)

    def is_all_but_one(self, signature: Signature) -> bool:
        """Return whether the interval excludes only size 1, of a dim whose bounds modelc chose.

        torch specializes on size 1 and captures programs for all other sizes.
        """
        dim = signature.free_dims[self.dim]
        return dim.chosen and (dim.low, self.low, self.high) == (1, 2, dim.high)

    def narrow(self, signature: Signature) -> Signature:
        """Return the signature with the dim, and the dims that follow it, within this interval."""
        inputs = [
            replace(spec, dims=tuple(map(self._narrow_dim, spec.dims))) for spec in signature.inputs
        ]
        return resolve_bounds(replace(signature, inputs=settle_inputs(inputs)))

    def _narrow_dim(self, dim: Dim) -> Dim:
        if not dim.dynamic or dim.bases != (self.dim,):
            return dim  # a sum follows from the dims of the others
        free = dim.free
        opt = min(max(free.opt, self.low), self.high)
        free = replace(free, low=self.low, opt=opt, high=self.high)
        return free if dim.relation is None else Dim.follow(dim.name or "", dim.relation, free)


def domains_above_one(signature: Signature) -> Iterator[tuple[InputSpec, ...]]:
    """Yield the inputs with chosen dims raised to at least 2: all but the batch, then all."""
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
    """Return the interval that the error of a capture names, if it is valid for the signature."""
    if not isinstance(error, NarrowError) or error.interval is None:
        return None
    name, low, high = error.interval
    dim = signature.free_dims.get(name)
    if dim is None or not dim.low <= low <= high <= dim.high or low == high:
        return None
    return SizeInterval(dim=name, low=low, high=high)


def narrow_reference(
    eager: EagerReference, inputs: Sequence[InputSpec], progress: Progress
) -> EagerReference:
    """Return the eager reference on feeds of these inputs; unchanged if they are its own."""
    if tuple(inputs) == eager.signature.inputs:
        return eager
    if _usual_inputs(inputs) == _usual_inputs(eager.signature.inputs):
        return restrict_reference(eager, inputs)
    return refer_within(eager, replace(eager.signature, inputs=tuple(inputs)), progress)


def _usual_inputs(inputs: Sequence[InputSpec]) -> list[tuple[InputSpec, object]]:
    """Return each input with its usual values, on which all feeds except wide ones depend."""
    return [
        (replace(spec, values=None), spec.values and (spec.values.usual or spec.values))
        for spec in inputs
    ]


def domain_inputs(domain: Domain | None, eager: EagerReference) -> tuple[InputSpec, ...]:
    """Return the inputs of a recorded domain, or those of the eager reference if it is None."""
    return eager.signature.inputs if domain is None else domain.inputs


def find_interval(
    verdict: Verdict, eager: EagerReference, open_runner: Callable[[], Runner]
) -> SizeInterval | None:
    """Find the sizes of one dim in which a rejected artifact is right, by running it.

    The search requires that the artifact is right on some feeds, that all feeds on which it is
    wrong lie outside an interval of one dim around its opt size, and that at least one of the
    wrong feeds has usual values: an error on zeros does not depend on the size. The ends are
    found by bisection; each size runs on eager and on the artifact.
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
        low, high = (
            right if wrong is None else bisect_boundary(is_right, right, wrong)
            for right, wrong in ((low, worst_low), (high, worst_high))
        )
    return SizeInterval(dim=dim, low=low, high=high) if low < high else None


def _separate_sizes(
    name: str, dim: Dim, bad: Sequence[Mapping[str, int]], good: Sequence[Mapping[str, int]]
) -> tuple[str, tuple[int, int], tuple[int | None, int | None]] | None:
    """Return the dim, its right sizes around opt, and the nearest wrong sizes; None if mixed."""
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


@dataclass(frozen=True, kw_only=True)
class _SizeComparison:
    """Compares an artifact with eager at sizes of one dim; other dims are as in a right feed."""

    eager: EagerReference
    runner: Runner
    dim: str
    good: Sequence[Mapping[str, int]]

    def is_right(self, size: int) -> bool:
        """Return whether the outputs of the artifact are close to those of eager at this size."""
        eager = self.eager
        drawer = FeedDrawer.of(eager.signature, eager.feeds.seed, eager.sample)
        feed = drawer.feed("narrow", {**self.good[0], self.dim: size})
        try:
            expected = eager.model.run(feed.arrays)
            given = self.runner.run(feed.arrays)
        except (CheckpointError, RunnerError):
            return False
        return is_close(expected, given, share=_DIFFERENCE)
