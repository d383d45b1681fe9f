"""Conditions on sizes, and sizes that go through tensors or Python on their way."""
# mypy: disable-error-code="no-any-return,no-untyped-call"

from __future__ import annotations

import math

import numpy as np
import torch
from attack_case import attack, ints
from torch import Tensor, nn
from torch.nn import functional

X = "x:float32[batch,seq,8]"
IMAGE = "x[batch,3,height,width]"
SEQ = {"x": (2, 6, 8)}
MASKED = {"x": (1, 3, 64, 24), "mask": np.arange(64 * 24).reshape(1, 64, 24) % 7 > 2}
PICTURE = {"x": (2, 3, 24, 24)}


class Dense(nn.Module):
    """A linear layer of 8, which the nets here are made of."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(8, 8)


class Conv(nn.Module):
    """A convolution from 3 channels to 8."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)


@attack(X, family="size condition")
class Above9(Dense):
    def forward(self, x: Tensor) -> Tensor:
        y = self.dense(x)
        return y * 2 if x.shape[1] > 9 else y


@attack("x[batch,seq,8]", family="size condition", sample=SEQ)
class EqualTo7(Dense):
    def forward(self, x: Tensor) -> Tensor:
        y = self.dense(x)
        if x.shape[1] == 7:
            y = y.flip(1)
        return y


@attack("x[batch,seq,8]", family="size condition", sample=SEQ)
class Modulo3(Dense):
    def forward(self, x: Tensor) -> Tensor:
        y = self.dense(x)
        if x.size(1) % 3:
            y = torch.cat([y, y[:, : 3 - x.size(1) % 3].mean(1, keepdim=True)], 1)
        return y.sum(1)


@attack("x[batch,seq,8]", family="size condition", sample=SEQ)
class SizeInDict(Dense):
    def forward(self, x: Tensor) -> Tensor:
        return self.dense(x) * {1: 3.0, 4: 2.0, 7: 5.0}.get(x.shape[1], 1.0)


@attack("x[batch,seq,8]", family="size condition", sample=SEQ)
class SizeInSet(Dense):
    def forward(self, x: Tensor) -> Tensor:
        y = self.dense(x)
        return y.abs() if x.shape[1] in {11, 13} else y


@attack("x[batch,seq,8]", family="size condition", sample=SEQ)
class BatchOfOne(Dense):
    def forward(self, x: Tensor) -> Tensor:
        y = self.dense(x)
        return y if x.shape[0] == 1 else y - y.mean(0, keepdim=True)


@attack(IMAGE, family="size condition", sample=PICTURE)
class Portrait(Conv):
    def forward(self, x: Tensor) -> Tensor:
        if x.shape[2] > x.shape[3]:
            x = x.transpose(2, 3)
        return self.conv(x).mean((2, 3))


@attack(IMAGE, family="size condition", sample=PICTURE)
class ManyPixels(Conv):
    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return y[..., ::2, ::2] if x.shape[2] * x.shape[3] > 1000 else y


@attack("x[batch,seq,8]", family="size condition", sample=SEQ)
class TableBySize(Dense):
    def __init__(self) -> None:
        super().__init__()
        self.table = [0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0]

    def forward(self, x: Tensor) -> Tensor:
        try:
            scale = self.table[x.shape[1]]
        except IndexError:
            scale = 10.0
        return self.dense(x) * scale


@attack("x[batch,seq,8]", family="size condition", sample=SEQ)
class MinOfSize(Dense):
    def forward(self, x: Tensor) -> Tensor:
        k = min(x.shape[1], 10)
        return self.dense(x)[:, :k].cumsum(1)


@attack("x[batch,seq,8]", "y[batch,seq2,8]", family="size condition",
        sample={"x": (2, 6, 8), "y": (2, 4, 8)})  # fmt: skip
class LongerOfTwo(Dense):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        longer = x if x.shape[1] >= y.shape[1] else y
        return self.dense(longer).sum(1)


@attack("x[batch,seq,8]", family="size condition", sample=SEQ)
class ChunkWhenLong(Dense):
    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] > 16:
            return torch.cat([self.dense(part).tanh() * 1.5 for part in x.split(16, 1)], 1)
        return self.dense(x).tanh()


@attack("x[batch,seq,8]", family="size condition", sample=SEQ)
class LogOfSize(Dense):
    def forward(self, x: Tensor) -> Tensor:
        scale = max(1.0, math.log(x.shape[1] + 1, 8))
        return torch.softmax(self.dense(x) * scale, -1)


@attack(X, family="size to tensor")
class ArangeMax(Dense):
    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[1])
        n = int(positions.max()) + 1
        return self.dense(x) / n


@attack("x[batch,seq,8]", family="size to tensor", sample=SEQ)
class OnesSumItem(Dense):
    def forward(self, x: Tensor) -> Tensor:
        n = torch.ones(x.shape[1]).sum().item()
        return self.dense(x) * (n / 10)


@attack("x[batch,seq,8]", family="size to tensor", sample=SEQ)
class CeilOfSize(Dense):
    def forward(self, x: Tensor) -> Tensor:
        blocks = math.ceil(x.shape[1] / 4)
        return self.dense(x).mean(1) * blocks


@attack("x[batch,seq,8]", family="size to tensor", sample={"x": (2, 20, 8)})
class LenOfSlice(Dense):
    def forward(self, x: Tensor) -> Tensor:
        over = len(torch.zeros(x.shape[1])[16:])
        return self.dense(x) + over


@attack("x[batch,seq,8]", family="size to tensor", sample=SEQ)
class ShapeTupleEqual(Dense):
    def forward(self, x: Tensor) -> Tensor:
        y = self.dense(x)
        return y if tuple(x.shape) == (2, 6, 8) else -y


