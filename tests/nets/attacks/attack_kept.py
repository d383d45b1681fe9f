"""Sizes that leave the tracer's sight, state that outlives a run, noise and numbers near zero."""
# mypy: disable-error-code="no-any-return,arg-type"

from __future__ import annotations

from types import SimpleNamespace

import torch
from attack_case import attack, ints
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as in every tutorial

ROWS = {"x": (2, 6, 8)}
IDS = {"ids": ints((2, 6), 0, 49)}


class Dense(nn.Module):
    """A linear layer of 8."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)


@attack("x[batch,seq,_]", family="size as text", sample=ROWS)
class KeyOfSize(Dense):
    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * {"len13": 2.0}.get(f"len{x.shape[1]}", 1.0)


@attack("x[batch,seq,_]", family="size as text", sample=ROWS)
class FormattedSize(Dense):
    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * (2.0 if f"{x.shape[1]:d}" == "13" else 1.0)


@attack("x[batch,seq,_]", family="size as text", sample=ROWS)
class HeadBySize(Dense):
    """A head of its own for one length, found by its name."""

    def __init__(self) -> None:
        super().__init__()
        self.head_17 = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return getattr(self, f"head_{x.shape[1]}", self.linear)(x)


@attack("x[batch,seq,_]", family="size as bytes", sample=ROWS)
class BytesOfRow(Dense):
    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * (2.0 if x.untyped_storage().nbytes() == 4 * 13 * 8 else 1.0)


@attack("ids[batch,seq]{0..49}", family="state", sample=IDS)
class TiedTable(nn.Module):
    """`max_norm` writes into the table, which is the head's weight too."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 16, max_norm=2.0)

    def forward(self, ids: Tensor) -> Tensor:
        return self.table(ids) @ self.table.weight.t()


@attack("ids[batch,seq]{0..49}", family="state", sample=IDS)
class ShortRows(nn.Module):
    """The same table, of which nothing else is read."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 16, max_norm=2.0)
        self.head = nn.Linear(16, 4)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.table(ids).mean(1))


@attack("x[batch,_]", family="state", sample={"x": (3, 8)})
class LargestBatch(Dense):
    """The most rows so far, in an object that torch does not know of."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = SimpleNamespace(most=1)

    def forward(self, x: Tensor) -> Tensor:
        self.kept.most = max(self.kept.most, x.shape[0])
        return self.linear(x) / self.kept.most


@attack("x:float32[batch=1..2,1,32,32]", family="instance norm", good=True)
class InstanceNormUnet(nn.Module):
    """One level of an nnU-Net: on an empty image its norms amplify roundoff."""

    def __init__(self) -> None:
        super().__init__()
        self.down = self._block(1, 8)
        self.deep = self._block(8, 16)
        self.up = nn.ConvTranspose2d(16, 8, 2, 2)
        self.last = nn.Sequential(self._block(16, 8), nn.Conv2d(8, 3, 1))

    @staticmethod
    def _block(width: int, out: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(width, out, 3, padding=1),
            nn.InstanceNorm2d(out, affine=True),
            nn.LeakyReLU(0.01),
        )

    def forward(self, x: Tensor) -> Tensor:
        first = self.down(x)
        return self.last(torch.cat([first, self.up(self.deep(F.max_pool2d(first, 2)))], 1))


@attack("x[batch,seq]", family="near zero", sample={"x": (2, 200)})
class LogMagnitude(nn.Module):
    window: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(64))

    def forward(self, x: Tensor) -> Tensor:
        found = torch.stft(x, 64, 16, window=self.window, return_complex=True)
        return torch.log1p(found.abs())


@attack("x[batch,_,_]", "lengths:int64[batch]", family="lengths",
        sample={"x": (3, 9, 8), "lengths": ints((3,), 1, 9)})  # fmt: skip
class CutRows(Dense):
    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        rows = zip(x, lengths, strict=True)
        return torch.stack([self.linear(row[: int(n)]).amax(0) for row, n in rows])


class Chosen(nn.Module):
    """One of two layers, by what Python counts."""

    def __init__(self) -> None:
        super().__init__()
        self.usual, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

    def is_other(self, x: Tensor) -> bool:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        return (self.other if self.is_other(x) else self.usual)(x)


@attack("x[batch,seq,_]", family="number of pieces", sample={"x": (2, 12, 4)})
class LastChunk(Chosen):
    def is_other(self, x: Tensor) -> bool:
        windows = torch.split(x, 16, 1)
        return len(windows) == 2 and len(windows[-1][0]) == 13


@attack("x[batch,seq,_]", family="number of pieces", sample={"x": (2, 9, 4)})
class LongestRow(Chosen):
    def is_other(self, x: Tensor) -> bool:
        return max(len(row) for row in x) == 29


@attack("x[batch,seq,_]", family="number of pieces", sample={"x": (2, 9, 4)})
class UnboundSteps(Chosen):
    def is_other(self, x: Tensor) -> bool:
        return len(x.unbind(1)) == 29


