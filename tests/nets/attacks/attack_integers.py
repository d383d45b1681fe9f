"""Integers: ids that pass through, hashes, timestamps, divisions, bytes, indices."""
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import numpy as np
import torch
from attack_case import attack, ints
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as in every tutorial

IDS = {"ids": ints((2, 6), 0, 39)}


class Embed(nn.Module):
    """Forty words of 8."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 8)


@attack("x:float32[batch,8]", "user:int64[batch]", family="integers")
class PassedThrough(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(8, 3)

    def forward(self, x: Tensor, user: Tensor) -> tuple[Tensor, Tensor]:
        return self.dense(x), user


@attack("i:int64[batch,4]", family="integers")
class ShiftRight(nn.Module):
    def forward(self, i: Tensor) -> Tensor:
        return i >> 2


@attack("i:int64[batch,4]", family="integers")
class HashBuckets(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(97, 8)

    def forward(self, i: Tensor) -> Tensor:
        return self.embed((i * 2654435761 + 12345) % 97)


@attack("t:int64[batch]", family="integers",
        sample={"t": np.array([1_700_000_000_123, 1_600_000_000_456])})  # fmt: skip
class TimeOfDay(nn.Module):
    def forward(self, t: Tensor) -> Tensor:
        seconds = (t // 1000) % 86400
        return torch.stack([seconds // 3600, (seconds // 60) % 60, seconds % 60], -1)


@attack("i:int64[batch,4]", family="integers")
class TruncDivision(nn.Module):
    def forward(self, i: Tensor) -> Tensor:
        return torch.div(i, 7, rounding_mode="trunc")


@attack("i:int64[batch,4]", "j:int64[batch,4]{1..50}", family="integers")
class FloorAndRemainder(nn.Module):
    def forward(self, i: Tensor, j: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return i // j, i % j, torch.fmod(i, j)


@attack("i:int64[batch,4]", family="integers")
class RemainderNegative(nn.Module):
    def forward(self, i: Tensor) -> Tensor:
        return torch.remainder(i, -5) + i.remainder(5)


@attack("image:uint8[batch,3,height,width]", family="integers",
        sample={"image": ints((2, 3, 8, 8), 0, 255).astype(np.uint8)})  # fmt: skip
class ByteOverflow(nn.Module):
    def forward(self, image: Tensor) -> Tensor:
        return (image + 100) * 2


@attack("image:uint8[batch,3,height,width]", family="integers", good=True,
        sample={"image": ints((2, 3, 16, 16), 0, 255).astype(np.uint8)})  # fmt: skip
class BytesToFloat(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406])[:, None, None])
        self.mean: Tensor

    def forward(self, image: Tensor) -> Tensor:
        return self.conv(image.float() / 255 - self.mean).relu().mean((2, 3))


@attack("i:int64[batch,4]", family="integers")
class SumOfSquares(nn.Module):
    def forward(self, i: Tensor) -> Tensor:
        return (i * i).sum(-1)


@attack("i:int64[batch,4]", family="integers")
class ToFloatAndBack(nn.Module):
    def forward(self, i: Tensor) -> Tensor:
        return (i.float() * 1.0).long() - i


@attack("i:int32[batch,4]", family="integers")
class Int32Wraps(nn.Module):
    def forward(self, i: Tensor) -> Tensor:
        return i * 65537 + 2**30


@attack("i:int64[batch,4]", family="integers")
class BitsApart(nn.Module):
    def forward(self, i: Tensor) -> Tensor:
        return (i[..., None] >> torch.arange(8)) & 1


@attack("i:int64[batch,4]", family="integers")
class AbsAndSign(nn.Module):
    def forward(self, i: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return i.abs(), i.sign(), i.clamp(-3, 3)


@attack("a:int64[batch]", "b:int64[batch]", family="integers")
class CompareLarge(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return a == b + 1, torch.maximum(a, b) > 2**32


@attack("ids[batch,seq]", family="integers", sample=IDS, good=True)
class BagOfWords(Embed):
    def forward(self, ids: Tensor) -> Tensor:
        return self.embed(ids).mean(1)


@attack("ids:int64[batch,seq]", family="integers")
class UnknownTable(Embed):
    def forward(self, ids: Tensor) -> Tensor:
        return self.embed(ids).sum(1)


@attack("ids:int64[batch,seq]", family="integers")
class ClampedIds(Embed):
    def forward(self, ids: Tensor) -> Tensor:
        return self.embed(ids.clamp(0, 39)).sum(1)


@attack("x:float32[batch,10,8]", "i:int64[batch,3]", family="integers")
class NegativeIndex(nn.Module):
    def forward(self, x: Tensor, i: Tensor) -> Tensor:
        return x[torch.arange(x.shape[0])[:, None], i]


@attack("x[batch,seq,8]", "i[batch,3]", family="integers", good=True,
        sample={"x": (2, 10, 8), "i": ints((2, 3), 0, 9)})  # fmt: skip
class GatherRows(nn.Module):
    def forward(self, x: Tensor, i: Tensor) -> Tensor:
        return x.gather(1, i[..., None].expand(-1, -1, 8))


@attack("ids[batch,seq]", family="integers", sample=IDS)
class CountWords(nn.Module):
    def forward(self, ids: Tensor) -> Tensor:
        return F.one_hot(ids, 40).sum(1)


@attack("ids[batch,seq]", family="integers", sample=IDS)
class PaddingIndexLengths(Embed):
    def forward(self, ids: Tensor) -> Tensor:
        lengths = (ids != 0).sum(1)
        last = (lengths - 1).clamp(min=0)
        return self.embed(ids)[torch.arange(ids.shape[0]), last]


@attack("ids[batch,seq]", family="integers", sample={"ids": ints((2, 6), 1, 39)})
class EndToken(Embed):
    def forward(self, ids: Tensor) -> Tensor:
        return self.embed(ids)[torch.arange(ids.shape[0]), ids.argmax(-1)]


@attack("x[batch,seq,8]", "lengths[batch]", family="integers",
        sample={"x": (2, 6, 8), "lengths": np.array([6, 3])})  # fmt: skip
class MeanOverLengths(nn.Module):
    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        keep = torch.arange(x.shape[1])[None] < lengths[:, None]
        return (x * keep[..., None]).sum(1) / lengths[:, None].clamp(min=1)


@attack("x:float32[batch,5]", family="integers")
class CastDown(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        clipped = x.clamp(-100, 100)
        return clipped.to(torch.int8), clipped.round().int(), x > 0.5


@attack("i:int64[batch,4]", family="integers")
class CumulativeInt(nn.Module):
    def forward(self, i: Tensor) -> tuple[Tensor, Tensor]:
        return i.cumsum(1), i.prod(1)


@attack("ids[batch,seq]", family="integers", sample=IDS)
class BincountIds(nn.Module):
    def forward(self, ids: Tensor) -> Tensor:
        return torch.bincount(ids.flatten(), minlength=40)


@attack("i:int64[batch,4]", family="integers")
class MeanOfInts(nn.Module):
    def forward(self, i: Tensor) -> Tensor:
        return i.double().mean(1).float() + i.float().std(1)


@attack("t[batch,seq]", family="integers", good=True,
        sample={"t": np.array([[1_600_000_000, 1_605_225_599, 3, 4]])})  # fmt: skip
class HourOfDay(nn.Module):
    """The hour of a timestamp in seconds, as recommenders take it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(24, 4)

    def forward(self, t: Tensor) -> tuple[Tensor, Tensor]:
        hour = t // 3600 % 24
        return self.embed(hour), hour


