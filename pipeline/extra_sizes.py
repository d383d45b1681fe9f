"""Sizes beyond those of the feeds: a sweep, sizes to judge at, and axes that follow a dim."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING

from ..calibration.sample_reader import feed_digest
from ..capture.size_branches import branch_sizes
from ..capture.size_checks import resize_sizes
from ..capture.torch_export import AS_TEXT
from ..checkpoints.eager_probes import DiscreteOrigin
from ..checkpoints.run_limits import flops_exceed
from ..converters.onnx_exporters import GENERATED_AXIS
from ..core.contract import Job, Outputs, Runner
from ..core.domain import Domain
from ..core.errors import CheckpointError, ConversionError, RunnerError
from ..core.findings import SIZED
from ..core.kinds import Capture
from ..core.signature import FLOATS, InputSpec, Signature
from ..validators.feeds import FeedDrawer, NamedFeed
from ..validators.judge import ReferenceOutputs
from ..validators.output_pairs import find_differing_outputs, find_sample
from .eager_reference import EagerReference, run_eager
from .reply_evidence import Evidence, reply_to
from .run_context import RunMemory

if TYPE_CHECKING:
    from ..core.contract import Array

_MIN_DIFFERENCE = 1e-3  # of the largest value of an output: closer ones are left to the other feeds
_MAX_SWEPT_SIZES = 256  # of one dim
_MAX_SWEEP_FEEDS = 96  # of integer values
_FEW_FEEDS = 16  # of either, where a run costs much
_SMALL_FLOPS = 10**8  # of one run at the largest sizes that is cheap
_MAX_KEPT = 3  # feeds on which an output differs, and that are judged
_MAX_VALUES = 1 << 12  # the most elements by dynamic dims of a feed of values
_MAX_FEED_ELEMENTS = 1 << 16  # of the outputs of a run that are kept for the next artifact
_WIDE_RANGE = 1 << 40
_PRIME_STEPS = (1, 7, 11, 13, 17, 19)
SWEEP_PREFIX = "sweep"  # of the feeds: sweep:seq=25, sweep:values-3


@dataclass(frozen=True, kw_only=True)
class SweepResult:
    """What was run beside the feeds, and the feeds on which the artifact differs."""

    evidence: Evidence
    count: int = 0
    differing: int = 0


def run_sweep(evidence: Evidence, eager: EagerReference, runner: Runner) -> SweepResult:
    """Run eager and the artifact on many feeds, and add those that differ to the evidence.

    Args:
        evidence: of an artifact that is right on all feeds so far.
        eager: the eager side. What it gives on these feeds is kept for the next artifact.
        runner: the artifact, which is open.
    """
    origins = find_rounding_origins(evidence, eager)
    largest = max((one.feed for one in evidence.references), key=_element_count).arrays
    costs = flops_exceed(lambda: eager.model.run(largest), _SMALL_FLOPS)
    drawer = FeedDrawer.of(eager.signature, eager.feeds.seed, find_sample(evidence.references))
    wrong: Counter[str] = Counter()  # by output, on how many feeds
    count = apart = 0
    for feed in _sweep_feeds(drawer, origins, few=costs):
        expected = _run_eager_or_none(feed, eager)
        if expected is None:
            continue
        count += 1
        outputs = _find_differing_outputs(runner, feed, expected)
        apart += bool(outputs)
        if any(wrong[name] < _MAX_KEPT for name in outputs):
            reference = run_eager(eager, feed)
            evidence = evidence.plus(reference, reply_to(runner, reference))
        wrong.update(outputs)
    return SweepResult(evidence=evidence, count=count, differing=apart)


def find_rounding_origins(evidence: Evidence, eager: EagerReference) -> frozenset[DiscreteOrigin]:
    """What the rounded floats of the model follow from; where there are none, nothing is swept."""
    base = next(one.feed for one in evidence.references if one.feed.name == "opt")
    return eager.model.find_discrete_origins(base.arrays)


def _sweep_feeds(
    drawer: FeedDrawer, origins: frozenset[DiscreteOrigin], *, few: bool
) -> Iterator[NamedFeed]:
    if DiscreteOrigin.SIZES in origins:
        yield from _size_sweep_feeds(drawer, _FEW_FEEDS if few else _MAX_SWEPT_SIZES)
    if DiscreteOrigin.INTEGERS in origins:
        yield from _value_sweep_feeds(drawer, _FEW_FEEDS if few else _MAX_SWEEP_FEEDS)


def _size_sweep_feeds(drawer: FeedDrawer, most: int) -> Iterator[NamedFeed]:
    """Each dim alone at its sizes, the others at their opt, but rows at their fewest."""
    dims = drawer.signature.free_dims
    opt = {name: dim.opt for name, dim in dims.items()}
    rows = next((dim.name for spec in drawer.signature.inputs for dim in spec.dims[:1]), None)
    if rows in dims and len(dims) > 1:
        opt[str(rows)] = dims[str(rows)].low
    for name, dim in dims.items():
        sizes = range(dim.low, dim.high + 1)
        stride = max(1, math.ceil(len(sizes) / most))
        for size in sizes if stride == 1 else sizes[:: stride | 1]:
            yield drawer.feed(f"{SWEEP_PREFIX}:{name}={size}", {**opt, name: size}, "shape")


def _value_sweep_feeds(drawer: FeedDrawer, most: int) -> Iterator[NamedFeed]:
    """The values of integer inputs in turn, then the same ones in all of them."""
    sizes = _largest_cheap_sizes(drawer)
    specs = [spec for spec in drawer.signature.inputs if _has_values(spec)]
    if not specs:
        return
    base = drawer.feed(SWEEP_PREFIX, sizes, "value")
    spans = {spec.name: _sweep_range(spec) for spec in specs}
    shared = max(low for low, _ in spans.values()), min(high for _, high in spans.values())
    for number in range(most):
        alike = number % 2 == 1 and len(spans) > 1 and shared[0] <= shared[1]
        arrays = dict(base.arrays)
        for place, (name, ends) in enumerate(spans.items()):
            shape, kind = base.arrays[name].shape, base.arrays[name].dtype
            step = _PRIME_STEPS[0 if alike else place % len(_PRIME_STEPS)]
            found = _consecutive_values(shared if alike else ends, number, shape, step)
            arrays[name] = found.astype(kind)
        yield replace(base, name=f"{SWEEP_PREFIX}:values-{number + 1}", arrays=arrays)


def _largest_cheap_sizes(drawer: FeedDrawer) -> dict[str, int]:
    """The largest sizes where these are few elements, else opt: a feed holds as many values."""
    dims = drawer.signature.free_dims
    high = {name: dim.high for name, dim in dims.items()}
    if math.prod(high.values()) <= _MAX_VALUES:
        return high
    return {name: dim.opt for name, dim in dims.items()}


def _consecutive_values(
    ends: tuple[int, int], number: int, shape: tuple[int, ...], step: int
) -> Array:
    """Values of the range from its start, by a step; where it is long, from random places on."""
    import numpy as np

    low, high = ends
    span, size = high - low + 1, math.prod(shape)
    start = number * size
    if span > _MAX_SWEEP_FEEDS * max(size, 1):
        start = Random(number).randrange(span)
    if span < _WIDE_RANGE:
        found: Array = low + (start + step * np.arange(size)) % span
    else:  # Python's integers, which do not overflow
        found = np.array([low + (start + step * one) % span for one in range(size)])
    return found.reshape(shape)


def _has_values(spec: InputSpec) -> bool:
    values = spec.values
    if values is None or values.follows or values.order or spec.dtype in (*FLOATS, "bool"):
        return False
    return values.high - values.low > 1


def _sweep_range(spec: InputSpec) -> tuple[int, int]:
    """The range; of a chosen one that holds anything, its usual part and what is as large."""
    if spec.values is None:
        raise ValueError(f"{spec.name} has no range")
    low, high = int(spec.values.low), int(spec.values.high)
    if spec.values.usual is None:
        return low, high
    most = max(abs(int(end)) for end in spec.values.usual)
    return max(low, min(0, int(spec.values.usual[0]))), min(high, max(2 * most, 1023))


def _run_eager_or_none(feed: NamedFeed, eager: EagerReference) -> Outputs | None:
    """What eager gives; None where it rejects the feed, or gives other outputs than usual."""
    key = feed_digest(feed.arrays).hex()
    if key in eager.swept:
        return eager.swept[key]
    try:
        found: Outputs | None = eager.model.run_reference(feed.arrays, extreme=True)
    except CheckpointError:
        found = None
    if found is not None and tuple(found) != eager.signature.outputs:
        found = None
    if found is None or sum(array.size for array in found.values()) <= _MAX_FEED_ELEMENTS:
        eager.swept[key] = found
    return found


def _find_differing_outputs(runner: Runner, feed: NamedFeed, expected: Outputs) -> tuple[str, ...]:
    try:
        return find_differing_outputs(expected, runner.run(feed.arrays), share=_MIN_DIFFERENCE)
    except RunnerError:
        return tuple(expected)


def _element_count(feed: NamedFeed) -> int:
    return sum(array.size for array in feed.arrays.values())


_SIZE_PREFIX = "size"  # of the feeds: size-1, size-2, ...
_MAX_TURNS = 6  # sizes at which forward goes another way that artifacts are judged at


def find_extra_sizes(job: Job, capture: str, memory: RunMemory) -> tuple[Mapping[str, int], ...]:
    """Sizes that every artifact of the run is judged at, whatever its capture; found once.

    These are sizes at which resizes by scales round otherwise in float32, and such at which forward
    goes another way. A program of torch.export has the latter in its guards, which are checked; it
    has none for a size that became a text.

    Args:
        job: of the eager model.
        capture: how the artifact, or what it is made from, was captured; empty if that is not
            known, or was done on a copy, whose guards are not eager's.
        memory: keeps what was found.
    """
    found = memory.places
    if "resizes" not in found:
        found["resizes"] = resize_sizes(job)
    if capture.startswith(Capture.EXPORT) and AS_TEXT not in job.programs:
        return (*found["resizes"], *found.get("turns", ()))
    if "turns" not in found:
        found["turns"] = branch_sizes(job)[:_MAX_TURNS]
    return (*found["resizes"], *found["turns"])


def add_size_feeds(
    eager: EagerReference,
    places: Sequence[Mapping[str, int]],
    *,
    found: Sequence[Mapping[str, int]] = (),
) -> EagerReference:
    """The subject with a feed, drawn as the others are, at each of these sizes that has none.

    Of those `found`, what eager rejects is left out: a model may reject a size of its own accord.

    Raises:
        ConversionError: eager rejects one of `places`, where the artifact cannot be judged then.
    """
    known = [one.feed.sizes for one in eager.references if one.feed.kind in SIZED]
    domain = Domain(inputs=eager.signature.inputs)
    places, found = ([one for one in sizes if domain.contains(one)] for sizes in (places, found))
    missing = _unique_sizes(places, besides=known)
    further = _unique_sizes(found, besides=[*known, *missing])
    if not missing and not further:
        return eager
    drawer = _feed_drawer(eager)
    try:
        more = [
            run_eager(eager, drawer.feed(f"{_SIZE_PREFIX}-{number}", sizes))
            for number, sizes in enumerate(missing, start=1)
        ]
    except CheckpointError as error:
        raise ConversionError(
            f"at a size that torch.export did not mean, eager says: {error.message}",
            hint=error.advice,
        ) from error
    for number, sizes in enumerate(further, start=len(missing) + 1):
        with suppress(CheckpointError):
            more.append(run_eager(eager, drawer.feed(f"{_SIZE_PREFIX}-{number}", sizes)))
    return replace(eager, references=(*eager.references, *more))


def size_feeds(eager: EagerReference) -> dict[str, dict[str, int]]:
    """The feeds of `add_size_feeds` that the eager reference has, by name, with their sizes."""
    feeds = (one.feed for one in eager.references)
    return {
        feed.name: dict(feed.sizes) for feed in feeds if feed.name.startswith(f"{_SIZE_PREFIX}-")
    }


def add_recorded_sizes(
    eager: EagerReference, places: Mapping[str, Mapping[str, int]]
) -> EagerReference:
    """The subject with the feeds that an artifact was judged on beside the run's, drawn again."""
    drawer = _feed_drawer(eager)
    more = [run_eager(eager, drawer.feed(name, dict(sizes))) for name, sizes in places.items()]
    return replace(eager, references=(*eager.references, *more)) if more else eager


