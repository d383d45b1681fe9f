"""Test sizes beyond those of the feeds: a sweep, extra sizes to judge at, and dynamic axes."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
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

_MIN_DIFFERENCE = 1e-3  # relative to the largest value of an output; smaller ones are ignored
_MAX_SWEPT_SIZES = 256  # per dim
_MAX_SWEEP_FEEDS = 96  # feeds of integer values
_FEW_FEEDS = 16  # replaces both limits if a run is expensive
_SMALL_FLOPS = 10**8  # a run at the largest sizes is expensive above this
_MAX_KEPT = 3  # differing feeds per output that are judged
_MAX_VALUES = 1 << 12  # largest product of the dynamic dims of a value feed
_MAX_FEED_ELEMENTS = 1 << 16  # largest outputs that are cached for the next artifact
_WIDE_RANGE = 1 << 40
_PRIME_STEPS = (1, 7, 11, 13, 17, 19)
SWEEP_PREFIX = "sweep"  # feed names: sweep:seq=25, sweep:values-3


def run_sweep(
    evidence: Evidence,
    eager: EagerReference,
    runner: Runner,
    origins: frozenset[DiscreteOrigin],
) -> tuple[Evidence, int, int]:
    """Run eager and the artifact on many feeds; count the feeds, and those that differ.

    At most `_MAX_KEPT` differing feeds are added to the evidence for each output.

    Args:
        evidence: evidence on an artifact that passed on all feeds so far.
        eager: the eager reference; caches eager's outputs for the next artifact.
        runner: the opened artifact.
        origins: what the model's rounded floats depend on.
    """
    largest = max((one.feed for one in evidence.references), key=lambda feed: feed.elements).arrays
    costs = flops_exceed(lambda: eager.model.run(largest), _SMALL_FLOPS)
    drawer = FeedDrawer.of(eager.signature, eager.feeds.seed, find_sample(evidence.references))
    wrong: Counter[str] = Counter()  # differing feeds by output
    count = differing = 0
    feeds = itertools.chain(
        _size_sweep_feeds(drawer, _FEW_FEEDS if costs else _MAX_SWEPT_SIZES)
        if DiscreteOrigin.SIZES in origins
        else (),
        _value_sweep_feeds(drawer, _FEW_FEEDS if costs else _MAX_SWEEP_FEEDS)
        if DiscreteOrigin.INTEGERS in origins
        else (),
    )
    for feed in feeds:
        expected = _run_eager_or_none(feed, eager)
        if expected is None:
            continue
        count += 1
        try:
            given = runner.run(feed.arrays)
            outputs = find_differing_outputs(expected, given, share=_MIN_DIFFERENCE)
        except RunnerError:
            outputs = tuple(expected)
        differing += bool(outputs)
        if any(wrong[name] < _MAX_KEPT for name in outputs):
            reference = run_eager(eager, feed)
            evidence = evidence.plus(reference, reply_to(runner, reference))
        wrong.update(outputs)
    return evidence, count, differing


def find_rounding_origins(evidence: Evidence, eager: EagerReference) -> frozenset[DiscreteOrigin]:
    """Return what the model's rounded floats depend on (sizes, integers); empty: skip the sweep."""
    base = next(one.feed for one in evidence.references if one.feed.name == "opt")
    return eager.model.find_discrete_origins(base.arrays)


def _size_sweep_feeds(drawer: FeedDrawer, most: int) -> Iterator[NamedFeed]:
    """Yield feeds that vary one dim at a time, with the batch at its lowest size, others at opt."""
    dims = drawer.signature.free_dims
    opt = drawer.signature.opt_sizes
    rows = next((dim.name for spec in drawer.signature.inputs for dim in spec.dims[:1]), None)
    if rows in dims and len(dims) > 1:
        opt[str(rows)] = dims[str(rows)].low
    for name, dim in dims.items():
        sizes = range(dim.low, dim.high + 1)
        stride = max(1, math.ceil(len(sizes) / most))
        for size in sizes if stride == 1 else sizes[:: stride | 1]:
            yield drawer.feed(f"{SWEEP_PREFIX}:{name}={size}", {**opt, name: size}, "shape")


def _value_sweep_feeds(drawer: FeedDrawer, most: int) -> Iterator[NamedFeed]:
    """Yield feeds of consecutive integers, alternately different and equal between inputs."""
    sizes = drawer.signature.high_sizes
    if math.prod(sizes.values()) > _MAX_VALUES:
        sizes = drawer.signature.opt_sizes
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


def _consecutive_values(
    ends: tuple[int, int], number: int, shape: tuple[int, ...], step: int
) -> Array:
    """Return values of a range with a step; feed `number` continues the previous one.

    In a range that the feeds cannot cover, start at a random value.
    """
    import numpy as np

    low, high = ends
    span, size = high - low + 1, math.prod(shape)
    start = number * size
    if span > _MAX_SWEEP_FEEDS * max(size, 1):
        start = Random(number).randrange(span)
    if span < _WIDE_RANGE:
        found: Array = low + (start + step * np.arange(size)) % span
    else:  # Python integers do not overflow
        found = np.array([low + (start + step * one) % span for one in range(size)])
    return found.reshape(shape)


