"""Plain PyTorch nets for coverage.py: graphs, point sets, rays and tables of categories."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from modelc.tests.nets.cases import Case


class DenseGcn(nn.Module):
    """Two graph convolutions on a dense adjacency, normalised by degrees."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 12), nn.Linear(12, 4)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        """Map nodes (batch, n, 8) and adjacency (batch, n, n) to (batch, n, 4)."""
        linked = adjacency + torch.eye(adjacency.size(-1))
        degree = linked.sum(dim=-1).clamp(min=1e-6).rsqrt()
        linked = degree.unsqueeze(-1) * linked * degree.unsqueeze(-2)
        hidden = torch.relu(linked @ self.first(x))
        return functional.log_softmax(linked @ self.second(hidden), dim=-1)


class MessagePassing(nn.Module):
    """Messages along an edge list, added up by index_add; means over each graph by scatter."""

    def __init__(self, rounds: int = 2) -> None:
        super().__init__()
        self.messages = nn.ModuleList(nn.Linear(8 + 8 + 3, 8) for _ in range(rounds))
        self.update, self.out = nn.GRUCell(8, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor, edges: Tensor, features: Tensor, graph: Tensor) -> Tensor:
        """Map nodes (n, 8), edges (2, e), their features (e, 3), graph (n,) below 3 to (3, 2)."""
        source, target = edges
        for message in self.messages:
            sent = torch.relu(message(torch.cat([x[source], x[target], features], dim=-1)))
            got = torch.zeros_like(x).index_add(0, target, sent)
            x = self.update(got, x)
        total = x.new_zeros(3, 8).scatter_add(0, graph[:, None].expand_as(x), x)
        count = torch.bincount(graph, minlength=3).clamp(min=1)
        out: Tensor = self.out(total / count[:, None])
        return out


class GraphAttention(nn.Module):
    """Attention over an edge list: a softmax by target, with scatter_reduce for its maximum."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.score = nn.Linear(8, 8, bias=False), nn.Linear(16, 1, bias=False)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        """Map nodes (n, 8) and edges (2, e) to (n, 8)."""
        y, nodes = self.project(x), x.size(0)
        source, target = edges[0], edges[1]
        pairs = torch.cat([y[source], y[target]], dim=-1)
        scores = functional.leaky_relu(self.score(pairs).squeeze(-1), 0.2)
        most = torch.full((nodes,), -1e9).scatter_reduce(0, target, scores, reduce="amax")
        raised = torch.exp(scores - most[target])
        share = raised / torch.zeros(nodes).scatter_add(0, target, raised)[target]
        return functional.elu(torch.zeros_like(y).index_add(0, target, share[:, None] * y[source]))


class PointNet(nn.Module):
    """Shared layers over points, a learnt turn of them, a maximum over the set."""

    def __init__(self) -> None:
        super().__init__()
        self.turn, self.share = (
            nn.Linear(3, 9),
            nn.Sequential(nn.Conv1d(3, 16, 1), nn.BatchNorm1d(16)),
        )
        self.wide, self.out = nn.Conv1d(16, 32, 1), nn.Linear(32, 4)

    def forward(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Map (batch, n, 3) to logits (batch, 4) and the turn (batch, 3, 3)."""
        turn = self.turn(points.mean(dim=1)).view(-1, 3, 3) + torch.eye(3)
        x = torch.relu(self.share(torch.bmm(points, turn).transpose(2, 1)))
        most = torch.max(self.wide(x), 2, keepdim=True)[0].view(-1, 32)
        return self.out(most), turn


