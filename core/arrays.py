"""A tensor of torch as the array that verdicts are made on: one rule for eager and for runners.

Had each its own, an artifact could be told from eager by how its outputs were read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from .contract import Array


def to_array(tensor: torch.Tensor) -> Array:
    """A copy as a numpy array, dense and on the CPU.

    What numpy lacks becomes what holds every value of it: bfloat16 and the 8-bit floats float32,
    half-precision complex numbers complex64.
    """
    import numpy as np

    return np.array(_to_plain_tensor(tensor).numpy())


def _to_plain_tensor(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    plain = tensor.detach().cpu()
    if plain.is_quantized:
        plain = plain.dequantize()
    if plain.layout is not torch.strided:
        plain = plain.to_dense()
    plain = plain.resolve_conj().resolve_neg()
    if plain.dtype is torch.complex32:
        return plain.to(torch.complex64)
    if plain.is_floating_point() and plain.dtype not in (
        torch.float16,
        torch.float32,
        torch.float64,
    ):
        return plain.float()
    return plain
