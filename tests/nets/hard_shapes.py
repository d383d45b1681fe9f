"""Hard cases: sizes in Python. Loops over a dim, reshapes with -1, grids and positions by size."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from modelc.tests.nets.case_helpers import hard
from modelc.tests.nets.cases import Case


class LoopOverTime(nn.Module):
    """A hand-written recurrent cell: a Python loop over the sequence dim."""

    def __init__(self) -> None:
        super().__init__()
        self.given, self.kept = nn.Linear(8, 12), nn.Linear(12, 12)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, seq, 8) to states (batch, seq, 12)."""
        state = torch.zeros(x.size(0), 12)
        states = []
        for step in range(x.size(1)):
            state = torch.tanh(self.given(x[:, step]) + self.kept(state))
            states.append(state)
        return torch.stack(states, dim=1)


class IterateRows(nn.Module):
    """Iterates over a tensor itself, and unbinds another."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        """Map (seq, batch, 8) to the same, each row made of all before it."""
        total = torch.zeros_like(x[0])
        rows = []
        for row in x:
            total = 0.5 * total + self.body(row)
            rows.append(total)
        first, *_ = x.unbind(0)
        return torch.stack(rows) + first


class Reshapes(nn.Module):
    """What einops does, by hand: views with -1, products of sizes, permutes, flattening."""

    def __init__(self, heads: int = 4) -> None:
        super().__init__()
        self.project, self.heads, self.out = nn.Linear(16, 48), heads, nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 16, h, w) to the same: attention over all places."""
        batch, width, height, wide = x.size()
        rows = x.permute(0, 2, 3, 1).reshape(-1, width)
        parts = self.project(rows).view(batch, height * wide, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        scores = torch.einsum("bhqd,bhkd->bhqk", query, key) / math.sqrt(query.size(-1))
        mixed = torch.einsum("bhqk,bhkd->bqhd", scores.softmax(-1), value).reshape(batch, -1, width)
        out: Tensor = self.out(mixed).transpose(1, 2).reshape(-1, width, height, wide)
        return out


class Einsums(nn.Module):
    """einsum with an ellipsis, a diagonal, an outer product and a bilinear form."""

    def __init__(self) -> None:
        super().__init__()
        self.form = nn.Parameter(torch.randn(3, 8, 8) * 0.3)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        """Map (batch, n, 8) and (batch, m, 8) to four contractions."""
        scores = torch.einsum("bid,kde,bje->bkij", x, self.form, y)
        square = torch.einsum("...id,...jd->...ij", x, x)
        return (
            scores,
            torch.einsum("bii->bi", square),
            torch.einsum("bid,bjd->d", x, y),
            torch.einsum("bi,bj->bij", x[..., 0], y[..., 1]),
        )


class Grids(nn.Module):
    """meshgrid, linspace and arange of dynamic sizes: coordinates beside the features."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(5, 6, 3, padding=1)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Map (batch, 3, h, w) to (batch, 6, h, w) and anchors' centres (h * w, 2)."""
        batch, _, height, width = image.shape
        down, right = torch.meshgrid(
            torch.linspace(-1, 1, height), torch.linspace(-1, 1, width), indexing="ij"
        )
        places = torch.stack([right, down]).expand(batch, -1, -1, -1)
        rows = torch.arange(0, height, dtype=torch.float32) + 0.5
        columns = torch.arange(width, dtype=torch.float32) + 0.5
        centres = torch.cartesian_prod(rows / height, columns / width)
        return self.body(torch.cat([image, places], dim=1)), centres


class SinusoidPlaces(nn.Module):
    """Sinusoids, relative distances in buckets and a causal mask, all of the length."""

    def __init__(self) -> None:
        super().__init__()
        self.bias, self.body = nn.Embedding(9, 1), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, seq, 16) to the same."""
        seq = x.shape[1]
        places = torch.arange(seq, device=x.device)
        rates = torch.exp(torch.arange(0, 16, 2) * (-math.log(10000.0) / 16))
        table = torch.zeros(seq, 16)
        table[:, 0::2] = torch.sin(places[:, None] * rates)
        table[:, 1::2] = torch.cos(places[:, None] * rates)
        y: Tensor = self.body(x + table)
        near = (places[None, :] - places[:, None]).clamp(-4, 4) + 4
        scores: Tensor = y @ y.mT / 4.0 + self.bias(near).squeeze(-1)
        mask = torch.triu(torch.ones(seq, seq, dtype=torch.bool), diagonal=1)
        return scores.masked_fill(mask, float("-inf")).softmax(dim=-1) @ y


class SizedNorms(nn.Module):
    """layer_norm over dynamic dims, a mean by a Python size, a softmax scaled by log of one."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Map (batch, 3, h, w) to (batch, 4, h, w) and (batch, 4)."""
        y = self.body(image)
        normed = functional.layer_norm(y, y.shape[1:], eps=1e-5)
        pixels = y.shape[2] * y.shape[3]
        return normed, normed.flatten(2).logsumexp(-1) / math.log(pixels + 1) + y.sum(
            (2, 3)
        ) / pixels


