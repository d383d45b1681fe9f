"""Weights cast one at a time give the very reference that a copy in float64 gives, or none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import nn

from modelc.checkpoints.float64_eager import Float64Error, open_float64
from modelc.core.call import bind_inputs, parameters_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

X = np.random.default_rng(0).standard_normal((5, 3, 8)).astype(np.float32)


class Layers(nn.Module):
    """Recurrent, attending, normalising and parametrised layers, and a weight used by hand."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.recurrent = nn.LSTM(8, 16, 2, bidirectional=True)
        self.attention = nn.MultiheadAttention(32, 4)
        self.layer = nn.TransformerEncoderLayer(32, 4, batch_first=True)
        self.norm = nn.BatchNorm1d(32)
        self.conv = nn.utils.parametrizations.weight_norm(nn.Conv1d(32, 4, 1))
        self.linear = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, _ = self.recurrent(x)
        y, _ = self.attention(y, y, y)
        y = self.layer(y).to(self.linear.weight.dtype)
        y = y @ self.linear.weight.T + self.linear.bias[None]
        out: torch.Tensor = self.conv(self.norm(y.permute(1, 2, 0)))
        return out


class Tied(nn.Module):
    """A table that is looked up, and multiplied with."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 8)
        self.head = nn.Linear(8, 9, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.table(x.abs().long() % 9))
        return out


class Writing(nn.Module):
    """Writes to its weight, and uses it afterwards."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ways = {"in place": self.weight, "data": self.weight.data, "view": self.weight.detach()[:2]}
        ways[self.way].add_(1)
        return x * self.weight


def reference(module: nn.Module, whole: int) -> dict[str, NDArray[Any]]:
    module = module.eval().requires_grad_(False)
    binding = bind_inputs(("x",), parameters_of(module.forward))
    return open_float64(module, ("x",), binding, whole=whole).run({"x": X})


@pytest.mark.parametrize("build", [Layers, Tied])
def test_it_is_bit_for_bit_what_a_copy_gives(build: Callable[[], nn.Module]) -> None:
    module = build()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    copied, cast = reference(module, 2**40), reference(module, 0)
    assert all(array.dtype == np.float64 for array in cast.values())
    assert all(np.array_equal(copied[name], cast[name]) for name in copied)
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())


@pytest.mark.parametrize("way", ["in place", "data", "view"])
def test_a_model_that_writes_to_its_weights_has_none(way: str) -> None:
    module = Writing(way)
    with pytest.raises(Float64Error, match="write"):
        reference(module, 0)
    assert torch.equal(module.weight, torch.ones(8))
