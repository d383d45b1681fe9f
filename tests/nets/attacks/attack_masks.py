"""Masks and padding: the stock transformer, attention by hand, rows with nothing to attend to."""
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import numpy as np
import torch
from attack_case import attack, ints
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as in every tutorial

PADDED = np.array([[False] * 6, [False] * 4 + [True] * 2])
TOKENS = {"ids": ints((2, 6), 1, 39), "mask": np.array([[1] * 6, [1, 1, 1, 1, 0, 0]])}
X = {"x": (2, 6, 16)}


def layer(*, norm_first: bool = False) -> nn.TransformerEncoderLayer:
    """A small layer, as stock as it gets."""
    return nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=norm_first)


@attack("x[batch,seq,16]", "pad[batch,seq]", family="stock transformer", good=True,
        sample={**X, "pad": PADDED})  # fmt: skip
class StockPadded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoder(layer(), 2)

    def forward(self, x: Tensor, pad: Tensor) -> Tensor:
        return self.encoder(x, src_key_padding_mask=pad)


@attack("x[batch,seq,16]", "pad[batch,seq]", family="stock transformer",
        sample={**X, "pad": PADDED})  # fmt: skip
class StockPaddedMean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoder(layer(), 2, enable_nested_tensor=False)

    def forward(self, x: Tensor, pad: Tensor) -> Tensor:
        y = self.encoder(x, src_key_padding_mask=pad)
        keep = (~pad).float()[..., None]
        return (y * keep).sum(1) / keep.sum(1).clamp(min=1)


@attack("x[batch,seq,16]", family="stock transformer", sample=X, good=True)
class StockCausal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoder(layer(norm_first=True), 2)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.encoder(x, mask=mask, is_causal=True)


@attack("ids[batch,seq]", "mask[batch,seq]", family="stock transformer", sample=TOKENS,
        good=True)  # fmt: skip
class StockClassifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.encoder = nn.Embedding(40, 16), nn.TransformerEncoder(layer(), 1)
        self.head = nn.Linear(16, 3)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        y = self.encoder(self.embed(ids), src_key_padding_mask=mask == 0)
        return self.head(y[:, 0])


@attack("source[batch,seq,16]", "target[batch,steps,16]", family="stock transformer", good=True,
        sample={"source": (2, 7, 16), "target": (2, 4, 16)})  # fmt: skip
class StockSeq2Seq(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Transformer(16, 2, 1, 1, 32, batch_first=True)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = torch.full((target.shape[1], target.shape[1]), float("-inf")).triu(1)
        return self.net(source, target, tgt_mask=mask)


@attack("x[batch,seq,16]", "pad[batch,seq]", family="attention mask",
        sample={**X, "pad": PADDED})  # fmt: skip
class MhaPadded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x: Tensor, pad: Tensor) -> tuple[Tensor, Tensor]:
        y, weights = self.attention(x, x, x, key_padding_mask=pad)
        return y, weights


@attack("x[batch,seq,16]", family="attention mask", sample=X)
class MhaBanded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        at = torch.arange(x.shape[1])
        far = (at[None] - at[:, None]).abs() > 2
        return self.attention(x, x, x, attn_mask=far, need_weights=False)[0]


class Heads(nn.Module):
    """Queries, keys and values of two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Heads apart."""
        q, k, v = self.qkv(x).view(x.shape[0], x.shape[1], 3, 2, 8).permute(2, 0, 3, 1, 4)
        return q, k, v


@attack("x[batch,seq,16]", "mask[batch,seq]", family="attention mask",
        sample={**X, "mask": TOKENS["mask"]})  # fmt: skip
class SdpaBool(Heads):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.split(x)
        allowed = (mask > 0)[:, None, None]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed).transpose(1, 2).flatten(2)


@attack("x[batch,seq,16]", "mask[batch,seq]", family="attention mask",
        sample={**X, "mask": TOKENS["mask"]})  # fmt: skip
class AllMaskedSoftmax(Heads):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.split(x)
        scores = q @ k.transpose(-1, -2)
        scores = scores.masked_fill(mask[:, None, None] == 0, float("-inf"))
        return (scores.softmax(-1) @ v).sum(2)


@attack("x[batch,seq,16]", "mask[batch,seq]", family="attention mask",
        sample={**X, "mask": TOKENS["mask"]})  # fmt: skip
class AllMaskedToZero(Heads):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.split(x)
        scores = (q @ k.transpose(-1, -2)).masked_fill(mask[:, None, None] == 0, float("-inf"))
        return (torch.nan_to_num(scores.softmax(-1)) @ v).sum(2)


@attack("x[batch,seq,16]", "mask[batch,seq]", family="attention mask", good=True,
        sample={**X, "mask": TOKENS["mask"]})  # fmt: skip
class AdditiveMask(Heads):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.split(x)
        bias = (1.0 - mask[:, None, None].float()) * torch.finfo(torch.float32).min
        return ((q @ k.transpose(-1, -2) + bias).softmax(-1) @ v).transpose(1, 2).flatten(2)


@attack("x[batch,seq,16]", family="attention mask", sample=X)
class CausalSdpa(Heads):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=x.shape[1] > 1)
        return y.transpose(1, 2).flatten(2)


@attack("x[batch,seq,16]", family="attention mask", sample=X)
class GroupedQueries(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv = nn.Linear(16, 32), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q = self.q(x).view(b, n, 4, 8).transpose(1, 2)
        k, v = self.kv(x).view(b, n, 2, 1, 8).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return y.transpose(1, 2).flatten(2)


@attack("x[batch,seq,16]", "lengths[batch]", family="attention mask",
        sample={**X, "lengths": np.array([6, 3])})  # fmt: skip
class PackedLstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(16, 8, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(
            x, lengths, batch_first=True, enforce_sorted=False
        )
        _, (h, _) = self.lstm(packed)
        return torch.cat([h[0], h[1]], -1)


@attack("ids[batch,seq]", family="attention mask", sample={"ids": ints((2, 6), 0, 39)})
class PadTokenMask(Heads):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 16, padding_idx=0)

    def forward(self, ids: Tensor) -> Tensor:
        q, k, v = self.split(self.embed(ids))
        scores = (q @ k.transpose(-1, -2)).masked_fill((ids == 0)[:, None, None], -1e4)
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


@attack("x[batch,seq,16]", "pad[batch,seq]", family="attention mask",
        sample={**X, "pad": PADDED})  # fmt: skip
class MaxOverUnpadded(nn.Module):
    def forward(self, x: Tensor, pad: Tensor) -> Tensor:
        return x.masked_fill(pad[..., None], float("-inf")).amax(1)


@attack("x[batch,seq,16]", family="attention mask", sample=X, good=True)
class GlobalToken(Heads):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 16))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(x.shape[0], 1, 16), x], 1)
        q, k, v = self.split(x)
        return F.scaled_dot_product_attention(q, k, v)[:, :, 0].flatten(1)


@attack("x[batch,seq,16]", family="attention mask", sample={"x": (2, 8, 16)})
class LocalBlocks(Heads):
    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        y = x.reshape(b * (n // 4), 4, 16)
        q, k, v = self.split(y)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, 16)
