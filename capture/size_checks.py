"""Compare a captured program with eager at other sizes, and find sizes with inexact resizes."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..core.contract import Feed, Job
from ..core.domain import Sizes
from ..core.signature import Signature
from ..core.torch_tools import intercept_calls
from .captured_program import model_of

if TYPE_CHECKING:
    import torch

    from ..core.contract import Array
    from ..core.signature import Dim

_LOG = logging.getLogger(__name__)
OUTSIDE = "outside"  # key in a job's programs: sizes at which conditions of torch.export break
MISMATCH = (
    1e-3  # relative to a value, and to a small one: another outcome of a branch differs by more
)
_SMALL = 10  # one in so many distinct values is smaller than a "small" one
_ROUNDINGS = 4  # of the dtype: bfloat16 is coarser than `tolerance`


def first_mismatch(
    program: Callable[..., object],
    job: Job,
    places: Iterable[Sizes],
    *,
    tolerance: float = MISMATCH,
) -> Sizes | None:
    """Return the first of these sizes at which the program differs from eager.

    Both run on the resized example; sizes that eager rejects are skipped. `tolerance` is relative
    to each value, and to a small value: relative to the largest, a mask of -3.4e38 would hide
    errors.
    """
    return next(
        (sizes for sizes in places if not _matches_eager(program, job, sizes, tolerance)), None
    )


def _matches_eager(
    program: Callable[..., object], job: Job, sizes: Sizes, tolerance: float
) -> bool:
    import torch

    tensors = resize_example(job, sizes)
    with torch.no_grad():
        try:
            expected = model_of(job).flat(*(one.clone() for one in tensors))
        except Exception as error:  # noqa: BLE001 - the user's code raises anything
            _LOG.info("eager rejects %s: %s", dict(sizes), error)
            return True
        try:
            given: Any = program(*tensors)
        except Exception as error:  # noqa: BLE001 - so does the program
            _LOG.warning("the program rejects %s: %s", dict(sizes), error)
            return False
    return len(expected) == len(given) and all(
        _is_close(one, other, tolerance) for one, other in zip(expected, given, strict=True)
    )


def feed_sizes(signature: Signature, feed: Feed) -> dict[str, int]:
    """Return the sizes of the free dims in a feed."""
    sizes: dict[str, int] = {}
    for spec in signature.inputs:
        for dim, size in zip(spec.dims, feed[spec.name].shape, strict=True):
            if dim.dynamic and not dim.is_sum:
                free = dim.free_size(size)
                sizes[dim.free.name or ""] = size if free is None else free
    return sizes


def resize_example(job: Job, sizes: Sizes) -> list[torch.Tensor]:
    """Resize the example to these sizes of the free dims, by cutting or repeating parts."""
    import numpy as np
    import torch

    program = []
    for spec in job.signature.inputs:
        array = job.example[spec.name]
        for axis, dim in enumerate(spec.dims):
            wanted = dim.size(sizes)
            array = np.take(array, _pick_parts(array.shape[axis], wanted), axis=axis)
        if spec.values is not None and spec.values.follows:
            bounds = spec.values.at(job.signature.sizes_by_name(sizes))
            array = np.clip(array, bounds.low, bounds.high).astype(array.dtype)
        if spec.values is not None:
            array = spec.values.order.sort(array)
        program.append(torch.tensor(array))
    return program


def _pick_parts(known: int, wanted: int) -> Array:
    """Return indices into a dim: the first in order, further ones at random.

    Repeating in order would keep the example's means. Inputs of one size get the same indices.
    """
    import numpy as np

    more = np.random.default_rng(known).integers(known, size=max(wanted - known, 0))
    return np.concatenate([np.arange(min(known, wanted)), more])


def _is_close(expected: torch.Tensor, given: torch.Tensor, tolerance: float) -> bool:
    import torch

    if (expected.shape, expected.dtype) != (given.shape, given.dtype):
        return False
    if not expected.is_floating_point():
        return torch.equal(expected, given)
    share = max(tolerance, _ROUNDINGS * torch.finfo(expected.dtype).eps)
    least = share * _small_magnitude(expected)
    return torch.allclose(given, expected, rtol=share, atol=least, equal_nan=True)


def _small_magnitude(values: torch.Tensor) -> float:
    """Return a small value among the finite distinct values; a mask counts once."""
    import torch

    sizes = torch.unique(values[torch.isfinite(values) & (values != 0)].abs())
    return float(sizes[len(sizes) // _SMALL]) if len(sizes) else 0.0


_MOST = 2  # sizes per dim and scale: from both ends of its range
_AIMS = 8  # sizes at the resize to search for
_STEPS = 4  # runs of eager to approach one
Resize = tuple[int, float]  # an input size of a resize, and its scale


def resize_sizes(job: Job) -> tuple[Sizes, ...]:
    """Return sizes at which `floor(size * scale)` differs between float32 and float64.

    Eager uses float64, runtimes use float32. Runs of eager map sizes of a dim to sizes at a resize;
    a model without resizes by inexact scales costs one run.
    """
    signature = job.signature
    base = feed_sizes(signature, job.example)
    batch = signature.inputs[0].dims[0].bases if signature.inputs[0].dims else ()
    dims = {name: dim for name, dim in signature.free_dims.items() if name not in batch}
    if not dims or not any(_is_rounded(scale) for _, scale in _record_resizes(job, base)):
        return ()
    found: list[Sizes] = []
    for name, dim in dims.items():
        found += [one for one in _sizes_of_dim(job, base, name, dim) if one not in found]
    return tuple(found)


def _is_rounded(scale: float) -> bool:
    """Whether float32 rounds the scale; 2, 0.5 and 1.75 are exact."""
    import numpy as np

    return float(np.float32(scale)) != scale


def _record_resizes(job: Job, sizes: Sizes) -> list[Resize]:
    """Return the resizes by scales in one run of eager, per axis, in order."""
    import torch
    from torch.nn import functional

    found: list[Resize] = []

    def through(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if func in (functional.interpolate, functional.upsample):
            scale = kwargs.get("scale_factor", args[2] if len(args) > 2 else None)  # noqa: PLR2004 - its position
            found.extend(_resize_axes(args[0] if args else kwargs["input"], scale))
        return func(*args, **kwargs)

    try:
        with torch.no_grad(), intercept_calls(through):
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
    """Yield sizes of one dim, the others as in the example."""
    import numpy as np

    ends = [_record_resizes(job, {**base, name: size}) for size in (dim.low, dim.high)]
    if len(ends[0]) != len(ends[1]):
        return
    for place, ((first, scale), (last, _)) in enumerate(zip(*ends, strict=True)):
        if first == last or not _is_rounded(scale):
            continue
        single = np.float32(scale)
        apart = [size for size in range(min(first, last), max(first, last) + 1)
                 if math.floor(size * scale) != math.floor(np.float32(size) * single)]  # fmt: skip
        given = 0
        for aim in _alternate_ends(apart)[:_AIMS]:
            size = _find_size(job, base, (name, dim), place, aim, (first, last))
            if size is not None:
                given += 1
                yield {**base, name: size}
            if given == _MOST:
                break


def _alternate_ends(values: list[int]) -> list[int]:
    half = (len(values) + 1) // 2
    pairs = zip(values[:half], values[::-1][:half], strict=True)
    return list(dict.fromkeys(value for pair in pairs for value in pair))


def _find_size(  # noqa: PLR0913, PLR0917 - the search
    job: Job,
    base: Sizes,
    named: tuple[str, Dim],
    place: int,
    aim: int,
    ends: tuple[int, int],
) -> int | None:
    """Return the size of a dim that gives the wanted size at a resize; None without one."""
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