class DeepSets(nn.Module):
    """A masked mean and maximum of a set, the largest of which may be padding."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(5, 12), nn.Linear(24, 3)

    def forward(self, items: Tensor, mask: Tensor) -> Tensor:
        """Map items (batch, n, 5) and mask (batch, n) of 0 and 1 to (batch, 3)."""
        y = functional.softplus(self.inner(items))
        known = mask.unsqueeze(-1).to(y.dtype)
        mean = (y * known).sum(1) / known.sum(1).clamp_min(1.0)
        most = y.masked_fill(known == 0, -1e4).max(dim=1).values
        out: Tensor = self.outer(torch.cat([mean, most], dim=-1))
        return out


class NerfMlp(nn.Module):
    """Rays to colours: points along each, sinusoids of them, a skip, densities composited."""

    def __init__(self, powers: int = 4) -> None:
        super().__init__()
        wide = 3 + 6 * powers
        self.powers, self.first, self.again = powers, nn.Linear(wide, 32), nn.Linear(32 + wide, 32)
        self.density, self.colour = nn.Linear(32, 1), nn.Linear(32 + 3, 3)

    def _waves(self, x: Tensor) -> Tensor:
        parts = [x]
        for power in range(self.powers):
            parts += [torch.sin(2.0**power * math.pi * x), torch.cos(2.0**power * math.pi * x)]
        return torch.cat(parts, dim=-1)

    def forward(self, origin: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
        """Map (rays, 3) twice to colours (rays, 3) and depths (rays,)."""
        along = torch.linspace(0.5, 2.0, 12)
        unit = functional.normalize(direction, dim=-1)
        waves = self._waves(origin[:, None] + unit[:, None] * along[:, None])
        x = torch.relu(self.again(torch.cat([torch.relu(self.first(waves)), waves], dim=-1)))
        opaque = 1 - torch.exp(-functional.softplus(self.density(x)).squeeze(-1) * 0.125)
        clear = torch.cumprod(torch.cat([torch.ones_like(opaque[:, :1]), 1 - opaque], -1), -1)[
            :, :-1
        ]
        seen = torch.cat([x, unit[:, None].expand(-1, 12, -1)], dim=-1)
        weight = opaque * clear
        return (weight[..., None] * torch.sigmoid(self.colour(seen))).sum(1), (weight * along).sum(
            1
        )


class Dlrm(nn.Module):
    """Embedding bags of categories by offsets, dense features, all pairs' products."""

    pairs: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(30, 8, mode="sum") for _ in range(3))
        self.dense = nn.Sequential(nn.Linear(5, 8), nn.ReLU())
        self.top = nn.Linear(8 + 6, 1)
        self.register_buffer("pairs", torch.tril_indices(4, 4, offset=-1), persistent=False)

    def forward(self, dense: Tensor, categories: Tensor) -> Tensor:
        """Map dense (batch, 5) and categories (batch, 3, 2) to chances (batch, 1)."""
        parts = [self.dense(dense)]
        for index, bag in enumerate(self.bags):
            flat = categories[:, index].reshape(-1)
            offsets = torch.arange(0, flat.shape[0], categories.shape[2])
            parts.append(bag(flat, offsets))
        joined = torch.stack(parts, dim=1)
        products = torch.bmm(joined, joined.transpose(1, 2))
        flat_pairs = products[:, self.pairs[0], self.pairs[1]]
        return torch.sigmoid(self.top(torch.cat([parts[0], flat_pairs], dim=1)))


def _case(name: str, build: type[nn.Module], *inputs: str) -> Case:
    return Case(name=name, family="graph", build=build, inputs=inputs)


_NODES, _EDGES = "x:float32[n=4..12,8]", "edges:int64[2,e=1..20]{0..3}"
CASES: tuple[Case, ...] = (
    _case(
        "gcn-dense", DenseGcn, "x:float32[batch=1..4,n=2..9,8]",
        "adjacency:float32[batch,n,n]{0..1}",
    ),
    _case(
        "message-passing", MessagePassing, _NODES, _EDGES, "features:float32[e,3]",
        "graph:int64[n]{0..2}",
    ),
    _case("graph-attention", GraphAttention, _NODES, _EDGES),
    _case("pointnet", PointNet, "points:float32[batch=1..4,n=4..40,3]"),
    _case("deep-sets", DeepSets, "items:float32[batch=1..4,n=1..9,5]", "mask:int64[batch,n]{0..1}"),
    _case("nerf-mlp", NerfMlp, "origin:float32[rays=1..20,3]", "direction:float32[rays,3]"),
    _case(
        "dlrm", Dlrm, "dense:float32[batch=1..8,5]", "categories:int64[batch,3,2]{0..29}"
    ),
)  # fmt: skip