def _has_values(spec: InputSpec) -> bool:
    values = spec.values
    if values is None or values.follows or values.order or spec.dtype in (*FLOATS, "bool"):
        return False
    return values.high - values.low > 1


def _sweep_range(spec: InputSpec) -> tuple[int, int]:
    """Return the range to sweep.

    A range that modelc chose is limited to its usual part and values of similar magnitude.
    """
    if spec.values is None:
        raise ValueError(f"{spec.name} has no range")
    low, high = int(spec.values.low), int(spec.values.high)
    if spec.values.usual is None:
        return low, high
    most = max(abs(int(end)) for end in spec.values.usual)
    return max(low, min(0, int(spec.values.usual[0]))), min(high, max(2 * most, 1023))


def _run_eager_or_none(feed: NamedFeed, eager: EagerReference) -> Outputs | None:
    """Return eager's outputs; None if it rejects the feed or returns other output names."""
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


_SIZE_PREFIX = "size"  # feed names: size-1, size-2, ...
_MAX_TURNS = 6  # sizes to judge at which forward takes another branch


def find_extra_sizes(job: Job, capture: str, memory: RunMemory) -> tuple[Mapping[str, int], ...]:
    """Return extra sizes at which every artifact of the run is judged.

    These are sizes at which a resize by a scale rounds differently in float32, and sizes at which
    forward takes another branch. The guards of a torch.export program cover the latter, unless a
    size is converted to text.

    Args:
        job: a job on the eager model.
        capture: capture of the artifact or of its parent; empty if unknown, or if the captured
            model is a rewritten copy, whose guards may differ from eager's.
        memory: caches the sizes for the run.
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
    """Return the eager reference with a feed at each of these sizes that has none.

    Args:
        eager: the eager reference.
        places: sizes that the conversion requires to be judged.
        found: further sizes; those that eager rejects are skipped.

    Raises:
        ConversionError: eager rejects one of `places`, so the artifact cannot be judged there.
    """
    known = [one.feed.sizes for one in eager.references if one.feed.kind in SIZED]
    domain = Domain(inputs=eager.signature.inputs)
    places, found = ([one for one in sizes if domain.contains(one)] for sizes in (places, found))
    missing = _unique_sizes(places, besides=known)
    further = _unique_sizes(found, besides=[*known, *missing])
    if not missing and not further:
        return eager
    drawer = FeedDrawer.of(eager.signature, eager.feeds.seed, find_sample(eager.references))
    try:
        more = [
            run_eager(eager, drawer.feed(f"{_SIZE_PREFIX}-{number}", sizes))
            for number, sizes in enumerate(missing, start=1)
        ]
    except CheckpointError as error:
        raise ConversionError(
            f"at a size that torch.export treats separately, eager fails: {error.message}",
            hint=error.advice,
        ) from error
    for number, sizes in enumerate(further, start=len(missing) + 1):
        with suppress(CheckpointError):
            more.append(run_eager(eager, drawer.feed(f"{_SIZE_PREFIX}-{number}", sizes)))
    return replace(eager, references=(*eager.references, *more))


def size_feeds(eager: EagerReference) -> dict[str, dict[str, int]]:
    """Return the sizes of the feeds that `add_size_feeds` added, by feed name."""
    feeds = (one.feed for one in eager.references)
    return {
        feed.name: dict(feed.sizes) for feed in feeds if feed.name.startswith(f"{_SIZE_PREFIX}-")
    }


def add_recorded_sizes(
    eager: EagerReference, places: Mapping[str, Mapping[str, int]]
) -> EagerReference:
    """Return the eager reference with the extra feeds that the manifest records for an artifact."""
    drawer = FeedDrawer.of(eager.signature, eager.feeds.seed, find_sample(eager.references))
    more = [run_eager(eager, drawer.feed(name, dict(sizes))) for name, sizes in places.items()]
    return replace(eager, references=(*eager.references, *more)) if more else eager


def _unique_sizes(
    places: Sequence[Mapping[str, int]], *, besides: Sequence[Mapping[str, int]]
) -> list[dict[str, int]]:
    """Return the sizes without duplicates and without those in `besides`."""
    fresh: list[dict[str, int]] = []
    for one in map(dict, places):
        if one not in besides and one not in fresh:
            fresh.append(one)
    return fresh


def find_output_axes(
    signature: Signature, references: Sequence[ReferenceOutputs]
) -> dict[str, dict[int, str]]:
    """Return the dynamic axes of each output with the name of the dim that they equal.

    Example: `{"logits": {0: "batch", 1: "logits.axis1"}}`. An axis that equals no dim on all
    feeds gets a generated name.
    """
    sizes = [_dim_sizes(signature, one) for one in references]
    found: dict[str, dict[int, str]] = {}
    for name in signature.outputs:
        shapes = [one.outputs[name].shape for one in references]
        if len({len(shape) for shape in shapes}) == 1:
            found[name] = dict(_find_varying_axes(name, shapes, sizes))
    return {name: axes for name, axes in found.items() if axes}


def _dim_sizes(signature: Signature, reference: ReferenceOutputs) -> dict[str, int]:
    """Return the sizes of the named input axes on one feed."""
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
