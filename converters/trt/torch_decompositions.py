"""The decompositions of torch-tensorrt: torch's own, without some, and the package's functions.

A function here makes the same operators as the package's, so that a plan counts the same nodes.
What each computes is tested against torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .torch_converters import NOT_DECOMPOSED

if TYPE_CHECKING:
    from torch import Tensor

# Decomposed by torch's own functions, though the default table of an export lacks them.
_BY_TORCH = (
    "_native_batch_norm_legit_functional", "hardtanh", "linalg_vector_norm", "repeat", "unfold",
    "var", "var_mean",
)  # fmt: skip


def decomposition_table() -> dict[Any, Callable[..., Any]]:
    """Return the table for `ExportedProgram.run_decompositions`."""
    import torch
    from torch._decomp import get_decompositions

    aten = torch.ops.aten
    default = torch.export.default_decompositions()
    table = get_decompositions([getattr(aten, name) for name in _BY_TORCH])
    table |= {one: default[one] for one in list(default) if str(one) not in NOT_DECOMPOSED}
    return table | {
        aten._log_softmax.default: _log_softmax,
        aten._unsafe_view.default: torch.reshape,
        aten.alias.default: lambda x: x,
        aten.empty_permuted.default: _empty_permuted,
        aten.empty_strided.default: _empty_strided,
        aten.full_like.default: _full_like,
        aten.instance_norm.default: _instance_norm,
        aten.lift_fresh_copy.default: lambda x: x,
        aten.masked_scatter.default: _scatter_masked,
        aten.reciprocal.default: lambda x: torch.div(1, x),
        aten.rsqrt.default: lambda x: torch.reciprocal(torch.sqrt(x)),
        aten.scatter_add.default: _scatter_add,
        aten.scatter_reduce.two: _scatter_reduce,
        aten.select_scatter.default: _select_scatter,
        aten.silu.default: lambda x: x * torch.sigmoid(x),
        aten.slice_scatter.default: _slice_scatter,
        aten.view.default: aten._reshape_copy.default,
        torch.ops.prims.var.default: _var,
    }


def _log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    import torch

    return torch.log(torch.softmax(x, dim, dtype=torch.float if half_to_float else None))


def _empty_permuted(size: list[int], layout: list[int], **options: Any) -> Tensor:
    import torch

    order = sorted(range(len(size)), key=layout.__getitem__)
    return torch.empty([size[axis] for axis in layout], **options).permute(order)


def _empty_strided(size: list[int], stride: list[int], **_: Any) -> Tensor:
    import torch

    return torch.as_strided(torch.empty(size), size, stride)


def _full_like(x: Tensor, value: Any, **options: Any) -> Tensor:
    import torch

    dtype, device = options.get("dtype") or x.dtype, options.get("device") or x.device
    return torch.full(x.shape, value, dtype=dtype, device=device)


def _instance_norm(x: Tensor, weight: Tensor, bias: Tensor, *others: Any) -> Tensor:
    from torch.nn import functional

    mean, var, own_statistics, momentum, eps, _ = others
    if own_statistics:
        return functional.group_norm(x, x.shape[1], weight, bias, eps)
    return functional.batch_norm(x, mean, var, weight, bias, False, momentum, eps)


def _var(x: Tensor, dims: list[int] | None, correction: float = 1, **_: Any) -> Tensor:
    import torch

    count: Any = x.numel()
    if dims:
        count = 1
        for dim in dims:
            count *= x.shape[dim]
    distance = x - torch.mean(x, dims or [], keepdim=True)
    total = torch.sum(distance * distance, dims or [], keepdim=False)
    return total / float(count - correction)


def _positive(index: Any, size: Any) -> Any:
    """Return an index from the start, at most the size; both may be symbolic."""
    import torch

    if isinstance(index, torch.SymInt) or isinstance(size, torch.SymInt):
        choose: Any = torch.sym_ite
        least: Any = torch.sym_min
        return choose(index < 0, index % size, least(index, size))
    return index % size if index < 0 else min(index, size)


def _slice_scatter(x: Tensor, source: Tensor, dim: int = 0, *bounds: Any) -> Tensor:
    import torch

    missing: tuple[Any, ...] = (None, None, 1)[len(bounds) :]
    start, end, step = bounds + missing
    size = x.shape[dim]
    first = 0 if start is None else _positive(start, size)
    last = size if end is None else _positive(end, size)
    fixed = all(isinstance(one, int) for one in (first, last, step))
    if fixed and (first, last, step) == (0, size, 1):
        return source
    places = torch.arange(first, last, step, device=x.device, dtype=torch.int64)
    places = places.view([-1 if axis == dim else 1 for axis in range(x.dim())])
    return torch.scatter(x, dim, places.expand_as(source), source)


def _select_scatter(x: Tensor, source: Tensor, dim: int, index: Any) -> Tensor:
    import torch

    return torch.slice_scatter(x, torch.unsqueeze(source, dim), dim, index, index + 1, 1)


def _rows(index: Tensor, source: Tensor, dim: int) -> list[tuple[Tensor, Tensor]]:
    """Return index and source along a dim, one row each."""
    import torch

    pairs = []
    for at in range(source.shape[dim]):
        row, places = torch.select(source, dim, at), torch.select(index, dim, at)
        pairs.append((torch.unsqueeze(places, dim), torch.unsqueeze(row, dim)))
    return pairs


def _scatter_add(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Any:
    import torch

    if source.shape[dim] != index.shape[dim]:
        return NotImplemented  # the package rejects it
    for places, row in _rows(index, source, dim):
        zeros = torch.zeros(x.shape, dtype=x.dtype)
        x = torch.add(x, torch.scatter(zeros, dim, places, row))
    return x


def _scatter_reduce(
    x: Tensor, dim: int, index: Tensor, source: Tensor, *kind: str, **options: bool
) -> Any:
    import torch

    if not options.get("include_self", True) or source.shape[dim] != index.shape[dim]:
        return NotImplemented  # the package rejects it
    (reduce,) = kind
    kinds: dict[str, tuple[Any, Any]] = {
        "sum": (torch.zeros_like, torch.add), "mean": (torch.zeros_like, torch.add),
        "prod": (torch.ones_like, torch.mul), "amax": (None, torch.max), "amin": (None, torch.min),
    }  # fmt: skip
    start, join = kinds[reduce]
    found, counts = x, torch.zeros_like(x)
    for places, row in _rows(index, source, dim):
        if reduce == "mean":
            ones = torch.scatter(torch.zeros_like(x), dim, places, torch.ones_like(row))
            counts = torch.add(counts, ones)
        found = join(found, torch.scatter(start(x) if start else x, dim, places, row))
    if reduce == "mean":
        divisor = torch.add(counts, torch.ones_like(counts))
        found = torch.div(found, divisor, rounding_mode="trunc")
    return found


def _scatter_masked(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    import torch

    x, mask = torch.ops.aten.broadcast_tensors([x, mask])
    flat = mask.flatten()
    places = (flat.cumsum(0) - 1).masked_fill(~flat, 0)
    taken = source.flatten().gather(0, places)
    return torch.where(flat, taken, x.flatten()).view(x.shape)