@attack("x[batch,seq,8]", family="size to tensor", sample=SEQ)
class LinspaceWeights(Dense):
    def forward(self, x: Tensor) -> Tensor:
        weight = torch.linspace(0, 1, x.shape[1])
        return (self.dense(x) * weight[:, None]).sum(1)


@attack("x[batch,seq,8]", family="size to tensor", sample=SEQ)
class TensorOfSize(Dense):
    def forward(self, x: Tensor) -> Tensor:
        return self.dense(x) / torch.tensor(x.shape[1]).float().sqrt()


@attack("x[batch,seq,8]", family="size to tensor", sample=SEQ)
class AsTensorShape(Dense):
    def forward(self, x: Tensor) -> Tensor:
        sizes = torch.as_tensor(x.shape)
        return self.dense(x) * sizes[1] + sizes.prod()


@attack("x[batch,seq,8]", family="size to tensor", sample=SEQ)
class TorchSizeNumel(Dense):
    def forward(self, x: Tensor) -> Tensor:
        return self.dense(x) * (x.numel() ** -0.5)


@attack("x[batch,seq,8]", family="size to tensor", sample=SEQ)
class IntOfHalf(Dense):
    def forward(self, x: Tensor) -> Tensor:
        half = int(x.shape[1] * 0.5)
        return self.dense(x)[:, half:].mean(1)


@attack("x[batch,seq,8]", family="size to tensor", sample=SEQ)
class RoundedThird(Dense):
    def forward(self, x: Tensor) -> Tensor:
        keep = max(1, round(x.shape[1] / 3))
        return self.dense(x)[:, :keep].amax(1)


@attack("x[batch,seq,8]", family="size to tensor", sample=SEQ)
class PowerOfTwo(Dense):
    def forward(self, x: Tensor) -> Tensor:
        n = 2 ** math.ceil(math.log2(x.shape[1]))
        return nn.functional.pad(self.dense(x), (0, 0, 0, n - x.shape[1])).mean(1)


@attack("x[batch,seq,8]", family="size to tensor", sample=SEQ)
class WindowOfSize(Dense):
    def forward(self, x: Tensor) -> Tensor:
        return self.dense(x) * torch.hann_window(x.shape[1])[:, None]


@attack("x[batch,seq,8]", family="size to tensor", sample=SEQ)
class TriuFullCount(Dense):
    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        pairs = int(torch.triu(torch.full((n, n), 1.0), 1).sum())
        return self.dense(x).sum(1) / max(pairs, 1)


@attack("x[batch,seq,8]", family="size to tensor", sample=SEQ)
class StridesToList(Dense):
    def forward(self, x: Tensor) -> Tensor:
        steps = torch.arange(0, x.shape[1], 3).tolist()
        return torch.stack([self.dense(x[:, step]) for step in steps], 1)


@attack("x[batch,seq,8]", family="size to tensor", sample=SEQ)
class CachedBySize(Dense):
    def __init__(self) -> None:
        super().__init__()
        self.cache: dict[int, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        if n not in self.cache:
            self.cache[n] = torch.arange(n).float().flip(0)
        return self.dense(x) + self.cache[n][:, None]


@attack("x[batch,seq,8]", family="size to tensor", sample=SEQ)
class StringOfSize(Dense):
    def forward(self, x: Tensor) -> Tensor:
        return self.dense(x) + len(f"{x.shape[1]}")


@attack("x[batch,seq,8]", family="size to tensor", sample=SEQ)
class HistogramOfIndex(Dense):
    def forward(self, x: Tensor) -> Tensor:
        groups = torch.arange(x.shape[1]) // 5
        count = int(groups[-1]) + 1
        y = self.dense(x)
        return torch.zeros(x.shape[0], count, 8).index_add(1, groups, y)


@attack("x[batch,seq,8]", family="size condition", sample=SEQ)
class StepByWhile(Dense):
    def forward(self, x: Tensor) -> Tensor:
        y = self.dense(x)
        while y.shape[1] > 3:
            y = (y[:, 0::2][:, : y.shape[1] // 2] + y[:, 1::2]).relu()
        return y.mean(1)


@attack("ids[batch,seq]", family="size condition", sample={"ids": ints((2, 6), 0, 39)})
class TruncatedTo12(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 8)

    def forward(self, ids: Tensor) -> Tensor:
        if ids.shape[1] > 12:
            ids = torch.cat([ids[:, :6], ids[:, -6:]], 1)
        return self.embed(ids).mean(1)


@attack(
    "x[batch,_,height,_]",
    "mask[batch,height,_]",
    family="resize to sizes",
    good=True,
    sample=MASKED,
)
class DetrMask(nn.Module):
    """A mask of padding at the size of the features, as DETR has it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, 2, 1), nn.Conv2d(4, 4, 3, 4, 1)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        features = self.second(self.first(x).relu())
        small = functional.interpolate(mask[None].float(), size=features.shape[-2:])
        shown = small.to(torch.bool)[0]
        return features.masked_fill(shown[:, None], 0.0), shown


@attack("x[batch,seq,4]", family="linspace", sample={"x": (2, 40, 4)}, good=True)
class UniformSubsample(nn.Module):
    """Eight frames at equal distances, as video models take them."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, torch.linspace(0, x.shape[1] - 1, 8).long()]


@attack("x[batch,seq,4]", family="linspace", sample={"x": (2, 40, 4)}, good=True)
class BucketLinspace(nn.Module):
    """An embedding of the tenth of the row that a place lies in."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.embed((torch.linspace(0, 1, x.shape[1]) * 10).floor().long())
