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


class Detector(nn.Module):
    """A head that selects boxes: the largest value is read with its place, which needs torch."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 9, 3, padding=1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = self.conv(x).flatten(2).transpose(1, 2)
        boxes, scores = y[..., :4].sigmoid(), y[..., 4:].softmax(-1)
        best, label = scores.max(-1)
        best, place = best.topk(6, -1)
        boxes = boxes.gather(1, place.unsqueeze(-1).expand(-1, -1, 4))
        apart = torch.cdist(boxes, boxes) > 0.1
        kept = best * (apart.float().tril(-1).sum(-1) < 5)
        return boxes, kept, label.gather(1, place)


class Decoder(nn.Module):
    """A decoder's layer: fused RMS norms, rotary positions, grouped queries, a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last = nn.RMSNorm(16), nn.RMSNorm(16)
        self.query, self.pair, self.out = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)
        self.gate, self.up, self.down = nn.Linear(16, 32), nn.Linear(16, 32), nn.Linear(32, 16)

    def turn(self, x: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        rate = 1.0 / (100 ** (torch.arange(half) / half))
        angle = torch.arange(x.shape[-2])[:, None] * rate
        left, right = x.chunk(2, -1)
        cos, sin = angle.cos(), angle.sin()
        return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        query = self.turn(self.query(y).unflatten(-1, (4, 4)).transpose(1, 2))
        key, value = self.pair(y).unflatten(-1, (4, 4)).transpose(1, 2).chunk(2, 1)
        y = nn.functional.scaled_dot_product_attention(
            query, self.turn(key), value, is_causal=True, enable_gqa=True
        )
        x = x + self.out(y.transpose(1, 2).flatten(2))
        y = self.last(x)
        found: Tensor = x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))
        return found


class Writes(nn.Module):
    """Variances, and writes into slices and places, which the package decomposes."""

    def forward(self, x: Tensor) -> Tensor:
        y = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + 1e-5).sqrt()
        z = torch.zeros_like(y)
        z[:, 1:5] = y[:, 2:6]
        z[:, :, 0] = torch.special.i0(y[:, :, 0])
        z = z.scatter_add(1, torch.zeros(x.shape[0], 2, 1, dtype=torch.int64), y[:, :2, :1])
        z[:, [0, 2]] += torch.rsqrt(y[:, [1, 3]].abs() + 1)
        return torch.log_softmax(z, -1) + z.std(1, keepdim=True)


class Pools(nn.Module):
    """Max pools: plain, rounded up, which has no converter, and with indices that are read."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        pool = nn.functional.max_pool2d
        y = pool(x, 2).relu() * 2 + 1
        z = pool(x, 3, ceil_mode=True).tanh()
        w, places = pool(x, 2, return_indices=True)
        y = nn.functional.max_unpool2d(w * y, places, [2, 2]).sigmoid()
        return nn.functional.avg_pool2d(y, 2, ceil_mode=True).exp(), z.neg()


class Rotary(nn.Module):
    """Positions by complex numbers, which the package computes with pairs."""

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1])[:, None] * torch.tensor([1.0, 0.1])
        turn = torch.polar(torch.ones_like(places), places)
        pairs = torch.view_as_complex(torch.unflatten(x, -1, (-1, 2)))
        y = torch.view_as_real(pairs * turn).flatten(2)
        return torch.softmax(y @ y.transpose(1, 2), -1)


class Sizes(nn.Module):
    """Sizes and what is computed from them, also across an operator that runs in torch."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[0]
        half = (n + 1) // 2
        grid = torch.arange(n, dtype=torch.float32)[:, None] / n
        y = torch.special.i0(self.line(x)) + grid
        mask = torch.arange(n) < half
        y = torch.where(mask[:, None], y, x.relu())
        top = torch.cat([y, torch.full((n, 1), 0.5)], -1)
        return top.sum(0).tanh() * half


class Images(nn.Module):
    """A U-Net's parts: group norms, hard swish, transposed convolutions, resizing and sampling."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, 2, 1, groups=8)
        self.norm, self.act = nn.GroupNorm(2, 8), nn.Hardswish()
        self.up, self.last = nn.ConvTranspose2d(8, 8, 2, 2), nn.Conv2d(16, 12, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.norm(self.one(x)))
        z = self.act(self.two(y))
        z = self.up(z) + nn.functional.interpolate(
            z, scale_factor=2.0, mode="bilinear", align_corners=False
        )
        z = nn.functional.pixel_shuffle(self.last(torch.cat([y, z.roll(1, -1)], 1)), 2)
        rows = torch.eye(2, 3).expand(x.shape[0], 2, 3)
        grid = nn.functional.affine_grid(rows, [x.shape[0], 3, 8, 8], align_corners=False)
        return nn.functional.grid_sample(z, grid, align_corners=False)


class Recurrent(nn.Module):
    """Cells of a recurrent net over three steps."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        state, memory = torch.zeros(x.shape[0], 8), torch.zeros(x.shape[0], 8)
        found = []
        for step in x.unbind(1):
            state, memory = self.cell(step, (state, memory))
            found.append(self.head(state))
        return torch.stack(found, 1).cumsum(1)


SHAPES = {
    Middle: (2, 1, 8, 8), Branches: (2, 8), Whole: (2, 5, 16), Detector: (2, 3, 4, 4),
    Decoder: (2, 5, 16), Writes: (2, 6, 4), Pools: (2, 3, 8, 8), Rotary: (2, 5, 4),
    Sizes: (4, 8), Images: (2, 3, 8, 8), Recurrent: (2, 3, 8),
}  # fmt: skip


def export_net(kind: type[nn.Module], *, dynamic: bool) -> torch.export.ExportedProgram:
    """The program of a net, with a batch of at most 8 or a fixed one."""
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
