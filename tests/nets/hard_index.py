"""Hard cases: indices, sorts and selections, many of whose results have a size made of data."""

# Thresholds stand in the models as their authors write them.

from __future__ import annotations

import torch
from torch import Tensor, nn

from modelc.tests.nets.case_helpers import Feeds, given, hard, normal, whole
from modelc.tests.nets.cases import Case


class ScatterMean(nn.Module):
    """scatter_add, scatter_reduce and index_put with accumulation, by an input's indices."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 8)

    def forward(self, x: Tensor, group: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Map (n, 8) in groups (n,) below 5 to three (5, 8): means, maxima, sums."""
        y = self.body(x)
        index = group[:, None].expand(-1, 8)
        count = torch.zeros(5).scatter_add_(0, group, torch.ones_like(group, dtype=torch.float32))
        total = torch.zeros(5, 8).scatter_add_(0, index, y)
        most = torch.zeros(5, 8).scatter_reduce_(0, index, y, reduce="amax", include_self=True)
        summed = torch.zeros(5, 8).index_put_((group,), y.square(), accumulate=True)
        return total / count.clamp(min=1)[:, None], most, summed


class SliceWrites(nn.Module):
    """Assignments at indices: a row by a tensor, a step, a column by a list, a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 8)

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        """Map (batch, seq, 8) and at (batch,) below 4 to (batch, seq, 8)."""
        y = self.body(x)
        out = torch.zeros_like(y)
        rows = torch.arange(x.shape[0])
        out[rows, at] = y[rows, at] * 2
        out[:, ::2, 1] = y[:, ::2, 0]
        out[..., [2, 5]] += y[..., [5, 2]]
        out[out.abs() < 0.1] = -1.0
        out[:, -1:, :3] = y[:, :1, -3:]
        return out


class TopK(nn.Module):
    """topk, a gather by what it found, and a mask back by scatter."""

    def __init__(self) -> None:
        super().__init__()
        self.score, self.body = nn.Linear(8, 1), nn.Linear(8, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Map (batch, seq, 8) to the best three rows (batch, 3, 6), their places, a mask."""
        scores = self.score(x).squeeze(-1)
        best, places = scores.topk(3, dim=1)
        rows = torch.gather(self.body(x), 1, places[..., None].expand(-1, -1, 6))
        mask = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, places, value=True)
        return rows * best[..., None].sigmoid(), places, mask


class Sorting(nn.Module):
    """sort, argsort of argsort, and a stable order with ties."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 8)

    def forward(self, x: Tensor, kind: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Map (batch, 8) and kind (batch,) to sorted values, ranks, rows in the order of kind."""
        y = self.body(x)
        values, order = y.sort(dim=-1, descending=True)
        by_kind = torch.argsort(kind, stable=True)
        return values.cumsum(dim=-1), order.argsort(dim=-1), y[by_kind]


class Distinct(nn.Module):
    """unique with inverse and counts: how often each row's token comes."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 6)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Map ids (n,) to distinct tokens' embeddings, their counts, and frequencies (n,)."""
        tokens, inverse, counts = torch.unique(ids, return_inverse=True, return_counts=True)
        return self.embed(tokens), counts, counts[inverse] / ids.shape[0]


class NonZero(nn.Module):
    """nonzero's places, as a list of variable length."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv1d(4, 1, 3, padding=1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map (batch, 4, time) to peaks' places (peaks, 2) and their values (peaks,)."""
        heat = self.body(x).squeeze(1)
        left = torch.nn.functional.pad(heat, (1, 0), value=-9.0)[:, :-1]
        right = torch.nn.functional.pad(heat, (0, 1), value=-9.0)[:, 1:]
        peaks = (heat > left) & (heat > right) & (heat > 0.2)
        return peaks.nonzero(), heat[peaks]


class Suppression(nn.Module):
    """Non-maximum suppression written out: a Python loop over boxes by falling score."""

    def __init__(self) -> None:
        super().__init__()
        self.boxes, self.scores = nn.Linear(8, 4), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map candidates (n, 8) to kept boxes (kept, 4) and their places (kept,)."""
        raw = self.boxes(x)
        corner, size = raw[:, :2], raw[:, 2:].abs() + 0.3
        boxes = torch.cat([corner, corner + size], dim=1)
        order = self.scores(x).squeeze(-1).argsort(descending=True)
        area = size.prod(dim=1)
        kept = []
        while order.numel() > 0:
            first, order = order[0], order[1:]
            kept.append(first)
            low = torch.maximum(boxes[first, :2], boxes[order, :2])
            high = torch.minimum(boxes[first, 2:], boxes[order, 2:])
            inner = (high - low).clamp(min=0).prod(dim=1)
            order = order[inner / (area[first] + area[order] - inner) <= 0.3]
        places = torch.stack(kept)
        return boxes[places], places


class MatrixSuppression(nn.Module):
    """Suppression without a loop: overlaps of all pairs, scores decayed."""

    def __init__(self) -> None:
        super().__init__()
        self.boxes, self.scores = nn.Linear(8, 4), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map candidates (n, 8) to boxes (n, 4) by falling score, and decayed scores (n,)."""
        scores, order = self.scores(x).sigmoid().squeeze(-1).sort(descending=True)
        raw = self.boxes(x)[order]
        boxes = torch.cat([raw[:, :2], raw[:, :2] + raw[:, 2:].abs() + 0.3], dim=1)
        low = torch.maximum(boxes[:, None, :2], boxes[None, :, :2])
        high = torch.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
        inner = (high - low).clamp(min=0).prod(dim=-1)
        area = (boxes[:, 2:] - boxes[:, :2]).prod(dim=-1)
        overlap = (inner / (area[:, None] + area[None] - inner)).triu(1)
        return boxes, scores * (1 - overlap.amax(dim=0))


