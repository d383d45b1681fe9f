"""Nets with operators that torch-tensorrt does not convert, between ones that it does."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Middle(nn.Module):
    """A search in the middle: an engine, torch, and an engine that may be too small."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.line = nn.Linear(4 * 36, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm(self.conv(x))).flatten(1)
        y = torch.sin(self.line(y))
        z = torch.searchsorted(torch.arange(10.0), y)
        return torch.softmax(z.float() * y, -1)


class Branches(nn.Module):
    """Two branches, of which one leaves TensorRT twice: the other runs with the first engine."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8)
        self.last = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.special.i0(self.left(x).relu())
        y = torch.special.i1(torch.tanh(self.last(y)).mul(2).sigmoid())
        return torch.exp(y + self.right(x).sigmoid().tanh()).mul(3)


class Whole(nn.Module):
    """Everything has a converter."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        values, _ = self.encoder(x).topk(2, -1)
        found: Tensor = values.cumsum(-1)
        return found


class Related(nn.Module):
    """The second input is twice as long as the first."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 8), nn.Linear(4, 8)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        twice: Tensor = torch.tanh(self.right(y)).reshape(len(x), x.shape[1], 2, 8).sum(2)
        return torch.relu(self.left(x)) * twice + twice


SHAPES = {Middle: (2, 1, 8, 8), Branches: (2, 8), Whole: (2, 5, 16)}


def export_net(kind: type[nn.Module], *, dynamic: bool) -> torch.export.ExportedProgram:
    """The program of a net, with a batch of 1 to 8 or a fixed one."""
    torch.manual_seed(0)
    batch = torch.export.Dim("batch", min=1, max=8)
    shapes = ({0: batch},) if dynamic else None
    with torch.no_grad():
        net, x = kind().eval(), torch.randn(SHAPES[kind])
        return torch.export.export(net, (x,), dynamic_shapes=shapes)


def export_related() -> torch.export.ExportedProgram:
    """The program of `Related`, with sizes `seq` and `2*seq`."""
    seq = torch.export.Dim("seq", min=1, max=8)
    with torch.no_grad():
        inputs = torch.randn(2, 4, 4), torch.randn(2, 8, 4)
        return torch.export.export(
            Related().eval(), inputs, dynamic_shapes=({1: seq}, {1: 2 * seq})
        )