class Slices(nn.Module):
    """Negative indices, steps, halves by //, flips, rolls by a size, split with a rest."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Map (batch, seq, 8) to five pieces of it."""
        y = self.body(x)
        half = y.shape[1] // 2
        rolled = torch.roll(y, shifts=(half, -1), dims=(1, 2))
        left, right = y.split([half, y.shape[1] - half], dim=1)
        return (
            y[:, -3:-1],
            y.flip(1)[:, ::2],
            rolled,
            torch.cat([right, left], dim=1)[:, 1::3],
            y[:, half:] - y[:, -1:],
        )


class Cumulative(nn.Module):
    """cumsum, cumprod, cummax, logcumsumexp and differences."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Map (batch, seq, 8) to five (batch, seq, 8), one of them a row shorter."""
        y = torch.sigmoid(self.body(x))
        through = torch.cumprod(1 - 0.5 * y, dim=1)
        most, where = torch.cummax(y, dim=1)
        return torch.cumsum(y, dim=1), through, most, where, torch.diff(y, dim=1)


class LogCumulative(nn.Module):
    """logcumsumexp, trapezoids and a sum of squared differences: operators without ONNX names."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Map (batch, seq, 8) to sums of logs, areas (batch, 8), distances (batch, seq, seq)."""
        y = self.body(x)
        return torch.logcumsumexp(y, dim=1), torch.trapezoid(y, dim=1), torch.cdist(y, y)


class GatherDynamic(nn.Module):
    """The last valid step of each row, gathered at lengths - 1 along a dynamic dim."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.out = nn.GRU(8, 12, batch_first=True), nn.Linear(12, 4)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Map (batch, seq, 8) and lengths (batch,) to (batch, 4)."""
        states, _ = self.rnn(x)
        places = (lengths - 1).view(-1, 1, 1).expand(-1, 1, states.size(-1))
        out: Tensor = self.out(states.gather(1, places).squeeze(1))
        return out


class SizeBranch(nn.Module):
    """Branches on sizes: one row or several, short or long, odd or even."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, seq, 8) to (batch, half of seq, rounded up, 8)."""
        y: Tensor = self.body(x)
        if y.shape[1] % 2 == 1:
            y = torch.cat([y, y[:, -1:]], dim=1)
        paired = y.view(y.shape[0], -1, 2, 8).mean(dim=2)
        if x.shape[0] > 1:
            paired = paired - paired.mean(dim=0, keepdim=True)
        return paired


_SEQ, _SHORT = "x:float32[batch=1..4,seq=4..16,8]", "x:float32[batch=1..4,seq=1..12,8]"
_IMAGE = "image:float32[batch=1..4,3,h=5..20,w=5..20]"
CASES: tuple[Case, ...] = (
    hard("loop-over-sequence", LoopOverTime, _SHORT, why="range(x.size(1))"),
    hard("iterate-over-tensor", IterateRows, "x:float32[seq=1..12,batch=1..4,8]", why="for r in x"),
    hard("einops-like", Reshapes, "x:float32[batch=1..4,16,h=2..9,w=2..9]", why="-1 and products"),
    hard("einsum", Einsums, "x:float32[batch=1..4,n=1..7,8]", "y:float32[batch,m=1..7,8]",
         why="an ellipsis, a diagonal, a bilinear form"),
    hard("grids-by-size", Grids, _IMAGE, why="meshgrid, linspace, cartesian_prod of sizes"),
    hard("positions-by-size", SinusoidPlaces, "x:float32[batch=1..4,seq=1..24,16]",
         why="arange, triu and writes into a table of the length"),
    hard("norms-by-size", SizedNorms, _IMAGE, why="layer_norm over y.shape[1:], log of a size"),
    hard("slices", Slices, _SEQ, why="negative, stepped, halved, rolled by a size"),
    hard("cumulative", Cumulative, _SEQ, why="cumprod, cummax, diff"),
    hard("rare-operators", LogCumulative, _SEQ, why="logcumsumexp, trapezoid, cdist"),
    hard("gather-last-step", GatherDynamic, _SEQ, "lengths:int64[batch]{1..4}", why="rows' ends"),
    hard("branch-on-size", SizeBranch, _SHORT, why="an odd length is padded, one row is special"),
)  # fmt: skip