class MaskedRows(nn.Module):
    """Runs only the rows that a mask keeps, and writes them back: masked_scatter and x[mask]."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.body = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        """Map (batch, seq, 8) and keep (batch, seq) to (batch, seq, 8) and the kept (kept, 8)."""
        y = self.embed(x)
        kept = torch.tanh(self.body(y[keep]))
        mask = keep[..., None].expand_as(y)
        return y.masked_scatter(mask, kept), kept


class Repeating(nn.Module):
    """repeat_interleave by durations, as length regulators of speech synthesis do."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 6)

    def forward(self, x: Tensor, durations: Tensor) -> Tensor:
        """Map (seq, 8) and durations (seq,) to (sum of durations, 6)."""
        return torch.tanh(self.body(x)).repeat_interleave(durations, dim=0)


class Buckets(nn.Module):
    """bucketize and searchsorted, then an embedding of the bucket."""

    edges: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("edges", torch.tensor([-1.0, -0.3, 0.0, 0.4, 1.2]))
        self.embed = nn.Embedding(6, 4)

    def forward(self, x: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
        """Map (batch, 7) to (batch, 7, 4), and find x in the running sums of steps (batch, 5)."""
        edges = steps.abs().cumsum(dim=-1)
        return self.embed(torch.bucketize(x, self.edges)), torch.searchsorted(edges, x.abs())


class Histogram(nn.Module):
    """bincount and one_hot without a number of classes: sizes made of values."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 4)

    def forward(self, x: Tensor, kind: Tensor) -> tuple[Tensor, Tensor]:
        """Map (n, 8) and kind (n,) to counts (largest kind + 1,) and sums by kind (.., 4)."""
        hot = torch.nn.functional.one_hot(kind).float()
        return torch.bincount(kind), hot.T @ self.body(x)


def _groups() -> Feeds:
    return [{"x": normal(1, 4, 8), "group": given([2, 2, 2, 2])},
            {"x": normal(2, 5, 8), "group": given([4, 0, 4, 1, 3])}]  # fmt: skip


def _ids() -> Feeds:
    return [{"ids": given([7, 7, 7])}, {"ids": whole(3, 9, high=19)}]


def _peaks() -> Feeds:
    return [{"x": normal(seed, 2, 4, 12, scale=scale)} for seed, scale in ((1, 0.01), (2, 3.0))]


def _candidates() -> Feeds:
    close = normal(1, 1, 8).repeat(6, axis=0) + normal(2, 6, 8, scale=0.05)
    return [{"x": close}, {"x": normal(3, 9, 8, scale=4.0)}]


def _masks() -> Feeds:
    x = normal(4, 2, 5, 8)
    return [{"x": x, "keep": whole(seed, 2, 5, high=seed) > 0} for seed in (0, 1)]


def _durations() -> Feeds:
    return [
        {"x": normal(5, 4, 8), "durations": given(rows)} for rows in ([1, 0, 3, 2], [5, 5, 5, 5])
    ]


def _kinds() -> Feeds:
    return [{"x": normal(6, 4, 8), "kind": given(rows)} for rows in ([0, 0, 0, 0], [5, 1, 0, 2])]


_ROWS, _SEQ = "x:float32[n=1..9,8]", "x:float32[batch=1..4,seq=4..16,8]"
CASES: tuple[Case, ...] = (
    hard("scatter-and-index-put", ScatterMean, _ROWS, "group:int64[n]{0..4}", feeds=_groups,
         why="scatter_add, scatter_reduce, index_put with accumulation"),
    hard("slice-assignments", SliceWrites, _SEQ, "at:int64[batch]{0..3}",
         why="writes at tensors, steps, lists, masks"),
    hard("topk-gather", TopK, _SEQ, why="topk, gather, scatter back"),
    hard("sorts", Sorting, "x:float32[batch=1..6,8]", "kind:int64[batch]{0..2}",
         why="descending, rank of rank, stable with ties"),
    hard("unique", Distinct, "ids:int64[n=1..12]{0..19}", feeds=_ids, why="inverse and counts"),
    hard("nonzero-peaks", NonZero, "x:float32[batch=1..4,4,time=4..20]", feeds=_peaks,
         why="as many rows as there are peaks"),
    hard("nms-loop", Suppression, "x:float32[n=1..12,8]", feeds=_candidates,
         why="a while loop over what is left"),
    hard("nms-matrix", MatrixSuppression, "x:float32[n=1..12,8]", feeds=_candidates,
         why="all pairs, no loop"),
    hard("boolean-mask", MaskedRows, _SEQ, "keep:bool[batch,seq]", feeds=_masks,
         why="x[mask] and masked_scatter"),
    hard("repeat-interleave", Repeating, "x:float32[seq=1..8,8]", "durations:int64[seq]{1..4}",
         feeds=_durations, why="lengths by values"),
    hard("buckets", Buckets, "x:float32[batch=1..4,7]", "steps:float32[batch,5]",
         why="bucketize, searchsorted by row"),
    hard("histogram", Histogram, _ROWS, "kind:int64[n]{0..5}", feeds=_kinds,
         why="bincount, one_hot without classes"),
)  # fmt: skip
