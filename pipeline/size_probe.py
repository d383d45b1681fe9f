"""Find the sizes and masks that eager accepts, and describe what stays unverified."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from ..checkpoints.eager_model import Eager, open_eager
from ..core.contract import Feed
from ..core.dims import UNBOUNDED, Dim, default_opt
from ..core.domain import Domain
from ..core.errors import CheckpointError
from ..core.signature import FLOATS, InputSpec, Signature
from ..validators.edge_case_feeds import find_batch_dim
from ..validators.feeds import FeedDrawer
from .run_reference import nonfinite_outputs

if TYPE_CHECKING:
    from ..checkpoints.loaded_module import LoadedModule

Sizes: TypeAlias = dict[str, int]


SIZE_FACTOR = 4  # the largest size to choose, in multiples of the start size
MAX_ELEMENTS = 1 << 21  # limit over all inputs of one feed, raised if the sample is large
_MAX_PROBE_RUNS = 240  # of eager; then no further size is accepted
_MIN_ROWS = 2  # start size of the batch without a sample
# Start sizes without a sample: common ones of texts, images and signals. The first that eager
# accepts is used, so that a domain goes up to 256 where the model allows it.
START_SIZES = (64, 32, 128, 224, 256, 16, 8, 4, 512, 1024, 4096, 16_384, 2, 1)
_LINEAR_RELATIONS = ((1, 0), (1, 1), (1, -1), (2, 0))  # (times, plus) of sizes that follow another


class SizeProbe:
    """Checks whether eager runs at given sizes and returns finite outputs there.

    If eager rejects drawn values, integers are tried at the ends of their ranges too: an index that
    is out of range for one size does not show that the size is invalid. Once an accepted size is
    rejected later (`reject`), integers at the ends of their ranges must be accepted as well,
    provided that they are at the opt sizes: a full mask has more positions than a drawn one.
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
        self._ends: bool | None = None
        self._allowed: set[str] | None = None  # outputs that are not finite at the start sizes
        sample = 0 if samples is None else sum(array.size for array in samples.values())
        self.most_elements = max(SIZE_FACTOR * sample, MAX_ELEMENTS)

    def reject(self, sizes: Mapping[str, int]) -> None:
        """Record that eager rejects these sizes, so that it is not run on them."""
        self.rejected.append({name: sizes[name] for name in self.signature.free_dims})
        self._known[tuple(sorted(self.rejected[-1].items()))] = False

    def accepts(self, sizes: Mapping[str, int]) -> bool:
        """Return whether eager runs at these sizes of the free dims."""
        key = tuple(sorted(sizes.items()))
        if key not in self._known:
            self._known[key] = self._fits(sizes) and self._runs(dict(sizes))
        return self._known[key]

    def feed(self, sizes: Mapping[str, int]) -> Feed:
        """Return the feed of these sizes that is tried first."""
        return self._drawer.feed("domain", dict(sizes)).arrays

    def _fits(self, sizes: Mapping[str, int]) -> bool:
        dims = (dim for spec in self.signature.inputs for dim in spec.dims)
        return (
            self.runs_left > 0
            and all(dim.size(sizes) >= min(dim.low, 1) for dim in dims if dim.dynamic)
            and self.signature.count_elements(sizes) <= self.most_elements
        )

    def _runs(self, sizes: Sizes) -> bool:
        for feed in self._feeds(sizes):
            self.runs_left -= 1
            try:
                outputs = self._eager.run(feed)
            except (CheckpointError, MemoryError):
                continue
            found = nonfinite_outputs(outputs)
            if self._allowed is None:
                self._allowed = found
            if found <= self._allowed:
                return not self._asks_ends() or self._runs_at_ends(sizes)
        return False

    def _asks_ends(self) -> bool:
        """Return whether eager must accept integers at the ends of their ranges too."""
        if self._ends is None:
            self._ends = bool(self.rejected) and self._runs_at_ends(self.signature.opt_sizes)
        return self._ends

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
        """Yield the drawn feed, then feeds with unbounded integers at an end of their range."""
        drawn = self._drawer.feed("domain", sizes)
        yield drawn.arrays
        whole = [
            spec.name
            for spec in self.signature.inputs
            if not spec.dtype.startswith("float") and spec.values is None
        ]
        if whole:
            yield from self._drawer.at_ends(drawn, whole)


def find_start(probe: SizeProbe, loose: Sequence[str], *, sampled: bool) -> Sizes | None:
    """Return sizes at which eager runs: those of the sample, or the first that it accepts."""
    dims, opt = probe.signature.free_dims, probe.signature.opt_sizes
    sides = {name: dims[name] for name in loose}
    unknown = [name for name, one in sides.items() if (one.low, one.opt, one.high) == UNBOUNDED]
    if sampled or not unknown:
        return opt if probe.accepts(opt) else None
    firsts = [name for s in probe.signature.inputs if s.dims for name in s.dims[0].bases]
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
    """Yield all dims at one size, then each alone at a size linearly related to it."""
    yield dict.fromkeys(names, size)
    if len(names) > 1:
        for name, (times, plus) in itertools.product(names, _LINEAR_RELATIONS[1:]):
            related = times * size + plus
            if related >= 1:
                yield {**dict.fromkeys(names, size), name: related}


def _largest_sizes(signature: Signature, feeds: Sequence[Feed]) -> Sizes:
    """Return the largest size in these feeds of each dim without a relation."""
    found: Sizes = {}
    for feed, spec in itertools.product(feeds, signature.inputs):
        shape = feed[spec.name].shape if spec.name in feed else ()
        for dim, size in zip(spec.dims, shape, strict=False):
            if dim.name is not None and dim.relation is None:
                found[dim.name] = max(found.get(dim.name, 1), size)
    return found


