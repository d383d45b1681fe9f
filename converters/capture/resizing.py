"""Sizes at which a resize by scales gives one size in float32 and another in float64."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...core.contract import Job
from ...core.fitting import Sizes
from ...core.torch_modes import through_calls
from .answering import feed_sizes, resize_example
from .eager import model_of

if TYPE_CHECKING:
    from ...core.signature import Dim

_MOST = 2  # sizes that are given for each dim and scale: from both ends of its range
_AIMS = 8  # sizes at the resize that are looked for, for that
_STEPS = 4  # runs of eager that come nearer to one
Resize = tuple[int, float]  # a size that is resized, and by what


def resize_sizes(job: Job) -> tuple[Sizes, ...]:
    """Sizes of the domain at which `floor(size * scale)` differs between float32 and float64.

    Eager computes it in float64, runtimes in float32. Which size of a dim gives a size at a resize
    is found by running eager; a model without resizes by broken scales costs one run.
    """
    signature = job.signature
    base = feed_sizes(signature, job.example)
    batch = signature.inputs[0].dims[0].free.name if signature.inputs[0].dims else None
    dims = {name: dim for name, dim in signature.free_dims.items() if name != batch}
    if not dims or not any(_is_rounded(scale) for _, scale in _record_resizes(job, base)):
        return ()
    found: list[Sizes] = []
    for name, dim in dims.items():
        found += [one for one in _sizes_of_dim(job, base, name, dim) if one not in found]
    return tuple(found)


def _is_rounded(scale: float) -> bool:
    """Whether float32 rounds the scale: 2, 0.5 and 1.75 are what they are in both."""
    import numpy as np

    return float(np.float32(scale)) != scale


def _record_resizes(job: Job, sizes: Sizes) -> list[Resize]:
    """The resizes by scales of one run of eager, axis by axis, in order."""
    import torch
    from torch.nn import functional

    found: list[Resize] = []

    def through(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if func in (functional.interpolate, functional.upsample):
            scale = kwargs.get("scale_factor", args[2] if len(args) > 2 else None)  # noqa: PLR2004 - its place
            found.extend(_resize_axes(args[0] if args else kwargs["input"], scale))
        return func(*args, **kwargs)

    try:
        with torch.no_grad(), through_calls(through):
            model_of(job).flat(*resize_example(job, sizes))
    except Exception:  # noqa: BLE001 - the user's code raises anything
        return []
    return found


def _resize_axes(tensor: Any, scale: Any) -> Iterator[Resize]:
    if scale is None:
        return
    spatial = tensor.shape[2:]
    scales = scale if isinstance(scale, (list, tuple)) else [scale] * len(spatial)
    yield from ((int(size), float(one)) for size, one in zip(spatial, scales, strict=False))


def _sizes_of_dim(job: Job, base: Sizes, name: str, dim: Dim) -> Iterator[Sizes]:
    """Sizes of one dim, the others at the example's."""
    ends = [_record_resizes(job, {**base, name: size}) for size in (dim.low, dim.high)]
    if len(ends[0]) != len(ends[1]):
        return
    for place, ((first, scale), (last, _)) in enumerate(zip(*ends, strict=True)):
        if first == last or not _is_rounded(scale):
            continue
        apart = [size for size in range(min(first, last), max(first, last) + 1)
                 if _is_size_different(size, scale)]  # fmt: skip
        given = 0
        for aim in _alternate_ends(apart)[:_AIMS]:
            size = _find_size(job, base, (name, dim), place, aim, (first, last))
            if size is not None:
                given += 1
                yield {**base, name: size}
            if given == _MOST:
                break


def _is_size_different(size: int, scale: float) -> bool:
    import numpy as np

    return math.floor(size * scale) != math.floor(np.float32(size) * np.float32(scale))


def _alternate_ends(values: list[int]) -> list[int]:
    half = (len(values) + 1) // 2
    pairs = zip(values[:half], values[::-1][:half], strict=True)
    return list(dict.fromkeys(value for pair in pairs for value in pair))


def _find_size(  # noqa: PLR0913, PLR0917 - where it is looked for, and what
    job: Job,
    base: Sizes,
    named: tuple[str, Dim],
    place: int,
    aim: int,
    ends: tuple[int, int],
) -> int | None:
    """The size of a dim at which the resize gets the one that is looked for; None without one."""
    name, dim = named
    slope = (ends[1] - ends[0]) / (dim.high - dim.low)
    size = dim.low + round((aim - ends[0]) / slope)
    for _ in range(_STEPS):
        size = min(max(size, dim.low), dim.high)
        seen = _record_resizes(job, {**base, name: size})
        if len(seen) <= place:
            return None
        if seen[place][0] == aim:
            return size
        size += round((aim - seen[place][0]) / slope) or (1 if aim > seen[place][0] else -1)
    return None