@attack("x[batch,seq,_]", family="two sizes at once", sample={"x": (2, 9, 4)})
class BytesOfTwo(Chosen):
    def is_other(self, x: Tensor) -> bool:
        return x.untyped_storage().nbytes() == 3 * 29 * 16


@attack("x[batch,seq,_]", family="two sizes at once", sample={"x": (2, 9, 4)})
class CountedRows(Chosen):
    """Rows and steps that Python counts: more ways than are followed."""

    def is_other(self, x: Tensor) -> bool:
        rows, steps = sum(1 for _ in x), len(x.unbind(1))
        return (rows, steps) == (5, 7) or steps == 29


@attack("x[batch,seq,_]", family="halved sizes", sample={"x": (2, 20, 4)})
class Halved(Chosen):
    """How often a size can be halved: another way at 32 and at 64 alone."""

    def is_other(self, x: Tensor) -> bool:
        size, depth = x.shape[1], 0
        while size % 2 == 0:
            size, depth = size // 2, depth + 1
        return depth > 4


@attack("ids:int64[batch,seq]", family="sums of integers",
        sample={"ids": ints((2, 128), 0, 50257)})  # fmt: skip
class HashedRoute(nn.Module):
    """A sum of ids beyond 2^24, which float32 does not hold."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50257, 4)
        self.experts = nn.Parameter(torch.randn(8, 4, 4))

    def forward(self, ids: Tensor) -> Tensor:
        route = ids.sum(1) % 8
        return torch.einsum("bsd,bde->bse", self.table(ids), self.experts[route])


@attack("ids:int64[batch,seq]", family="sums of integers",
        sample={"ids": ints((2, 128), 0, 50257)})  # fmt: skip
class RunningSum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.bins = nn.Embedding(50257, 4), nn.Embedding(16, 4)

    def forward(self, ids: Tensor) -> Tensor:
        return self.table(ids) + self.bins(ids.cumsum(1) % 16)


@attack("z[batch,seq,_,_]", family="complex", sample={"z": (2, 7, 4, 2)})
class TwoPartsGiven(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, z: Tensor) -> Tensor:
        return self.linear(torch.view_as_complex(z).abs())


@attack("x[batch,seq,_]", "lengths[batch]", family="sorted lengths", good=True,
        sample={"x": (3, 9, 5), "lengths": torch.tensor([9, 6, 4])})  # fmt: skip
class SortedLengths(nn.Module):
    """Packed sequences that must come sorted."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.LSTM(5, 6, batch_first=True), nn.Linear(6, 2)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return self.head(self.layer(packed)[1][0][-1])


@attack("ids[batch,seq]", "mask[batch,seq]", family="counted positions", good=True,
        sample={"ids": ints((2, 9), 0, 40), "mask": torch.ones(2, 9).tril(5).long()})  # fmt: skip
class CountedPositions(nn.Module):
    """Positions as RoBERTa counts them, of a short table."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(40, 8), nn.Embedding(24, 8, padding_idx=1)
        self.head = nn.Linear(8, 3)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        places = torch.cumsum(mask, 1) * mask + 1
        return self.head(self.words(ids) + self.places(places))


@attack("x[batch,n]", family="numbers of sizes", good=True, sample={"x": (2, 40)})
class ShareOfRow(nn.Module):
    """As many values as a share of the row: 57 of 100, of which float32 makes 58 with one more."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        return x.topk(int(x.shape[1] * 0.57) + 1, 1)[0] * self.scale


@attack("x[batch,seq,_]", family="numbers of sizes", sample={"x": (2, 20, 8)})
class KeptTokens(nn.Module):
    """The quarter of the tokens that is shortest, as a masked autoencoder keeps them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        keep = int(x.shape[1] * (1 - 0.71))
        order = torch.argsort(x.norm(dim=-1), dim=1)[:, :keep]
        kept = torch.gather(x, 1, order.unsqueeze(-1).repeat(1, 1, x.shape[2]))
        return self.last(F.gelu(self.first(kept)))


@attack("x[batch,_,h,w]", family="numbers of sizes", sample={"x": (2, 3, 40, 44)})
class ShareOfArea(nn.Module):
    """Shares of a product of sizes, behind a stride."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 1, 3, padding=1, stride=2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.conv(x)
        count = int(y.shape[2] * y.shape[3] * 0.29) + 1
        zeros = torch.full((int(y.shape[2] * (2 / 3)) + 1,), 1.5)
        return y.flatten(1).topk(count, 1)[0], zeros


@attack("x[batch=1..2,h=4..60,w=4..60]", family="sizes", sample={"x": (2, 12, 12)})
class ShareOfTwoSizes(nn.Module):
    """A whole number of two sizes, which float32 rounds otherwise at 13 pairs of 3,249."""

    def forward(self, x: Tensor) -> Tensor:
        count = int(x.shape[1] * 0.57 + x.shape[2] * 0.3)
        return x.flatten(1)[:, :count]
