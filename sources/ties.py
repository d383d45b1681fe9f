"""Eager with its ties settled: which of equal scores `topk` and `sort` take.

Torch leaves that open, but for `sort(stable=True)`: ONNX takes the lower index, other runtimes take
what comes first in their order of work. Each is right. A threshold and an argmax, of which torch
says the first, leave nothing open and stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..core.torch_modes import through_operators

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

# Eager with its ties settled: which of equal scores `topk` and `sort` take.
#
# Torch leaves that open, but for `sort(stable=True)`: ONNX takes the lower index, other runtimes
# take what comes first in their order of work. Each is right. A threshold and an argmax, of which
# torch says the first, leave nothing open and stay as they are.


# Bits of a score that count: what agrees in these, to 1 or 2 parts in a million, is equal but for
# roundoff, as the shares in pipeline/undecided.py say for float32.
_BITS = 20


@dataclass(kw_only=True)
class TieChoices:
    """Which of equal scores is taken, the last or the first; counts how often any was chosen."""

    last: bool
    made: int = 0


def order_ties(choices: TieChoices) -> TorchDispatchMode:
    """A mode in which what torch leaves open in `topk` and `sort` goes by index."""
    from torch.utils._python_dispatch import _disable_current_modes

    def choose(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        result = func(*args, **kwargs)
        if not _is_order_open(func, args, kwargs):
            return result
        with _disable_current_modes():
            found = _sort_by_index(func, args, kwargs, last=choices.last)
        choices.made += found is not None
        return result if found is None else found

    return through_operators(choose)


def _is_order_open(func: Any, args: Sequence[Any], given: Mapping[str, Any]) -> bool:
    """Whether torch leaves the order of equal elements open in this call."""
    import torch

    aten = torch.ops.aten
    if func is aten.sort.stable:
        return not given.get("stable")
    return func in (aten.topk.default, aten.sort.default) and bool(args)


def _sort_by_index(
    func: Any, args: Sequence[Any], given: Mapping[str, Any], *, last: bool
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Values and indices with equal elements in the order of their indices; None for a scalar."""
    said = {argument.name: argument.default_value for argument in func._schema.arguments}
    said |= dict(zip(said, args, strict=False)) | dict(given)
    tensor, dim = said["self"], said["dim"]
    if not tensor.dim():
        return None
    downwards = said["largest"] if "largest" in said else said["descending"]
    order = _tie_order(_coarsen(tensor), dim, downwards=downwards, last=last)
    indices = order.narrow(dim, 0, said.get("k", tensor.shape[dim])).contiguous()
    return tensor.gather(dim, indices), indices


def _tie_order(keys: torch.Tensor, dim: int, *, downwards: bool, last: bool) -> torch.Tensor:
    turned = keys.flip(dim) if last else keys
    found = turned.sort(dim=dim, descending=downwards, stable=True).indices
    return keys.shape[dim] - 1 - found if last else found


def _coarsen(scores: torch.Tensor) -> torch.Tensor:
    """Scores of which those are equal that only roundoff tells apart; in the same order."""
    import torch

    if not scores.is_floating_point():
        return scores
    share, exponent = torch.frexp(scores.double())
    return torch.ldexp((share * 2**_BITS).round(), exponent.double())
