"""Models that torch.compile breaks, specialises or compiles again, and some that it compiles whole.

Every model takes `x:float32[batch=1..16,4]`; `build` is a factory for `--model`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor, nn

FACTORY = "modelc.tests.nets.compile_nets:build"
INPUT = "x:float32[batch=1..16,4]"


class Layered(nn.Module):
    """Compiles whole: modules in a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Return a dict."""
        for layer in self.layers:
            x = layer(x).relu()
        return {"out": x}


class Branching(nn.Module):
    """Breaks at a value, at a print, at an item and at NumPy."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.scale = 2.0

    def forward(self, x: Tensor) -> Tensor:
        """Return one tensor."""
        x = self.layer(x) * self.scale
        if x.sum() > 0:
            x = x + 1
        print("inside")
        count = int(x.sum().item()) % 3
        wave = torch.from_numpy(np.ascontiguousarray(np.sin(x.numpy())))
        return x + wave + count


class GivenUp(nn.Module):
    """Breaks in a loop, so that dynamo gives the function up."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Return one tensor."""
        for number in range(3):
            x = self.layer(x)
            if x.mean() > number:
                x = x * 2
        return x


class Unrolled(nn.Module):
    """Is compiled for each batch size, as it loops over the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Return one tensor."""
        total = torch.zeros(4)
        for number in range(x.shape[0]):
            total = total + self.layer(x[number]) * (number + 1)
        return total


class Limited(nn.Module):
    """Has a graph for small batches, and another for large ones."""

    def forward(self, x: Tensor) -> Tensor:
        """Return one tensor."""
        if x.size(0) > 6:
            return x * 3
        return x * 2 + 1


class Raising(nn.Module):
    """Runs in eager, and raises while dynamo traces it."""

    def forward(self, x: Tensor) -> Tensor:
        """Return one tensor."""
        return x @ x if torch.compiler.is_compiling() else x * 2


def build(name: str) -> nn.Module:
    """Build a model by its name."""
    return _NETS[name]()


_NETS: Mapping[str, Callable[[], nn.Module]] = {
    one.__name__: one for one in (Layered, Branching, GivenUp, Unrolled, Limited, Raising)
}
