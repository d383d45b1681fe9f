"""Sequences, signals, tables and graphs of ordinary kinds, exported as at first contact."""
# mypy: disable-error-code="no-any-return,no-untyped-call"

from __future__ import annotations

import math

import numpy as np
import torch
from attack_case import attack, ints
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as in every tutorial

X = {"x": (2, 12, 8)}
EDGES = {"x": (6, 8), "edge_index": ints((2, 10), 0, 5)}


@attack("x[batch,seq,8]", family="recurrent", sample=X, good=True)
class GruEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru, self.head = (
            nn.GRU(8, 8, 2, batch_first=True, bidirectional=True),
            nn.Linear(16, 4),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gru(x)[0][:, -1])


@attack("x[batch,seq,8]", "h[1,batch,6]", "c[1,batch,6]", family="recurrent", good=True,
        sample={"x": (2, 5, 8), "h": (1, 2, 6), "c": (1, 2, 6)})  # fmt: skip
class LstmWithState(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 6, batch_first=True)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y, (h, c) = self.lstm(x, (h, c))
        return y, h, c


@attack("x[seq,batch,8]", family="recurrent", sample={"x": (7, 2, 8)}, good=True)
class LstmSeqFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 6, proj_size=4)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0]


@attack("x[batch,seq,8]", family="recurrent", sample=X)
class CellInLoop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(x.shape[0], 6)
        for step in range(x.shape[1]):
            h = self.cell(x[:, step], h)
        return h


@attack("x[batch,seq,8]", family="recurrent", sample=X)
class StateSpaceScan(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.decay, self.inner = nn.Parameter(torch.rand(8)), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        state, out = torch.zeros_like(x[:, 0]), []
        for item in self.inner(x).unbind(1):
            state = state * self.decay.sigmoid() + item
            out.append(state)
        return torch.stack(out, 1)


@attack("ids[batch,seq]", family="text", sample={"ids": ints((2, 8), 0, 49)}, good=True)
class TextCnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 8)
        self.convs = nn.ModuleList(nn.Conv1d(8, 6, k) for k in (2, 3, 4))
        self.head = nn.Linear(18, 3)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids).transpose(1, 2)
        return self.head(torch.cat([F.relu(conv(x)).amax(2) for conv in self.convs], 1))


@attack("ids[batch,seq]", family="text", sample={"ids": ints((2, 8), 0, 49)}, good=True)
class TinyGpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(50, 16), nn.Embedding(32, 16)
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.register_buffer("mask", torch.tril(torch.ones(32, 32)).view(1, 1, 32, 32))
        self.mask: Tensor

    def forward(self, ids: Tensor) -> Tensor:
        b, n = ids.shape
        x = self.embed(ids) + self.places(torch.arange(n))
        q, k, v = (
            part.view(b, n, 2, 8).transpose(1, 2) for part in self.qkv(self.norm(x)).split(16, 2)
        )
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(8)
        scores = scores.masked_fill(self.mask[:, :, :n, :n] == 0, float("-inf"))
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).contiguous().view(b, n, 16))
        return x @ self.embed.weight.T


@attack("ids[batch,seq]", "mask[batch,seq]", family="text", good=True,
        sample={"ids": ints((2, 8), 0, 49), "mask": np.ones((2, 8), np.int64)})  # fmt: skip
class SentenceEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.dense = nn.Embedding(50, 16), nn.Linear(16, 16)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = torch.tanh(self.dense(self.embed(ids)))
        keep = mask[..., None].float()
        pooled = (x * keep).sum(1) / keep.sum(1).clamp(min=1e-9)
        return F.normalize(pooled, p=2, dim=1)


@attack("ids[total]", "offsets[bags]", family="text",
        sample={"ids": ints((9,), 0, 49), "offsets": np.array([0, 4, 7])})  # fmt: skip
class EmbeddingBagMean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(50, 8, mode="mean")

    def forward(self, ids: Tensor, offsets: Tensor) -> Tensor:
        return self.bag(ids, offsets)


@attack("x[batch,seq,8]", family="text", sample=X)
class MixtureOfExperts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 4)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, 8)
        weights, chosen = self.gate(flat).softmax(-1).topk(2)
        out = torch.zeros_like(flat)
        for at, expert in enumerate(self.experts):
            rows, slot = torch.where(chosen == at)
            out.index_add_(0, rows, expert(flat[rows]) * weights[rows, slot, None])
        return out.view_as(x)


