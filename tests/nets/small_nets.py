"""Small nets with the layers people use, each choice an attribute: a fault is one of them changed.

Every forward reads its choices (epsilon, axis, mode, padding, ...) when it runs, so that an altered
copy is the same net but for one choice, in float32, in float64 and when it is exported.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Perceptron(nn.Module):
    """LayerNorm, two linear layers with GELU, a residual."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, eps=1e-5)
        self.up = nn.Linear(width, 2 * width)
        self.square = nn.Linear(2 * width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.gelu, self.residual, self.clamp, self.scale = "none", 1.0, 0.0, 1.0

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, width) to the same."""
        inner = functional.gelu(self.up(self.norm(x)), approximate=self.gelu)
        if self.clamp:
            inner = inner.clamp(max=self.clamp)
        inner = functional.gelu(self.square(inner), approximate=self.gelu) * self.scale
        out: Tensor = self.down(inner)
        return out + x * self.residual if self.residual else out


class Attention(nn.Module):
    """Embeddings with positions, one masked attention layer, a feed-forward one, two outputs."""

    positions: Tensor

    def __init__(self, width: int = 32, heads: int = 4, *, vocab: int = 100) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocab, width), nn.Embedding(32, width)
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.norm, self.last = nn.LayerNorm(width, eps=1e-5), nn.LayerNorm(width, eps=1e-12)
        self.feed = nn.Sequential(nn.Linear(width, 64), nn.SiLU(), nn.Linear(64, width))
        self.heads, self.axis, self.residual, self.masking, self.token = heads, -1, 1.0, True, 0
        self.offset, self.temper, self.swap = 0, 1.0, False
        self.register_buffer("positions", torch.arange(32)[None], persistent=False)

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Map ids and mask (batch, seq) to hidden (batch, seq, width) and one token's."""
        start = self.offset
        x = self.norm(
            self.words(ids) + self.places(self.positions[:, start : ids.shape[1] + start])
        )
        query, key, value = (self._split(part(x)) for part in (self.query, self.key, self.value))
        scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5) * self.temper
        if self.masking:
            scores = scores.masked_fill((mask == 0)[:, None, None, :], -1e4)
        mixed = (scores.softmax(dim=self.axis) @ value).transpose(1, 2).flatten(2)
        x = self.out(mixed) + x * self.residual
        x = self.last(x + self.feed(x))
        first, second = x, x[:, self.token]
        return (first, second) if not self.swap else (first.flip(-1), second)

    def _split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)


class Convolutions(nn.Module):
    """Convolutions with BatchNorm and ReLU6, a depthwise one, pooling, a classifier."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.depth = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.point = nn.Conv2d(width, width, 1)
        self.group = nn.GroupNorm(4, width, eps=1e-5)
        self.classify = nn.Linear(width, 10)
        self.pad_mode, self.most, self.slope, self.residual = "constant", 6.0, 0.0, 1.0
        self.count_pad, self.ceil = True, False

    def forward(self, image: Tensor) -> Tensor:
        """Map (batch, 3, h, w) to logits (batch, 10)."""
        x = self.norm(self.first(image))
        x = functional.leaky_relu(x, self.slope) if self.slope else x.relu()
        x = x.clamp(max=self.most)
        inner = functional.pad(x, (1, 1, 1, 1), mode=self.pad_mode)
        inner = functional.conv2d(
            inner, self.depth.weight, self.depth.bias, groups=self.depth.groups
        )
        x = self.group(self.point(inner) + x * self.residual)
        x = functional.avg_pool2d(x, 3, 2, 1, self.ceil, self.count_pad)
        logits: Tensor = self.classify(functional.silu(x).mean((2, 3)))
        return logits


class Upsampling(nn.Module):
    """An hourglass: down, up by interpolation, joined with what came in."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, width, 3, stride=2, padding=1)
        self.inner = nn.Conv2d(width, width, 3, padding=1)
        self.turn = nn.ConvTranspose2d(width, width, 2, stride=2)
        self.join = nn.Conv2d(width + 3, 4, 3, padding=1)
        self.mode, self.align, self.flip = "bilinear", False, False

    def forward(self, image: Tensor) -> Tensor:
        """Map (batch, 3, h, w) to a map (batch, 4, h, w)."""
        x = torch.tanh(self.inner(functional.max_pool2d(self.turn(self.down(image)).relu(), 2)))
        align = None if self.mode == "nearest" else self.align
        x = functional.interpolate(x, scale_factor=2.0, mode=self.mode, align_corners=align)
        joined = torch.cat([image, x] if self.flip else [x, image], dim=1)
        out: Tensor = self.join(joined)
        return out


