"""Runs an artifact at many sizes and integer values, where a model rounds floats made of these.

Such a float is the same in each run of eager, and a runtime may compute it otherwise by its last
digit at a few sizes or values: no few feeds find these. So eager and the artifact are run at each
size of a dim, and over the values of integer inputs. What differs is judged as any feed is.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING

from ..calibration.sample_reader import feed_digest
from ..core.contract import Outputs, Runner
from ..core.errors import CheckpointError, RunnerError
from ..core.signature import FLOATS, InputSpec
from ..sources.eager_probes import DiscreteOrigin
from ..sources.run_limits import flops_exceed
from ..validators.feeds import FeedDrawer, NamedFeed
from ..validators.output_pairs import find_differing_outputs, find_sample
from .beyond import Evidence, reply_to
from .subject import EagerReference, run_eager

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


def run_sweep(evidence: Evidence, subject: EagerReference, runner: Runner) -> SweepResult:
    """Run eager and the artifact on many feeds, and add those that differ to the evidence.

    Args:
        evidence: of an artifact that is right on all feeds so far.
        subject: the eager side. What it gives on these feeds is kept for the next artifact.
        runner: the artifact, which is open.
    """
    origins = find_rounding_origins(evidence, subject)
    largest = max((one.feed for one in evidence.references), key=_element_count).arrays
    costs = flops_exceed(lambda: subject.eager.run(largest), _SMALL_FLOPS)
    drawer = FeedDrawer.of(subject.signature, subject.feeds.seed, find_sample(evidence.references))
    wrong: Counter[str] = Counter()  # by output, on how many feeds
    count = apart = 0
    for feed in _sweep_feeds(drawer, origins, few=costs):
        expected = _run_eager_or_none(feed, subject)
        if expected is None:
            continue
        count += 1
        outputs = _find_differing_outputs(runner, feed, expected)
        apart += bool(outputs)
        if any(wrong[name] < _MAX_KEPT for name in outputs):
            reference = run_eager(subject, feed)
            evidence = evidence.plus(reference, reply_to(runner, reference))
        wrong.update(outputs)
    return SweepResult(evidence=evidence, count=count, differing=apart)


def find_rounding_origins(evidence: Evidence, subject: EagerReference) -> frozenset[DiscreteOrigin]:
    """What the rounded floats of the model follow from; where there are none, nothing is swept."""
    base = next(one.feed for one in evidence.references if one.feed.name == "opt")
    return subject.eager.find_discrete_origins(base.arrays)


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


def _run_eager_or_none(feed: NamedFeed, subject: EagerReference) -> Outputs | None:
    """What eager gives; None where it rejects the feed, or gives other outputs than usual."""
    key = feed_digest(feed.arrays).hex()
    if key in subject.swept:
        return subject.swept[key]
    try:
        found: Outputs | None = subject.eager.run_reference(feed.arrays, far=True)
    except CheckpointError:
        found = None
    if found is not None and tuple(found) != subject.signature.outputs:
        found = None
    if found is None or sum(array.size for array in found.values()) <= _MAX_FEED_ELEMENTS:
        subject.swept[key] = found
    return found


def _find_differing_outputs(runner: Runner, feed: NamedFeed, expected: Outputs) -> tuple[str, ...]:
    try:
        return find_differing_outputs(expected, runner.run(feed.arrays), share=_MIN_DIFFERENCE)
    except RunnerError:
        return tuple(expected)


def _element_count(feed: NamedFeed) -> int:
    return sum(array.size for array in feed.arrays.values())