@attack("x[batch,seq,8]", family="text", sample=X, good=True)
class LinearAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        context = torch.einsum("bnd,bne->bde", k, v)
        return torch.einsum("bnd,bde->bne", q, context) / (q @ k.sum(1)[..., None] + 1e-6)


@attack("x[batch,samples]", family="audio", sample={"x": (1, 400)}, good=True)
class MelFrontEnd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(64))
        self.mel = nn.Parameter(torch.rand(33, 10))
        self.window: Tensor

    def forward(self, x: Tensor) -> Tensor:
        z = torch.stft(x, 64, 32, window=self.window, center=True, return_complex=True)
        return torch.log(z.abs().pow(2).transpose(1, 2) @ self.mel + 1e-5)


@attack("x[batch,samples]", family="audio", sample={"x": (1, 320)}, good=True)
class WaveEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv1d(1, 8, 10, 5), nn.Conv1d(8, 8, 4, 2)
        self.norm = nn.GroupNorm(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(F.gelu(self.norm(self.a(x[:, None])))).transpose(1, 2)


@attack("mel[batch,10,frames]", family="audio", sample={"mel": (1, 10, 12)}, good=True)
class Vocoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pre, self.up = nn.Conv1d(10, 8, 7, padding=3), nn.ConvTranspose1d(8, 4, 8, 4, 2)
        self.blocks = nn.ModuleList(nn.Conv1d(4, 4, 3, dilation=d, padding=d) for d in (1, 3))
        self.post = nn.Conv1d(4, 1, 7, padding=3)

    def forward(self, mel: Tensor) -> Tensor:
        y = self.up(F.leaky_relu(self.pre(mel), 0.1))
        for block in self.blocks:
            y = y + block(F.leaky_relu(y, 0.1))
        return torch.tanh(self.post(y))[:, 0]


@attack("x[batch,time,8]", family="audio", sample=X, good=True)
class CausalTcn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv1d(8, 8, 3, dilation=2**i) for i in range(3))

    def forward(self, x: Tensor) -> Tensor:
        y = x.transpose(1, 2)
        for at, layer in enumerate(self.layers):
            y = y + F.relu(layer(F.pad(y, (2 * 2**at, 0))))
        return y[..., -1]


