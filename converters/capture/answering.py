"""Whether what was captured is right at sizes that torch.export said it was not made for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ...core.contract import Job
from ...core.fitting import Sizes
from .eager import model_of

if TYPE_CHECKING:
    import torch

_LOG = logging.getLogger(__name__)
OUTSIDE = "outside"  # in a job's programs: sizes at which conditions of torch.export break
OFF = 1e-3  # of the largest value: another arm of a branch is off by more


def wrong_at(
    made: Callable[..., object], job: Job, places: Iterable[Sizes], *, off: float = OFF
) -> Sizes | None:
    """The first of these sizes at which what was captured gives something else than eager.

    Both are run on the example, repeated or cut to these sizes. What eager rejects asks nothing of
    the other; `off` is how far apart they may be, of the largest value.
    """
    return next((sizes for sizes in places if not _answers_alike(made, job, sizes, off)), None)


def _answers_alike(made: Callable[..., object], job: Job, sizes: Sizes, off: float) -> bool:
    import torch

    tensors = resized(job, sizes)
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
        _same(one, other, off) for one, other in zip(expected, given, strict=True)
    )


def resized(job: Job, sizes: Sizes) -> list[torch.Tensor]:
    """The example, repeated or cut to these sizes of the free dims."""
    import numpy as np
    import torch

    made = []
    for spec in job.signature.inputs:
        array = job.example[spec.name]
        for axis, dim in enumerate(spec.dims):
            wanted = dim.size(sizes)
            array = np.take(array, np.arange(wanted) % array.shape[axis], axis=axis)
        if spec.values is not None and spec.values.follows:
            bounds = spec.values.at(job.signature.named_sizes(sizes))
            array = np.clip(array, bounds.low, bounds.high).astype(array.dtype)
        made.append(torch.tensor(array))
    return made


def _same(expected: torch.Tensor, given: torch.Tensor, off: float) -> bool:
    import torch

    if (expected.shape, expected.dtype) != (given.shape, given.dtype):
        return False
    if not expected.is_floating_point():
        return torch.equal(expected, given)
    finite = expected[torch.isfinite(expected)].abs()
    scale = float(finite.max()) if finite.numel() else 0.0
    return torch.allclose(given, expected, rtol=0, atol=off * scale, equal_nan=True)
