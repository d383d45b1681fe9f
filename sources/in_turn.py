"""Eager with its long sums taken one element after the other, as some runtimes take them.

Torch sums in pairs, so that its roundoff hardly grows with the number of elements; what adds them
one by one errs by far more, most where all are alike and each rounding goes the same way. Both are
float32, and neither is wrong.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ..core.torch_modes import through_operators

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

# A pool over an image of 128 x 128: longer sums are cut in pieces by whoever makes them fast.
LONGEST = 1 << 14
_SUMS = ("sum", "mean")


def in_turn() -> TorchDispatchMode:
    """A mode in which float32 sums and means of up to `LONGEST` elements are made one by one."""
    from torch.utils._python_dispatch import _disable_current_modes

    def summed(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        with _disable_current_modes():
            found = _summed(func, args, kwargs)
        return func(*args, **kwargs) if found is None else found

    return through_operators(summed)


def _summed(func: Any, args: Sequence[Any], given: Mapping[str, Any]) -> torch.Tensor | None:
    """What such an operator gives; None for every other one."""
    import torch

    name = func.overloadpacket.__name__ if func.namespace == "aten" else ""
    if name not in _SUMS or func._overloadname not in ("default", "dim", "dim_IntList"):
        return None
    tensor = args[0]
    axes = _axes(tensor, args[1] if len(args) > 1 else given.get("dim"))
    count = math.prod(tensor.shape[axis] for axis in axes)
    is_float = tensor.dtype is torch.float32 and given.get("dtype") in (None, torch.float32)
    if not is_float or not 0 < count <= LONGEST or tensor.device.type != "cpu":
        return None
    total = _one_by_one(tensor, axes)
    kept = args[2] if len(args) > 2 else given.get("keepdim", False)  # noqa: PLR2004 - its place
    total = total / count if name == "mean" else total
    return total.reshape([1 if a in axes else s for a, s in enumerate(tensor.shape)]
                         if kept else total.shape)  # fmt: skip


def _axes(tensor: torch.Tensor, dim: Any) -> tuple[int, ...]:
    """The axes that are summed over, counted from the front; all where none is named."""
    named = [dim] if isinstance(dim, int) else list(dim or range(tensor.dim()))
    return tuple(axis % tensor.dim() for axis in named) if tensor.dim() else ()


def _one_by_one(tensor: torch.Tensor, axes: tuple[int, ...]) -> torch.Tensor:
    import numpy as np
    import torch

    rest = [axis for axis in range(tensor.dim()) if axis not in axes]
    shape = [tensor.shape[axis] for axis in rest]
    rows = tensor.detach().permute((*rest, *axes)).reshape(*shape, -1).numpy()
    with np.errstate(over="ignore", invalid="ignore"):  # as torch, which says nothing either
        # numpy's accumulate adds in order and in float32; its reduce and torch's cumsum do not
        total = np.add.accumulate(rows, axis=-1, dtype=np.float32)[..., -1]
    return torch.from_numpy(np.array(total))
