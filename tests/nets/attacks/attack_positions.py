"""Tables of positions that are limited, grown or cut, and caches of keys and values."""
# mypy: disable-error-code="no-any-return,no-untyped-call"

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from attack_case import attack, ints
from torch import Tensor, nn

SEQ = {"x": (2, 6, 16)}


def sinusoid(length: int, width: int) -> Tensor:
    """The table of the first transformer."""
    angle = torch.arange(length)[:, None] * torch.exp(
        torch.arange(0, width, 2) * (-math.log(10000.0) / width)
    )
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(1)


@attack("x[batch,seq,16]", family="position cache", sample=SEQ)
class GrownTable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(16, 16)
        self.table = sinusoid(8, 16)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] > self.table.shape[0]:
            self.table = sinusoid(2 * x.shape[1], 16)
        return self.dense(x + self.table[: x.shape[1]])


@attack("x[batch,seq,16]", family="position cache", sample=SEQ)
class GrownDifferently(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(16, 16)
        self.register_buffer("table", sinusoid(10, 16), persistent=False)
        self.table: Tensor

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        table = self.table if n <= self.table.shape[0] else sinusoid(n, 16) * (10 / n)
        return self.dense(x + table[:n])


@attack("x[batch,seq,16]", family="position cache", sample=SEQ)
class LimitedTable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(16, 16)
        self.register_buffer("table", sinusoid(20, 16))
        self.table: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return self.dense(x + self.table[: x.shape[1]])


@attack("ids[batch,seq]", family="position cache", good=True,
        sample={"ids": ints((2, 9), 0, 49)})  # fmt: skip
class LearnedPositions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, 16), nn.Embedding(24, 16)
        self.norm = nn.LayerNorm(16)

    def forward(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        return self.norm(self.words(ids) + self.places(places))


@attack("x[batch,seq,16]", family="position cache", sample=SEQ)
class ClampedPositions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Embedding(8, 16)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.places(torch.arange(x.shape[1]).clamp(max=7))


class Rotary(nn.Module):
    """Rotary positions of 8 channels."""

    def __init__(self, limit: int = 0) -> None:
        super().__init__()
        self.query = nn.Linear(16, 16)
        self.limit = limit
        self.register_buffer("freq", 100.0 ** -(torch.arange(0, 16, 2) / 16), persistent=False)
        self.freq: Tensor

    def turn(self, x: Tensor, freq: Tensor) -> Tensor:
        """Turn pairs of channels by their position."""
        angle = torch.arange(x.shape[1])[:, None] * freq
        a, b = x.chunk(2, -1)
        return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


@attack("x[batch,seq,16]", family="position cache", sample=SEQ, good=True)
class PlainRotary(Rotary):
    def forward(self, x: Tensor) -> Tensor:
        return self.turn(self.query(x), self.freq)


@attack("x[batch,seq,16]", family="position cache", sample=SEQ)
class DynamicNtk(Rotary):
    def forward(self, x: Tensor) -> Tensor:
        n = int(torch.arange(x.shape[1]).max()) + 1
        freq = self.freq
        if n > 12:
            freq = (100.0 * (n / 12)) ** -(torch.arange(0, 16, 2) / 16)
        return self.turn(self.query(x), freq)


@attack("x[batch,seq,16]", family="position cache", sample=SEQ)
class RelativeBuckets(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.bias = nn.Linear(16, 48), nn.Embedding(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        gap = torch.arange(n)[None] - torch.arange(n)[:, None]
        far = 4 + (gap.abs().float().clamp(min=1).log() / math.log(4)).long()
        bucket = torch.where(gap.abs() < 4, gap.abs(), far.clamp(max=7))
        q, k, v = self.qkv(x).view(x.shape[0], n, 3, 2, 8).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / 8**0.5 + self.bias(bucket).permute(2, 0, 1)
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


@attack("x[batch,seq,16]", family="position cache", sample=SEQ, good=True)
class AlibiBias(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        place = torch.arange(n)
        bias = (place[None] - place[:, None]) * torch.tensor([0.5, 0.25])[:, None, None]
        causal = torch.full((n, n), float("-inf")).triu(1)
        q, k, v = self.qkv(x).view(x.shape[0], n, 3, 2, 8).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / 8**0.5 + bias + causal
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


@attack("x[batch,seq,16]", family="position cache", sample=SEQ)
class KeptMask(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mask: Tensor | None = None
        self.dense = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        if self.mask is None or self.mask.shape[0] != n:
            self.mask = torch.full((n, n), 1.0).tril() / torch.arange(1, n + 1)[:, None]
        return self.dense(self.mask @ x)


@attack("x[batch,seq,16]", family="position cache", sample=SEQ)
class PositionsOfRows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(1, 1024, 16))

    def forward(self, x: Tensor) -> Tensor:
        table = self.table.repeat(x.shape[0], 1, 1)
        return x * table[:, : x.shape[1]] + table[:, x.shape[1] - 1 : x.shape[1]]


@attack("x[batch,_,_,_]", family="position cache", sample={"x": (2, 3, 16, 16)}, good=True)
class PatchTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 16, 4, 4)
        self.cls = nn.Parameter(torch.randn(1, 1, 16))
        self.places = nn.Parameter(torch.randn(1, 17, 16))
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patch(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.cls.expand(x.shape[0], -1, -1), tokens], 1) + self.places
        return self.head(self.layer(tokens)[:, 0])


@attack("x[batch,_,height,width]", family="position cache", sample={"x": (2, 3, 16, 16)})
class InterpolatedPositions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 16, 4, 4)
        self.places = nn.Parameter(torch.randn(1, 16, 4, 4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.patch(x)
        if y.shape[-2:] == (4, 4):
            return y + self.places
        places = nn.functional.interpolate(
            self.places, size=y.shape[-2:], mode="bicubic", align_corners=False
        )
        return y + places


# --- caches that come and go -----------------------------------------------------------------


class Attention(nn.Module):
    """Two heads of 8, with keys and values of the past."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Heads apart."""
        q, k, v = self.qkv(x).view(x.shape[0], x.shape[1], 3, 2, 8).permute(2, 0, 3, 1, 4)
        return q, k, v

    def join(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend to all."""
        weights = (q @ k.transpose(-1, -2) / 8**0.5).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


@attack("x[batch,1,16]", "k[batch,2,past,8]", "v[batch,2,past,8]", family="cache", good=True,
        sample={"x": (2, 1, 16), "k": (2, 2, 5, 8), "v": (2, 2, 5, 8)})  # fmt: skip
class DecodeStep(Attention):
    def forward(self, x: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, new_k, new_v = self.split(x)
        k, v = torch.cat([k, new_k], 2), torch.cat([v, new_v], 2)
        return self.join(q, k, v), k, v


@attack("x:float32[batch,1,16]", "k:float32[batch,2,past=0..12,8]",
        "v:float32[batch,2,past,8]", family="cache", good=True)  # fmt: skip
class FirstStepIsEmpty(Attention):
    def forward(self, x: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, new_k, new_v = self.split(x)
        k, v = torch.cat([k, new_k], 2), torch.cat([v, new_v], 2)
        return self.join(q, k, v), k, v


@attack("x[batch,1,16]", "k[batch,2,past,8]", "v[batch,2,past,8]", family="cache",
        sample={"x": (2, 1, 16), "k": (2, 2, 5, 8), "v": (2, 2, 5, 8)})  # fmt: skip
class SlidingWindow(Attention):
    def forward(self, x: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, new_k, new_v = self.split(x)
        k, v = torch.cat([k, new_k], 2), torch.cat([v, new_v], 2)
        if k.shape[2] > 8:
            k, v = k[:, :, -8:], v[:, :, -8:]
        return self.join(q, k, v), k, v


class Cache:
    """A cache as a class of the user's own."""

    def __init__(self, k: Tensor, v: Tensor) -> None:
        self.k, self.v = k, v


@dataclass
class Answer:
    """Outputs as a dataclass."""

    hidden: Tensor
    cache: tuple[tuple[Tensor, Tensor], ...]


@attack("x[batch,seq,16]", family="output left out", sample=SEQ)
class CacheObject(Attention):
    def forward(self, x: Tensor) -> tuple[Tensor, Any]:
        q, k, v = self.split(x)
        return self.join(q, k, v), Cache(k, v)


@attack("x[batch,seq,16]", family="output left out", sample=SEQ, good=True)
class CacheInDataclass(Attention):
    def forward(self, x: Tensor) -> Answer:
        q, k, v = self.split(x)
        return Answer(hidden=self.join(q, k, v), cache=((k, v),))


@attack("x[batch,seq,16]", family="output left out", sample=SEQ, good=True)
class TransformersCache(Attention):
    def forward(self, x: Tensor) -> dict[str, Any]:
        from transformers.cache_utils import DynamicCache

        q, k, v = self.split(x)
        cache = DynamicCache()
        k, v = cache.update(k, v, 0)
        return {"hidden": self.join(q, k, v), "past_key_values": cache}


@attack("x[batch,seq,16]", family="output left out", sample=SEQ)
class LengthBesideTensor(Attention):
    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        return self.join(*self.split(x)), x.shape[1] * 2


@attack("x[batch,seq,16]", family="state", sample=SEQ)
class CounterBuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(16, 4)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.calls: Tensor

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.dense(x)
