"""Which weights of a module hold NaN or Inf, looked for without a copy of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# Which weights of a module hold NaN or Inf, looked for without a copy of them.


_BLOCK_SIZE = 1 << 22  # elements that are counted at once


@dataclass(frozen=True, kw_only=True)
class NonFiniteWeight:
    """One weight with how many of its elements are NaN, and how many are Inf."""

    name: str
    nan: int
    inf: int

    def __str__(self) -> str:
        counts = ((self.nan, "NaN"), (self.inf, "Inf"))
        told = " and ".join(f"{count} {word}" for count, word in counts if count)
        return f"{self.name} has {told}"


def find_nonfinite_weights(module: torch.nn.Module) -> tuple[NonFiniteWeight, ...]:
    """Parameters with NaN or Inf, then buffers with NaN: Inf in a buffer is most often a mask."""
    named = ((name, one, True) for name, one in module.named_parameters())
    buffers = ((name, one, False) for name, one in module.named_buffers())
    found = (
        _count_nonfinite(name, one, inf=inf)
        for name, one, inf in chain(named, buffers)
        if _is_plain_tensor(one) and not _is_all_finite(one)
    )
    return tuple(one for one in found if one.nan or one.inf)


def _is_plain_tensor(tensor: torch.Tensor) -> bool:
    """Whether it has elements that can be asked: a class of tensors of its own need not answer."""
    import torch

    floats = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    if not plain or tensor.layout is not torch.strided or tensor.device.type == "meta":
        return False
    return tensor.dtype in floats and tensor.numel() > 0


def _is_all_finite(tensor: torch.Tensor) -> bool:
    """Whether all is finite: the smallest and the largest say so, and need no memory."""
    import torch

    low, high = torch.aminmax(tensor.detach())
    return math.isfinite(float(low)) and math.isfinite(float(high))


def _count_nonfinite(name: str, tensor: torch.Tensor, *, inf: bool) -> NonFiniteWeight:
    flat = tensor.detach().reshape(-1)
    blocks = [flat[start : start + _BLOCK_SIZE] for start in range(0, flat.numel(), _BLOCK_SIZE)]
    return NonFiniteWeight(
        name=name,
        nan=sum(int(block.isnan().sum()) for block in blocks),
        inf=sum(int(block.isinf().sum()) for block in blocks) if inf else 0,
    )
