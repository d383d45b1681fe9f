"""Nets whose inputs and outputs are of many dtypes, or nested, or easily mixed up."""

from __future__ import annotations

import torch
from torch import Tensor, nn

MIXED_INPUTS = (
    "image:float32[batch=1..4,3,height=4..9,6]", "ids:int64[batch,5]{0..9}", "gate:bool[batch]",
    "scale:float64[]", "half:float16[batch,4]", "small:int8[batch,2]{-9..9}",
)  # fmt: skip
NESTED_INPUTS = (
    "state.0:float32[batch=1..4,4]", "state.1:float32[batch,4]", "extras.gain:float32[batch,4]",
    "extras.bias:float32[4]", "items.0:float32[batch,4]", "items.1:float32[1,4]",
)  # fmt: skip
PAIR_INPUTS = ("a:float32[batch=1..4,3]", "b:float32[batch,3]")


class MixedDtypes(nn.Module):
    """Takes and returns tensors of most dtypes, a scalar and an empty one."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.table = nn.Embedding(10, 4)

    def forward(
        self, image: Tensor, ids: Tensor, gate: Tensor, scale: Tensor, half: Tensor, small: Tensor
    ) -> dict[str, Tensor | tuple[Tensor, Tensor]]:
        """Return a dict with a pair in it."""
        pooled = self.conv(image).relu().mean((2, 3))
        words = self.table(ids).sum(1)
        chosen = torch.where(gate[:, None], pooled, words)
        return {
            "chosen": chosen,
            "pair": (pooled + words, ids.sum(1)),
            "is_large": chosen > 0.1,
            "twice": scale * 2,
            "doubled": half + half,
            "size": small.abs(),
            "none": words[:, :0],
        }


class NestedValues(nn.Module):
    """Takes a tuple, a dict, a list and an optional tensor, and returns a tuple of all kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(4, 4)

    def forward(
        self,
        state: tuple[Tensor, Tensor],
        extras: dict[str, Tensor],
        items: list[Tensor],
        mask: Tensor | None = None,
    ) -> tuple[dict[str, Tensor], list[Tensor], tuple[Tensor]]:
        """Mix everything, so that no two inputs can be exchanged."""
        hidden, cell = state
        x = self.line(hidden) - cell
        for item in items:
            x = x * 2 + item
        x = x * extras["gain"] - extras["bias"]
        if mask is not None:
            x = x * mask
        return {"x": x, "hidden": hidden * 2}, [x + 1, x - 1], (cell,)


class Pair(nn.Module):
    """Two inputs and two outputs of one shape."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(3, 3)

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """Return two values that change if the inputs are exchanged."""
        return self.line(a) - 2 * b, torch.tanh(a * b - b)


def _seeded(kind: type[nn.Module], seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return kind().eval()


def mixed() -> nn.Module:
    """Build the net of many dtypes."""
    return _seeded(MixedDtypes)


def nested() -> nn.Module:
    """Build the net of nested values."""
    return _seeded(NestedValues)


def pair(seed: int = 0) -> nn.Module:
    """Build the net with two inputs; another seed has other weights."""
    return _seeded(Pair, seed)
