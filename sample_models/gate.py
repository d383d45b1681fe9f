"""A net whose forward asks the values of its input which head to use: a trace sees only one."""

from __future__ import annotations

import torch
from torch import Tensor, nn

SIGNATURE: tuple[str, ...] = ("x:float32[batch=1..4,16]",)
"""Numbers around zero: about half of all feeds take each head."""


class Gate(nn.Module):
    """One body and two heads; the sign of the input's mean chooses the head."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.body = nn.Linear(inputs, 32)
        self.above = nn.Linear(32, outputs)
        self.below = nn.Linear(32, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, inputs) to (batch, outputs); the whole batch takes one head."""
        inner = torch.tanh(self.body(x))
        if x.mean() > 0:
            chosen: Tensor = self.above(inner)
        else:
            chosen = self.below(inner)
        return chosen


def gate(inputs: int = 16, outputs: int = 4) -> nn.Module:
    """Build the untrained net, the same weights each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Gate(inputs, outputs)
