"""Eager with its long sums and its resizes computed in float32 as some other runtimes do.

Torch sums in pairs, so that its roundoff hardly grows with the number of elements; what adds them
one by one errs by far more, most where all are alike and each rounding goes the same way. Both are
float32, and neither is wrong. A norm divides what its mean errs by by the root of its epsilon where
all elements are alike: there torch may be exact by chance, and errors of 300 roundings are right.
A resize multiplies places by a scale that torch may hold exactly (255 to 16 is 15.9375), where
others divide by its inverse, which is rounded: the last of 255 places is off by so many roundings.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ..core.torch_modes import through_operators

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

# Eager with its long sums and its resizes computed in float32 as some other runtimes do.
#
# Torch sums in pairs, so that its roundoff hardly grows with the number of elements; what adds them
# one by one errs by far more, most where all are alike and each rounding goes the same way. Both
# are float32, and neither is wrong. A norm divides what its mean errs by by the root of its epsilon
# where all elements are alike: there torch may be exact by chance, and errors of 300 roundings are
# right. A resize multiplies places by a scale that torch may hold exactly (255 to 16 is 15.9375),
# where others divide by its inverse, which is rounded: the last of 255 places is off by so many
# roundings.


# A pool over an image of 128 x 128: longer sums are cut in pieces by whoever makes them fast.
LONGEST_SUM = 1 << 14
_SUMS = ("sum", "mean")
_ULP = 2.0**-23  # one unit in the last place of float32
_LANES = 4  # sums that a norm takes side by side: as many floats as the smallest registers hold


def sum_sequentially() -> TorchDispatchMode:
    """A mode in which float32 sums and means of up to `LONGEST_SUM` elements are made one by one.

    The sums inside of layer, group and instance norms are taken four side by side, as runtimes
    without wider registers take them. The scale of a resize is one unit in the last place off.
    """
    from torch.utils._python_dispatch import _disable_current_modes

    def replace_sum(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        name = func.overloadpacket.__name__ if func.namespace == "aten" else ""
        make = _sum_or_mean if name in _SUMS else _REPLACEMENTS.get(name)
        with _disable_current_modes():
            found = None if make is None else make(func, args, kwargs)
        return func(*args, **kwargs) if found is None else found

    return through_operators(replace_sum)


def _sum_or_mean(func: Any, args: Sequence[Any], given: Mapping[str, Any]) -> torch.Tensor | None:
    """What a sum or a mean gives; None for forms that are left to torch."""
    import torch

    if func._overloadname not in ("default", "dim", "dim_IntList"):
        return None
    tensor = args[0]
    axes = _sum_axes(tensor, args[1] if len(args) > 1 else given.get("dim"))
    count = math.prod(tensor.shape[axis] for axis in axes)
    if given.get("dtype") not in (None, torch.float32) or not _is_summable(tensor, count):
        return None
    total = _accumulate(tensor, axes)
    kept = args[2] if len(args) > 2 else given.get("keepdim", False)  # noqa: PLR2004 - its place
    total = total / count if func.overloadpacket.__name__ == "mean" else total
    return total.reshape([1 if a in axes else s for a, s in enumerate(tensor.shape)]
                         if kept else total.shape)  # fmt: skip


def _layer_norm(_: Any, args: Sequence[Any], __: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """`native_layer_norm(x, shape, weight, bias, eps)`: over the last axes."""
    x, shape, weight, bias, eps = args
    count = math.prod(shape)
    if not _is_summable(x, count // _LANES + 1):
        return None
    y, mean, scale = _normalize_rows(x.reshape(-1, count), eps)
    kept = [*x.shape[: x.dim() - len(shape)], *(1 for _ in shape)]
    return _apply_affine(y.reshape(x.shape), weight, bias), mean.reshape(kept), scale.reshape(kept)


def _group_norm(_: Any, args: Sequence[Any], __: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """`native_group_norm(x, weight, bias, rows, channels, size, groups, eps)`."""
    x, weight, bias, rows, channels, size, groups, eps = args
    if not rows or not _is_summable(x, channels // groups * size // _LANES):
        return None
    y, mean, scale = _normalize_rows(x.reshape(rows * groups, -1), eps)
    shape = [channels, *(1 for _ in x.shape[2:])]
    weight, bias = (None if one is None else one.reshape(shape) for one in (weight, bias))
    kept = (rows, groups)
    return _apply_affine(y.reshape(x.shape), weight, bias), mean.reshape(kept), scale.reshape(kept)


def _batch_norm(_: Any, args: Sequence[Any], __: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """`native_batch_norm(x, weight, bias, mean, variance, training, momentum, eps)`.

    Only where it normalizes by what it is given and keeps nothing: as an instance norm does.
    """
    x, weight, bias, mean, variance, training, _, eps = args
    if not training or mean is not None or variance is not None:
        return None
    if not _is_summable(x, x.numel() // x.shape[1] // _LANES):
        return None
    rows = x.transpose(0, 1)
    y, mean, scale = _normalize_rows(rows.reshape(x.shape[1], -1), eps)
    shape = [x.shape[1], *(1 for _ in x.shape[2:])]
    weight, bias = (None if one is None else one.reshape(shape) for one in (weight, bias))
    y = y.reshape(rows.shape).transpose(0, 1).contiguous()
    return _apply_affine(y, weight, bias), mean.flatten(), scale.flatten()


def _upsample(func: Any, args: Sequence[Any], _: Mapping[str, Any]) -> torch.Tensor | None:
    """`upsample_*(x, sizes, align_corners, scale, ...)`; with aligned corners no scale counts."""
    x, sizes, corners, *scales = args
    scales = scales or [None] * len(sizes)
    if corners or not _is_summable(x, 1) or len(scales) != len(sizes):
        return None
    given = zip(sizes, x.shape[-len(sizes) :], scales, strict=True)
    off = ((scale or size / old) * (1 + _ULP) for size, old, scale in given)
    found: torch.Tensor = func(x, sizes, corners, *off)
    return found


_REPLACEMENTS: Mapping[str, Callable[[Any, Sequence[Any], Mapping[str, Any]], Any]] = {
    "native_layer_norm": _layer_norm,
    "native_group_norm": _group_norm,
    "native_batch_norm": _batch_norm,
    "upsample_linear1d": _upsample,
    "upsample_bilinear2d": _upsample,
    "upsample_trilinear3d": _upsample,
    "upsample_bicubic2d": _upsample,
}


def _normalize_rows(
    rows: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Each row of [rows, elements] normalized, its mean and what it was multiplied by."""
    count = rows.shape[1]
    mean = _sum_in_lanes(rows) / count
    off = rows - mean
    scale = (_sum_in_lanes(off * off) / count + eps).rsqrt()
    return off * scale, mean, scale


