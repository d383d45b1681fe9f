"""Whether what was captured is right at sizes that torch.export said it was not made for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ...core.contract import Feed, Job
from ...core.fitting import Sizes
from ...core.signature import Signature
from .eager import model_of

if TYPE_CHECKING:
    import torch

    from ...core.contract import Array

_LOG = logging.getLogger(__name__)
OUTSIDE = "outside"  # in a job's programs: sizes at which conditions of torch.export break
MISMATCH = 1e-3  # of a value, and of a small one: another arm of a branch is off by more
_SMALL = 10  # one distinct value of so many is smaller than what is small here
_ROUNDINGS = 4  # of the dtype: bfloat16 tells less apart than `off`


def first_mismatch(
    made: Callable[..., object], job: Job, places: Iterable[Sizes], *, off: float = MISMATCH
) -> Sizes | None:
    """The first of these sizes at which what was captured gives something else than eager.

    Both are run on the example, brought to these sizes. What eager rejects asks nothing of
    the other; `off` is how far apart two values may be, of themselves and of a small value beside
    them. Not of the largest: where -3.4e38 masks some, that would pass anything.
    """
    return next((sizes for sizes in places if not _matches_eager(made, job, sizes, off)), None)


def _matches_eager(made: Callable[..., object], job: Job, sizes: Sizes, off: float) -> bool:
    import torch

    tensors = resize_example(job, sizes)
    with torch.no_grad():
        try:
            expected = model_of(job).flat(*(one.clone() for one in tensors))
        except Exception as error:  # noqa: BLE001 - the user's code raises anything
            _LOG.info("eager rejects %s: %s", dict(sizes), error)
            return True
        try:
            given: Any = made(*tensors)
        except Exception as error:  # noqa: BLE001 - so does what was made of it
            _LOG.warning("the program rejects %s: %s", dict(sizes), error)
            return False
    return len(expected) == len(given) and all(
        _is_close(one, other, off) for one, other in zip(expected, given, strict=True)
    )


def feed_sizes(signature: Signature, feed: Feed) -> dict[str, int]:
    """The sizes of the free dims in a feed of the signature."""
    sizes: dict[str, int] = {}
    for spec in signature.inputs:
        for dim, size in zip(spec.dims, feed[spec.name].shape, strict=True):
            if dim.dynamic:
                free = dim.relation.base_of(size) if dim.relation is not None else size
                sizes[dim.free.name or ""] = size if free is None else free
    return sizes


def resize_example(job: Job, sizes: Sizes) -> list[torch.Tensor]:
    """The example, cut to these sizes of the free dims, or with parts of it once more behind it."""
    import numpy as np
    import torch

    made = []
    for spec in job.signature.inputs:
        array = job.example[spec.name]
        for axis, dim in enumerate(spec.dims):
            wanted = dim.size(sizes)
            array = np.take(array, _pick_parts(array.shape[axis], wanted), axis=axis)
        if spec.values is not None and spec.values.follows:
            bounds = spec.values.at(job.signature.named_sizes(sizes))
            array = np.clip(array, bounds.low, bounds.high).astype(array.dtype)
        if spec.values is not None:
            array = spec.values.order.sort(array)
        made.append(torch.tensor(array))
    return made


def _pick_parts(known: int, wanted: int) -> Array:
    """Which of the known parts of a dim, the first in order and what is more by chance.

    In turn they would give the means of the example again. Inputs of one size get the same.
    """
    import numpy as np

    more = np.random.default_rng(known).integers(known, size=max(wanted - known, 0))
    return np.concatenate([np.arange(min(known, wanted)), more])


def _is_close(expected: torch.Tensor, given: torch.Tensor, off: float) -> bool:
    import torch

    if (expected.shape, expected.dtype) != (given.shape, given.dtype):
        return False
    if not expected.is_floating_point():
        return torch.equal(expected, given)
    share = max(off, _ROUNDINGS * torch.finfo(expected.dtype).eps)
    least = share * _small_magnitude(expected)
    return torch.allclose(given, expected, rtol=share, atol=least, equal_nan=True)


def _small_magnitude(values: torch.Tensor) -> float:
    """A small one of the finite distinct values; a mask counts once, however often it is there."""
    import torch

    sizes = torch.unique(values[torch.isfinite(values) & (values != 0)].abs())
    return float(sizes[len(sizes) // _SMALL]) if len(sizes) else 0.0