class Recurrent(nn.Module):
    """Embedding, LSTM or GRU in both directions, a linear layer for each token."""

    def __init__(self, width: int = 24, *, gated: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(200, width)
        kind = nn.GRU if gated else nn.LSTM
        self.cells: nn.Module = kind(width, width, batch_first=True, bidirectional=True)
        self.tag = nn.Linear(2 * width, 7)
        self.shift, self.reverse = 0, False

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens (batch, seq) to scores (batch, seq, 7)."""
        states, _ = self.cells(self.embed(tokens))
        scores: Tensor = self.tag(states)
        return scores.roll(self.shift, dims=-1) if self.shift else scores


class Pointing(nn.Module):
    """Scores, their two largest with their places, and a class: floats and integers together."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.body = nn.Linear(width, 32)
        self.score = nn.Linear(32, 8)
        self.more, self.swap, self.power = 0, False, 2.0

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Map (batch, width) to probabilities, energies (both (batch, 8)) and a class (batch,)."""
        scores = self.score(torch.tanh(self.body(x)))
        chances = scores.softmax(-1)
        energy = scores.abs().pow(self.power)
        best = scores.argmax(-1) + self.more
        return (energy, chances, best) if self.swap else (chances, energy, best)


class Waves(nn.Module):
    """Dilated convolutions over a signal with a gate, instance norm and weight norm's shape."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, width, 5, padding=2)
        self.gate = nn.Conv1d(width, 2 * width, 3, padding=2, dilation=2)
        self.norm = nn.InstanceNorm1d(width, affine=True, eps=1e-3)
        self.last = nn.Conv1d(width, 3, 1)
        self.alpha, self.beta, self.level = 1.0, 1.0, 0.0

    def forward(self, sound: Tensor) -> Tensor:
        """Map (batch, 1, time) to (batch, 3, time); `level` is its own unless it is given."""
        loudest = sound.abs().amax((1, 2), keepdim=True)
        sound = sound / ((self.level or loudest) + 1e-3)
        x = functional.elu(self.first(sound), alpha=self.alpha)
        left, right = self.gate(x).chunk(2, dim=1)
        x = x + torch.tanh(left) * torch.sigmoid(right)
        out: Tensor = self.last(functional.softplus(self.norm(x), beta=self.beta))
        return out


class Numerics(nn.Module):
    """Sums, exponentials and angles, where float32 itself is far from exact: good conversions."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.body = nn.Linear(width, width)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Map (batch, width) to six outputs that cancel, grow, wrap around or stay exact."""
        y = self.body(x)
        far = y + 1000
        spread = far.var(-1) + (far - far.mean(-1, keepdim=True)).abs().mean(-1)
        angles = torch.sin(y * 300) + torch.cos(y * y * 40)
        return (
            y.log_softmax(-1),
            y.logsumexp(-1) - y.amax(-1),
            spread,
            torch.cumsum(y, -1),
            angles,
            torch.exp(y * 4) + torch.erf(y) + torch.tanh(y * 1e-3),
            torch.cat([x.relu(), -x.flip(-1)], -1),
        )


class Branching(nn.Module):
    """Another head where a statistic of the input is above a threshold: a trace sees one head."""

    def __init__(self, width: int = 16, *, above: float = 0.0, peak: bool = False) -> None:
        super().__init__()
        self.body = nn.Linear(width, 24)
        self.left, self.right = nn.Linear(24, 4), nn.Linear(24, 4)
        self.above, self.peak = above, peak

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, width) to (batch, 4); the whole batch takes one head."""
        inner = torch.tanh(self.body(x))
        asked = x.max() if self.peak else x.mean()
        if asked > self.above:
            out: Tensor = self.left(inner)
        else:
            out = self.right(inner)
        return out
