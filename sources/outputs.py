"""The tensors in whatever a model returns, under stable names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.tree import name_leaves

if TYPE_CHECKING:
    import torch

    from ..core.contract import Array


def flatten_outputs(value: object) -> dict[str, torch.Tensor]:
    """Every tensor in `value` by name, in order; what is no tensor is left out."""
    return split_outputs(value)[0]


def split_outputs(value: object) -> tuple[dict[str, torch.Tensor], tuple[str, ...]]:
    """The tensors by name, and a note on each part that is no tensor."""
    import torch

    parts = name_leaves(value, lambda leaf: isinstance(leaf, torch.Tensor))
    notes = [f"output {n} is a {type(x).__name__} and left out" for n, x in parts.dropped.items()]
    return parts.found, tuple(notes)


def to_array(tensor: torch.Tensor) -> Array:
    """A copy as a numpy array; bfloat16, which numpy lacks, becomes float32."""
    import numpy as np
    import torch

    plain = tensor.detach().cpu().resolve_conj().resolve_neg()
    if plain.dtype == torch.bfloat16:
        plain = plain.float()
    return np.array(plain.numpy())
