"""A model whose weights and inputs are off by a little: what its integers depend on."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from .mapped import FileMappings, preserve_tensor

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from ..core.contract import Array, Feed


@contextmanager
def perturb_weights(module: torch.nn.Module, share: float, seed: int) -> Iterator[None]:
    """Every float parameter times 1 + share * N(0, 1), element by element; put back at the end."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    places = FileMappings()
    floats = [p for p in dict.fromkeys(module.parameters()) if p.is_floating_point()]
    with ExitStack() as changed:
        for parameter in floats:
            changed.enter_context(preserve_tensor(parameter, places))
            with torch.no_grad():
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.mul_(noise.mul_(share).add_(1).to(parameter.dtype))
        yield


def perturb_feed(feed: Feed, share: float, seed: int) -> Feed:
    """Every float input with noise of `share` of its RMS, so that zeros and ties move too."""
    import numpy as np

    generator = np.random.default_rng(seed)
    return {
        name: (array + share * _rms(array) * generator.standard_normal(array.shape)).astype(
            array.dtype
        )
        if array.dtype.kind == "f"
        else array
        for name, array in feed.items()
    }


def _rms(array: Array) -> float:
    """The root of the mean square of the finite elements; 1 where all are zero."""
    import numpy as np

    finite = array[np.isfinite(array)].astype(np.float64)
    return float(np.sqrt(np.mean(finite**2))) or 1.0 if finite.size else 1.0