_ALL_OPEN_FEED = "max"  # the feed whose masks hide nothing
_MAX_MASKS = 4  # masks of which all subsets are tried


def choose_mask_sense(
    loaded: LoadedModule, signature: Signature, *, seed: int, samples: Feed | None = None
) -> Signature:
    """Set `hides` on masks that eager accepts only if True hides.

    Eager rejects a mask row that hides all positions, or returns NaN. If rows of ones do so and
    rows of zeros do not, True hides. Other inputs are drawn like the samples; the mask of a sample
    is no evidence, as it may hide only a part.
    """
    masks = [
        spec.name
        for spec in signature.inputs
        if spec.dtype == "bool" and spec.values is None and spec.dims
    ][:_MAX_MASKS]
    if not masks:
        return signature
    eager = open_eager(loaded, signature)
    before = eager.before()
    sizes = _runnable_sizes(eager, signature, seed, samples)
    counts = range(len(masks) + 1)
    subsets = itertools.chain.from_iterable(itertools.combinations(masks, n) for n in counts)
    tried = (
        replace(
            signature,
            inputs=tuple(
                replace(spec, hides=spec.hides or spec.name in hiding) for spec in signature.inputs
            ),
        )
        for hiding in subsets
    )
    found = next(
        (one for one in tried if _accepts_open_masks(eager, one, sizes, seed, samples)), signature
    )
    before.restore()  # discard state that forward kept from these feeds
    return found


def _runnable_sizes(eager: Eager, signature: Signature, seed: int, samples: Feed | None) -> Sizes:
    """Return sizes at which eager runs: those of the sample or a search, else opt."""
    loose = [name for name, dim in signature.free_dims.items() if not dim.bounded]
    probe = SizeProbe(eager, signature, seed, samples)
    start = find_start(probe, loose, sampled=samples is not None) if loose else None
    return start or signature.opt_sizes


def _accepts_open_masks(
    eager: Eager, signature: Signature, sizes: Sizes, seed: int, samples: Feed | None
) -> bool:
    """Return whether eager gives outputs without NaN for masks that hide nothing."""
    import numpy as np

    feed = FeedDrawer.of(signature, seed, samples).feed(_ALL_OPEN_FEED, sizes)
    try:
        outputs = eager.run(feed.arrays)
    except CheckpointError:
        return False
    return not any(np.isnan(one).any() for one in outputs.values() if one.dtype.kind in "fc")


_TEXT = {"sequence", "past"}  # dims of a decoder's text: the tokens and those before them
_TIMES_AS_LARGE = (10, 4, 2)  # of the largest size that was tried, as an example for the user


def describe_unverified_dims(signature: Signature, wider: InputSpec | None) -> str:
    """Describe the dims that modelc chose, what is not verified, and how to state it.

    As in `dims: samples 201..896 (chosen; ...)`. The example names a dim that ends where the search
    ended, and a size at which eager runs; a dim that ends earlier, where eager does, needs none.
    """
    dims = Domain(inputs=signature.inputs).describe_chosen()
    if wider is None:
        return f"dims: {dims} (chosen; state others with --input)"
    return f"dims: {dims} (chosen; larger are not verified, state them: --input '{wider}')"


def widen_input(signature: Signature, loaded: LoadedModule) -> InputSpec | None:
    """Return the first input with a dim that ends with the search, and is larger in eager.

    Tokens and their past together end with the model's positions, beyond which a rotary model
    computes values that mean nothing.
    """
    batch = find_batch_dim(signature)
    found = [
        (spec, dim)
        for spec in signature.inputs
        for dim in spec.dims
        if dim.chosen and dim.relation is None and dim.high == SIZE_FACTOR * dim.opt
        if dim != batch
    ]
    if not found:
        return None
    eager = open_eager(loaded, signature)
    before, probe = eager.before(), SizeProbe(eager, signature, 0, None)
    most = {name: dim.high for name, dim in signature.free_dims.items()}
    if batch is not None:
        most[batch.name or ""] = max(batch.low, 1)
    try:
        for times, (spec, dim) in itertools.product(_TIMES_AS_LARGE, found):
            high = _leave_positions(spec, dim, most, loaded.positions, times * dim.high)
            sizes = {**most, dim.name or "": high}
            if high <= dim.high:
                continue
            if signature.count_elements(sizes) > MAX_ELEMENTS or probe.accepts(sizes):
                dims = tuple(_format_dim(one, dim, high) for one in spec.dims)
                return replace(spec, dims=dims)
    finally:
        before.restore()  # discard state that forward kept from these feeds
    return None


def _leave_positions(
    spec: InputSpec, dim: Dim, most: Mapping[str, int], positions: int | None, high: int
) -> int:
    """Return the end of a dim, at most the positions that the other dims of a text leave to it."""
    text = most.keys() & _TEXT
    if positions is None or (spec.dtype in FLOATS and dim.name not in text):
        return high
    return min(high, positions - sum(most[name] for name in text - {dim.name}))


def _format_dim(dim: Dim, widened: Dim, high: int) -> Dim:
    """Give the widened dim its new end; reduce other chosen dims to their names."""
    if dim != widened:
        return replace(dim, bounded=not dim.chosen)
    return Dim(name=dim.name, low=dim.low, opt=default_opt(dim.low, high), high=high)