def _sum_in_lanes(rows: torch.Tensor) -> torch.Tensor:
    """The sum of each row as [rows, 1]: every fourth element one by one, then the four of them."""
    import torch

    short = -rows.shape[1] % _LANES
    padded = torch.nn.functional.pad(rows.detach(), (0, short))  # zeros add nothing
    return _accumulate(padded.reshape(len(rows), -1, _LANES), (1,)).sum(1, keepdim=True)


def _apply_affine(y: torch.Tensor, weight: Any, bias: Any) -> torch.Tensor:
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def _is_summable(tensor: torch.Tensor, count: int) -> bool:
    """Whether a sum of so many elements of the tensor is one that is made one by one."""
    import torch

    is_float = tensor.dtype is torch.float32 and tensor.device.type == "cpu"
    return is_float and 0 < count <= LONGEST_SUM


def _sum_axes(tensor: torch.Tensor, dim: Any) -> tuple[int, ...]:
    """The axes that are summed over, counted from the front; all where none is named."""
    named = [dim] if isinstance(dim, int) else list(dim or range(tensor.dim()))
    return tuple(axis % tensor.dim() for axis in named) if tensor.dim() else ()


def _accumulate(tensor: torch.Tensor, axes: tuple[int, ...]) -> torch.Tensor:
    import numpy as np
    import torch

    rest = [axis for axis in range(tensor.dim()) if axis not in axes]
    shape = [tensor.shape[axis] for axis in rest]
    rows = tensor.detach().permute((*rest, *axes)).reshape(*shape, -1).numpy()
    with np.errstate(over="ignore", invalid="ignore"):  # as torch, which says nothing either
        # numpy's accumulate adds in order and in float32; its reduce and torch's cumsum do not
        total = np.add.accumulate(rows, axis=-1, dtype=np.float32)[..., -1]
    return torch.from_numpy(np.array(total))
