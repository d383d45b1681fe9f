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