def _feed_drawer(eager: EagerReference) -> FeedDrawer:
    """Draws feeds as the eager reference's own are drawn."""
    return FeedDrawer.of(eager.signature, eager.feeds.seed, find_sample(eager.references))


def _unique_sizes(
    places: Sequence[Mapping[str, int]], *, besides: Sequence[Mapping[str, int]]
) -> list[dict[str, int]]:
    """Each of these sizes once, without those that are known."""
    fresh: list[dict[str, int]] = []
    for one in map(dict, places):
        if one not in besides and one not in fresh:
            fresh.append(one)
    return fresh


def find_output_axes(
    signature: Signature, references: Sequence[ReferenceOutputs]
) -> dict[str, dict[int, str]]:
    """`{"logits": {0: "batch", 1: "logits.axis1"}}`: axes that vary, by the dim that they follow.

    What is no dim's own size on every feed gets a name of its own.
    """
    sizes = [_dim_sizes(signature, one) for one in references]
    found: dict[str, dict[int, str]] = {}
    for name in signature.outputs:
        shapes = [one.outputs[name].shape for one in references]
        if len({len(shape) for shape in shapes}) == 1:
            found[name] = dict(_find_varying_axes(name, shapes, sizes))
    return {name: axes for name, axes in found.items() if axes}


def _dim_sizes(signature: Signature, reference: ReferenceOutputs) -> dict[str, int]:
    """The sizes of the dims on one feed, by the names that axes have."""
    arrays = reference.feed.arrays
    return {
        name: arrays[key].shape[axis]
        for key, axes in signature.axes().items()
        for axis, name in axes.items()
    }


def _find_varying_axes(
    output: str, shapes: Sequence[tuple[int, ...]], sizes: Sequence[Mapping[str, int]]
) -> Iterator[tuple[int, str]]:
    for axis in range(len(shapes[0]) if shapes else 0):
        given = [shape[axis] for shape in shapes]
        if len(set(given)) == 1:
            continue
        same = (name for name in sizes[0] if given == [one[name] for one in sizes])
        yield axis, next(same, f"{output}{GENERATED_AXIS}{axis}")