@attack("x[batch,time,4]", family="time series", sample={"x": (2, 24, 4)})
class SeasonalTrend(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trend, self.season = nn.Linear(24, 6), nn.Linear(24, 6)

    def forward(self, x: Tensor) -> Tensor:
        y = x.transpose(1, 2)
        slow = F.avg_pool1d(F.pad(y, (2, 2), mode="replicate"), 5, 1)
        return (self.trend(slow) + self.season(y - slow)).transpose(1, 2)


@attack("x[batch,time,4]", family="time series", sample={"x": (2, 24, 4)}, good=True)
class ReversibleNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(4, 8, batch_first=True), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(1, keepdim=True)
        spread = torch.sqrt(x.var(1, keepdim=True, unbiased=False) + 1e-5)
        return self.head(self.gru((x - mean) / spread)[0]) * spread + mean


@attack("x[batch,time,4]", family="time series", sample={"x": (2, 24, 4)})
class PatchedSeries(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = x.transpose(1, 2)
        rest = y.shape[-1] % 8
        y = F.pad(y, (0, 8 - rest)) if rest else y
        return self.inner(y.reshape(y.shape[0], 4, -1, 8)).mean(2)


@attack("x[nodes,8]", "edge_index[2,edges]", family="graph", sample=EDGES, good=True)
class GraphConv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(8, 4)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        source, target = edge_index
        y = self.dense(x)
        degree = torch.ones(x.shape[0]).index_add(0, target, torch.ones(target.shape[0]))
        total = y.index_add(0, target, y[source])
        return total / degree[:, None]


@attack("x[nodes,8]", "edge_index[2,edges]", family="graph", sample=EDGES, good=True)
class GraphAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense, self.a = nn.Linear(8, 4), nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        y = self.dense(x)
        source, target = edge_index[0], edge_index[1]
        score = F.leaky_relu(torch.cat([y[source], y[target]], -1) @ self.a, 0.2)
        top = torch.full((x.shape[0],), -1e9).scatter_reduce(0, target, score, "amax")
        weight = (score - top[target]).exp()
        total = torch.zeros(x.shape[0]).scatter_add(0, target, weight)
        share = weight / total[target]
        return torch.zeros_like(y).index_add(0, target, share[:, None] * y[source])


@attack("x[nodes,8]", "edge_index[2,edges]", "group[nodes]", family="graph",
        sample={**EDGES, "group": np.array([0, 0, 1, 1, 1, 2])})  # fmt: skip
class GraphReadout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(8, 4)

    def forward(self, x: Tensor, edge_index: Tensor, group: Tensor) -> Tensor:
        y = x.index_add(0, edge_index[1], x[edge_index[0]])
        count = int(group.max()) + 1
        return torch.zeros(count, 4).index_add(0, group, self.dense(y).relu())


@attack("x[batch,nodes,8]", "adjacency[batch,nodes,nodes]", family="graph", good=True,
        sample={"x": (2, 5, 8), "adjacency": (2, 5, 5)})  # fmt: skip
class DenseGraph(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(8, 8)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        return F.relu(self.dense(adjacency.sigmoid() @ x)).sum(1)


@attack("numeric[batch,6]", "category[batch,3]", family="table", good=True,
        sample={"numeric": (4, 6), "category": ints((4, 3), 0, 9)})  # fmt: skip
class TabularNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embeds = nn.ModuleList(nn.Embedding(10, 4) for _ in range(3))
        self.net = nn.Sequential(nn.BatchNorm1d(18), nn.Linear(18, 16), nn.SELU(), nn.Linear(16, 1))

    def forward(self, numeric: Tensor, category: Tensor) -> Tensor:
        parts = [embed(category[:, at]) for at, embed in enumerate(self.embeds)]
        return self.net(torch.cat([numeric, *parts], 1))[:, 0]


@attack("x[batch,8]", family="table", sample={"x": (4, 8)}, good=True)
class FactorizationMachine(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line, self.v = nn.Linear(8, 1), nn.Parameter(torch.randn(8, 4))

    def forward(self, x: Tensor) -> Tensor:
        pairs = (x @ self.v).pow(2) - x.pow(2) @ self.v.pow(2)
        return (self.line(x) + 0.5 * pairs.sum(1, keepdim=True)).sigmoid()


@attack("user[batch]", "item[batch,candidates]", family="table", good=True,
        sample={"user": ints((3,), 0, 19), "item": ints((3, 5), 0, 29)})  # fmt: skip
class TwoTowers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(20, 8), nn.Embedding(30, 8)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        return torch.einsum("bd,bcd->bc", self.users(user), self.items(item))


@attack("x[batch,8]", family="table", sample={"x": (4, 8)}, good=True)
class PolicyAndValue(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.Tanh())
        self.policy, self.value = nn.Linear(16, 4), nn.Linear(16, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.body(x)
        return self.policy(y).log_softmax(-1), self.value(y)


@attack("x[batch,8]", family="table", sample={"x": (4, 8)}, good=True,
        options={"method": "encode"})  # fmt: skip
class AutoencoderMethod(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(8, 3), nn.Linear(3, 8)

    def encode(self, x: Tensor) -> Tensor:
        return self.down(x).tanh()

    def forward(self, x: Tensor) -> Tensor:
        return self.up(self.encode(x))


# --- lower precision: tensors of two kinds, channels that die --------------------------------


@attack("x[batch,3,16,16]", family="int8", sample={"x": (1, 3, 16, 16)}, calib=40,
        targets=("onnx:int8", "openvino:int8"))  # fmt: skip
class BoxesAndScores(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 16, 3, 2, 1))
        self.box, self.score = nn.Conv2d(16, 4, 1), nn.Conv2d(16, 10, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x).relu()
        boxes = (self.box(y).tanh() + 1) * 320
        return torch.cat([boxes.flatten(2), (self.score(y) * 3).sigmoid().flatten(2)], 1)


@attack("x[batch,8]", family="int8", sample={"x": (1, 8)}, calib=40,
        targets=("onnx:int8", "openvino:int8"))  # fmt: skip
class QuietChannel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 32), nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        y = self.b(self.a(x).relu())
        return y * torch.tensor([1.0, 1.0, 1.0, 100.0, 100.0, 1e-3])


@attack("x[batch,3,_,_]", family="int8", sample={"x": (1, 3, 16, 16)}, calib=40,
        targets=("onnx:int8", "openvino:int8"), good=True)  # fmt: skip
class PlainInt8(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, 2, 1),
            nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


@attack("x[batch,3,16,16]", family="fp16", sample={"x": (1, 3, 16, 16)},
        targets=("onnx:fp16", "openvino:fp16"))  # fmt: skip
class HalfBoxesAndScores(BoxesAndScores):
    """The same in half precision."""
