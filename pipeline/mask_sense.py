"""Which bool masks hide where they are True: eager is asked, as nothing else says it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..core.errors import CheckpointError
from ..core.signature import InputSpec, Signature
from ..sources.eager_model import Eager, open_eager
from ..validators.feeds import FeedDrawer
from .size_probe import SizeProbe, Sizes, find_start

if TYPE_CHECKING:
    from ..core.contract import Feed, Outputs
    from ..sources.loaded_module import LoadedModule

_ALL_OPEN_FEED = "max"  # the feed that hides nothing: all places are kept
_MAX_MASKS = 4  # masks of which all choices are tried


def choose_mask_sense(
    loaded: LoadedModule, signature: Signature, *, seed: int, samples: Feed | None = None
) -> Signature:
    """The signature with `hides` set for masks that eager does not take otherwise.

    A row of a mask that hides all of its places is rejected by eager, or gives NaN. Where rows of
    ones do so and rows of zeros do not, True hides. Inputs beside the masks are drawn like the
    samples; what a sample's own mask hides says nothing, as it may be half full.
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
    for hiding in _mask_subsets(masks):
        tried = _set_hides(signature, hiding)
        if _accepts_open_masks(eager, tried, sizes, seed, samples):
            before.restore()
            return tried
    before.restore()  # what forward kept of these feeds is not the model's
    return signature


def _mask_subsets(masks: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """None of the masks, each, each two, and so on."""
    for count in range(len(masks) + 1):
        yield from itertools.combinations(masks, count)


def _set_hides(signature: Signature, names: Sequence[str]) -> Signature:
    def with_sense(spec: InputSpec) -> InputSpec:
        return replace(spec, hides=True) if spec.name in names else spec

    return replace(signature, inputs=tuple(with_sense(spec) for spec in signature.inputs))


def _runnable_sizes(eager: Eager, signature: Signature, seed: int, samples: Feed | None) -> Sizes:
    """The sample's sizes, or such at which eager runs where dims have no bounds yet; else opt."""
    loose = [name for name, dim in signature.free_dims.items() if not dim.bounded]
    probe = SizeProbe(eager, signature, seed, samples)
    start = find_start(probe, loose, sampled=samples is not None) if loose else None
    return start or {name: dim.opt for name, dim in signature.free_dims.items()}


def _accepts_open_masks(
    eager: Eager, signature: Signature, sizes: Sizes, seed: int, samples: Feed | None
) -> bool:
    """Whether eager gives finite outputs for masks that hide nothing."""
    feed = FeedDrawer.of(signature, seed, samples).feed(_ALL_OPEN_FEED, sizes)
    try:
        outputs = eager.run(feed.arrays)
    except CheckpointError:
        return False
    return not _has_nan(outputs)


def _has_nan(outputs: Outputs) -> bool:
    import numpy as np

    return any(bool(np.isnan(one).any()) for one in outputs.values() if one.dtype.kind in "fc")