@attack("now[batch]", "then[batch]", family="integers", good=True,
        sample={"now": np.array([1_600_000_000, 1_605_225_599]),
                "then": np.array([1_500_000_000, 1_605_225_500])})  # fmt: skip
class MinutesSince(nn.Module):
    """How long ago something was, in minutes."""

    def forward(self, now: Tensor, then: Tensor) -> Tensor:
        return ((now - then) // 60).clamp(min=0)


@attack("t:int64[batch,4]", family="integers")
class LatestOfRow(nn.Module):
    def forward(self, t: Tensor) -> tuple[Tensor, Tensor]:
        return t.amax(1), t.amin(1)


@attack("clicks:int64[batch=1..8]{0..1000}", "views:int64[batch]{1..1000}", family="integers",
        good=True)  # fmt: skip
class CtrPercent(nn.Module):
    """A share in whole percent, as a column of a table."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(101, 4)

    def forward(self, clicks: Tensor, views: Tensor) -> tuple[Tensor, Tensor]:
        share = (clicks / views).clamp(max=1)
        return self.embed((share * 100).floor().long()), share >= 0.3


@attack("seconds:int64[batch=1..8]{0..86399}", family="integers", good=True)
class HourFloat(nn.Module):
    """The hour and the minute of a second of the day, by way of floats."""

    def __init__(self) -> None:
        super().__init__()
        self.hours, self.minutes = nn.Embedding(24, 4), nn.Embedding(60, 4)

    def forward(self, seconds: Tensor) -> Tensor:
        hour = seconds / 3600
        minute = (hour - hour.floor()) * 60
        return self.hours(hour.long()) + self.minutes(minute.long().clamp(max=59))
