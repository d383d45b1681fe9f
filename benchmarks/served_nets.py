"""Nets with two inputs or two outputs of one shape, which may not be exchanged."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Twin(nn.Module):
    """Two inputs of one shape; a row of outputs and a number for each row of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 12), nn.Linear(16, 12)

    def forward(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        """Return what is not symmetric in the inputs, and what is."""
        return torch.tanh(self.first(left)) - 0.5 * self.second(right), (left * right).sum(1)


class Halves(nn.Module):
    """Two outputs of one shape: what `Twin` takes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return one row twice, with other weights."""
        return torch.relu(self.first(x)), self.second(x)


def build_halves(seed: int = 0) -> nn.Module:
    """Build the net with weights that depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Halves()


def build_twin(seed: int = 0) -> nn.Module:
    """Build the net with weights that depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Twin()
