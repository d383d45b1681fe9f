"""The tensors in whatever a model returns, under stable names."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from ..core.tree import name_leaves

if TYPE_CHECKING:
    import torch


def flatten_outputs(value: object) -> dict[str, torch.Tensor]:
    """Every tensor in `value` by name, in order; what is no tensor is left out."""
    return split_outputs(value)[0]


def split_outputs(
    value: object, taken: Collection[str] = ()
) -> tuple[dict[str, torch.Tensor], tuple[str, ...]]:
    """The tensors by name, none of `taken`, and a note on each part that is no tensor."""
    import torch

    parts = name_leaves(value, lambda leaf: isinstance(leaf, torch.Tensor), taken=taken)
    notes = [f"output {n} is a {type(x).__name__} and left out" for n, x in parts.dropped.items()]
    return parts.found, tuple(notes)
