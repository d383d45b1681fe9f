"""Asks eager whether it runs at sizes of its dims, and finds the first at which it does."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from ..core.contract import Feed, Outputs
from ..core.dims import UNBOUNDED
from ..core.errors import CheckpointError
from ..core.signature import Signature
from ..sources.eager_model import Eager
from ..validators.edge_case_feeds import find_batch_dim
from ..validators.feeds import FeedDrawer
from .feeding import nonfinite_outputs

Sizes: TypeAlias = dict[str, int]

SIZE_FACTOR = 4  # the largest size that is chosen, in multiples of where the search starts
MAX_ELEMENTS = 1 << 21  # of all inputs of one feed: the most, unless the sample itself is larger
_MAX_PROBE_RUNS = 240  # of eager: beyond, nothing more is accepted
_MIN_ROWS = 2  # the batch where the search starts without a sample
# Where the search starts without a sample: what texts, images and signals have most often. The
# first that eager accepts is taken, so that a domain reaches 256 where the model allows it.
START_SIZES = (64, 32, 128, 224, 256, 16, 8, 4, 512, 1024, 4096, 16_384, 2, 1)
_LINEAR_RELATIONS = ((1, 0), (1, 1), (1, -1), (2, 0))  # times, plus: sizes that follow from another


class SizeProbe:
    """Asks eager whether it runs at sizes, and gives finite numbers there.

    Where it rejects drawn values, it is asked again with other values of integers: an index that is
    out of range for one size says nothing of the size. Once sizes that it took were rejected after
    all, it must take integers at the ends of their ranges as well, as it does where it starts: a
    mask that shows all has more positions than one that was drawn.
    """

    def __init__(
        self,
        eager: Eager,
        signature: Signature,
        seed: int,
        samples: Feed | None,
        further: Sequence[Feed] = (),
    ) -> None:
        self.signature = signature
        self.runs_left = _MAX_PROBE_RUNS
        self._eager = eager
        self._drawer = FeedDrawer.of(signature, seed, samples)
        self.sampled = _largest_sizes(signature, further)
        self.rejected: list[Sizes] = []
        self._known: dict[tuple[tuple[str, int], ...], bool] = {}
        self._asks_ends: bool | None = None
        self._allowed: set[str] | None = None  # outputs that are not finite where it starts
        sample = 0 if samples is None else sum(array.size for array in samples.values())
        self.most_elements = max(SIZE_FACTOR * sample, MAX_ELEMENTS)

    def reject(self, sizes: Mapping[str, int]) -> None:
        """Know that eager rejects these sizes of all named dims, and do not ask."""
        self.rejected.append({name: sizes[name] for name in self.signature.free_dims})
        self._known[tuple(sorted(self.rejected[-1].items()))] = False

    def accepts(self, sizes: Mapping[str, int]) -> bool:
        """Whether eager runs at these sizes of the free dims."""
        key = tuple(sorted(sizes.items()))
        if key not in self._known:
            self._known[key] = self._fits(sizes) and self._runs(dict(sizes))
        return self._known[key]

    def feed(self, sizes: Mapping[str, int]) -> Feed:
        """The feed of these sizes that is tried first."""
        return self._drawer.feed("domain", dict(sizes)).arrays

    def elements(self, sizes: Mapping[str, int]) -> int:
        """Elements of all inputs of a feed at these sizes."""
        return sum(
            math.prod(dim.size(sizes) for dim in spec.dims) for spec in self.signature.inputs
        )

    def _fits(self, sizes: Mapping[str, int]) -> bool:
        dims = (dim for spec in self.signature.inputs for dim in spec.dims)
        return (
            self.runs_left > 0
            and all(dim.size(sizes) >= min(dim.low, 1) for dim in dims if dim.dynamic)
            and self.elements(sizes) <= self.most_elements
        )

    def _runs(self, sizes: Sizes) -> bool:
        for feed in self._feeds(sizes):
            self.runs_left -= 1
            try:
                outputs = self._eager.run(feed)
            except (CheckpointError, MemoryError):
                continue
            if self._finite(outputs):
                return self._takes_ends(sizes)
        return False

    def _takes_ends(self, sizes: Sizes) -> bool:
        """Whether eager takes integers at the ends of their ranges, where that is asked."""
        if self._asks_ends is None:
            opt = {name: dim.opt for name, dim in self.signature.free_dims.items()}
            self._asks_ends = bool(self.rejected) and self._runs_at_ends(opt)
        return not self._asks_ends or self._runs_at_ends(sizes)

    def _runs_at_ends(self, sizes: Sizes) -> bool:
        drawn = self._drawer.feed("domain", sizes)
        for spec in self.signature.inputs:
            if spec.dtype.startswith(("float", "bool")) or spec.values is None:
                continue
            for feed in self._drawer.at_ends(drawn, [spec.name]):
                self.runs_left -= 1
                try:
                    self._eager.run(feed)
                except (CheckpointError, MemoryError):
                    return False
        return True

    def _feeds(self, sizes: Sizes) -> Iterator[Feed]:
        """Feeds of these sizes: as drawn; then with integers that nobody bounded at an end."""
        drawn = self._drawer.feed("domain", sizes)
        yield drawn.arrays
        whole = [
            spec.name
            for spec in self.signature.inputs
            if not spec.dtype.startswith("float") and spec.values is None
        ]
        if whole:
            yield from self._drawer.at_ends(drawn, whole)

    def _finite(self, outputs: Outputs) -> bool:
        found = nonfinite_outputs(outputs)
        if self._allowed is None:
            self._allowed = found
        return found <= self._allowed


def find_start(probe: SizeProbe, loose: Sequence[str], *, sampled: bool) -> Sizes | None:
    """Sizes at which eager runs: the sample's, or the first that it accepts."""
    dims = probe.signature.free_dims
    opt = {name: dim.opt for name, dim in dims.items()}
    unknown = [name for name in loose if (dims[name].low, dims[name].opt) == UNBOUNDED[:2]]
    if sampled or not unknown:
        return opt if probe.accepts(opt) else None
    firsts = [spec.dims[0].free.name for spec in probe.signature.inputs if spec.dims]
    batch = find_batch_dim(probe.signature)
    for rows in ([*firsts], [None if batch is None else batch.name], []):
        counted = [name for name in unknown if name in rows]
        others = [name for name in unknown if name not in rows]
        for size in START_SIZES if others else (_MIN_ROWS,):
            for sizes in _iter_related_starts(others, size):
                at = {**opt, **dict.fromkeys(counted, _MIN_ROWS), **sizes}
                if probe.accepts(at):
                    return at
    return None


def _iter_related_starts(names: Sequence[str], size: int) -> Iterator[Sizes]:
    """All dims at a size; then each alone a little off, as a length that follows from another."""
    yield dict.fromkeys(names, size)
    if len(names) > 1:
        for name, (times, plus) in itertools.product(names, _LINEAR_RELATIONS[1:]):
            related = times * size + plus
            if related >= 1:
                yield {**dict.fromkeys(names, size), name: related}


def _largest_sizes(signature: Signature, feeds: Sequence[Feed]) -> Sizes:
    """The largest size of each dim without a relation in these feeds."""
    found: Sizes = {}
    for feed, spec in itertools.product(feeds, signature.inputs):
        shape = feed[spec.name].shape if spec.name in feed else ()
        for dim, size in zip(spec.dims, shape, strict=False):
            if dim.name is not None and dim.relation is None:
                found[dim.name] = max(found.get(dim.name, 1), size)
    return found
