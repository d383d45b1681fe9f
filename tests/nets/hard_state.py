"""Hard cases: buffers that change, writes in place, caches, hooks and other state."""

# Thresholds stand in the models as their authors write them.

from __future__ import annotations

import functools
import math

import numpy as np
import torch
from torch import Tensor, nn

from modelc.tests.nets.case_helpers import Feeds, hard, normal, spiked
from modelc.tests.nets.cases import Case

_MASKS: dict[int, Tensor] = {}


class Counting(nn.Module):
    """Counts its calls and keeps a running mean of its inputs; neither reaches the output."""

    calls: Tensor
    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(16, 8)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("seen", torch.zeros(16))

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 16) to (batch, 8)."""
        self.calls += 1
        self.seen.mul_(0.9).add_(x.mean(dim=0), alpha=0.1)
        out: Tensor = self.body(x)
        return out


class CachedAttention(nn.Module):
    """Writes keys and values into buffers of the largest size and reads them back from there."""

    keys: Tensor
    values: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.project, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.register_buffer("keys", torch.zeros(4, 32, 16), persistent=False)
        self.register_buffer("values", torch.zeros(4, 32, 16), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, seq, 16) to the same; batch up to 4, seq up to 32."""
        batch, seq, _ = x.shape
        query, key, value = self.project(x).chunk(3, dim=-1)
        self.keys[:batch, :seq] = key
        self.values[:batch, :seq] = value
        scores = query @ self.keys[:batch, :seq].transpose(1, 2) / math.sqrt(16)
        out: Tensor = self.out(scores.softmax(dim=-1) @ self.values[:batch, :seq])
        return out


class InPlace(nn.Module):
    """Writes through views, slices and masks of an intermediate."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, seq, 16) to the same."""
        y: Tensor = self.body(x)
        even = y[..., ::2]
        even.relu_()
        y[:, 0] += 1.0
        y[:, :, :4].mul_(0.5).sub_(y[:, :, 4:8])
        y[y > 2.0] = 2.0
        y.transpose(1, 2)[:, -1].zero_()
        return y + even.sum(dim=-1, keepdim=True)


class InputWriting(nn.Module):
    """Normalises its input in place: the caller's tensor changes."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 16) to (batch, 8)."""
        x -= x.mean(dim=-1, keepdim=True)
        x /= x.std(dim=-1, keepdim=True) + 1e-5
        out: Tensor = self.body(x)
        return out


class Remembering(nn.Module):
    """Keeps its attention map as an attribute in forward, and one part reads it in the other."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, seq, 16) to (batch, seq, 16)."""
        self.attention = (self.query(x) @ self.key(x).mT / 4.0).softmax(dim=-1)
        return self._mixed(x)

    def _mixed(self, x: Tensor) -> Tensor:
        out: Tensor = self.attention @ self.value(x) + self.attention.amax(dim=-1, keepdim=True)
        return out


def _causal(length: int) -> Tensor:
    """A causal mask, kept by length in a dict of the module."""
    if length not in _MASKS:
        _MASKS[length] = torch.full((length, length), float("-inf")).triu(1)
    return _MASKS[length]


@functools.lru_cache(maxsize=32)
def _slopes(heads: int) -> tuple[float, ...]:
    return tuple(2.0 ** (-8.0 * (head + 1) / heads) for head in range(heads))


@functools.lru_cache(maxsize=32)
def _distances(length: int) -> Tensor:
    places = torch.arange(length)
    return (places[None, :] - places[:, None]).float()


class MemoisedMask(nn.Module):
    """Masks from a global dict and an lru_cache'd helper, both keyed by the length."""

    def __init__(self, heads: int = 4) -> None:
        super().__init__()
        self.project, self.heads = nn.Linear(16, 48), heads

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, seq, 16) to the same."""
        batch, seq, width = x.shape
        parts = self.project(x).view(batch, seq, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        slopes = torch.tensor(_slopes(self.heads))[:, None, None]
        bias = _distances(seq) * slopes + _causal(seq)
        scores = query @ key.transpose(-1, -2) + bias
        out: Tensor = (scores.softmax(dim=-1) @ value).transpose(1, 2).reshape(batch, seq, width)
        return out


class GrowingRotary(nn.Module):
    """Rotary positions that are computed anew when a longer sequence comes than any before."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.body, self.width, self.longest = nn.Linear(width, width), width, 0
        self.cos, self.sin = torch.empty(0), torch.empty(0)

    def _grow(self, length: int) -> None:
        rates = 1.0 / 100 ** (torch.arange(0, self.width, 2) / self.width)
        angles = torch.arange(length)[:, None] * rates
        self.cos, self.sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
        self.longest = length

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, seq, 16) to the same."""
        length = x.shape[1]
        if length > self.longest:
            self._grow(length)
        left, right = x.chunk(2, dim=-1)
        turned = torch.cat([-right, left], dim=-1)
        out: Tensor = self.body(x * self.cos[:length] + turned * self.sin[:length])
        return out


class ThroughNumpy(nn.Module):
    """Goes through NumPy in the middle of forward."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 16) to (batch, 8)."""
        norms = np.linalg.norm(x.detach().cpu().numpy(), axis=-1, keepdims=True)
        out: Tensor = self.body(x / torch.from_numpy(norms + 1e-6))
        return out


class Hooked(nn.Module):
    """Features kept by forward hooks, read after the backbone has run."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16), nn.Tanh())
        self.out = nn.Linear(32, 4)
        self.kept: dict[int, Tensor] = {}
        for index in (1, 3):
            self.backbone[index].register_forward_hook(functools.partial(self._keep, index))

    def _keep(self, index: int, _module: nn.Module, _given: object, result: Tensor) -> None:
        self.kept[index] = result

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 16) to (batch, 4)."""
        self.backbone(x)
        out: Tensor = self.out(torch.cat([self.kept[1], self.kept[3]], dim=-1))
        return out


class Accumulating(nn.Module):
    """A nested function that counts and adds by nonlocal."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 16) to the mean of all layers' outputs."""
        total, count = torch.zeros_like(x), 0

        def add(part: Tensor) -> None:
            nonlocal total, count
            total, count = total + part, count + 1

        for layer in self.layers:
            x = torch.tanh(layer(x))
            add(x)
        return total / count


def _loud() -> Feeds:
    return [{"x": spiked(seed, 3, 16, value=40.0)} for seed in (1, 2)] + [{"x": normal(3, 1, 16)}]


_X, _SEQ = "x:float32[batch=1..4,16]", "x:float32[batch=1..4,seq=1..32,16]"
CASES: tuple[Case, ...] = (
    hard("running-counter", Counting, _X, why="buffers written in forward"),
    hard("cache-buffers", CachedAttention, _SEQ, why="keys and values kept in buffers by slices"),
    hard("writes-through-views", InPlace, _SEQ, why="in-place on slices, transposes and masks"),
    hard("writes-its-input", InputWriting, _X, why="x -= mean in place"),
    hard("attribute-in-forward", Remembering, _SEQ, why="self.attention is made in forward"),
    hard("memoised-masks", MemoisedMask, _SEQ, why="a global dict and lru_cache keyed by length"),
    hard("growing-rotary", GrowingRotary, _SEQ, why="a table that grows with the longest input"),
    hard("numpy-in-forward", ThroughNumpy, _X, feeds=_loud, why="x.numpy() and back"),
    hard("forward-hooks", Hooked, _X, why="features kept by hooks"),
    hard("nonlocal-state", Accumulating, _X, why="a closure that writes nonlocal names"),
)
