"""Hard cases: decoding loops, routing, and lengths or indices that are read out of tensors."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from modelc.tests.nets.case_helpers import Feeds, given, hard, normal, whole
from modelc.tests.nets.cases import Case

_EOS = 10


class GreedyDecoder(nn.Module):
    """A fixed number of steps; each feeds its own argmax back."""

    def __init__(self, steps: int = 6) -> None:
        super().__init__()
        self.embed, self.cell = nn.Embedding(12, 16), nn.GRUCell(16, 16)
        self.out, self.steps = nn.Linear(16, 12), steps

    def forward(self, context: Tensor) -> Tensor:
        """Map a context (batch, 16) to tokens (batch, steps)."""
        state = context
        token = torch.ones(context.shape[0], dtype=torch.long)
        tokens = []
        for _ in range(self.steps):
            state = self.cell(self.embed(token), state)
            token = self.out(state).argmax(dim=-1)
            tokens.append(token)
        return torch.stack(tokens, dim=1)


class GreedyUntilEnd(GreedyDecoder):
    """The same, but it stops when every row has said the end token: a length made of data."""

    def forward(self, context: Tensor) -> Tensor:
        """Map a context (batch, 16) to tokens (batch, at most steps)."""
        state = context
        token = torch.ones(context.shape[0], dtype=torch.long)
        done = torch.zeros(context.shape[0], dtype=torch.bool)
        tokens = []
        for _ in range(self.steps):
            state = self.cell(self.embed(token), state)
            token = self.out(state).argmax(dim=-1).masked_fill(done, 0)
            tokens.append(token)
            done = done | (token == _EOS)
            if bool(done.all()):
                break
        return torch.stack(tokens, dim=1)


class Refining(nn.Module):
    """As many turns as an input says, as a sampler of diffusion steps makes."""

    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(16, 16)

    def forward(self, x: Tensor, steps: Tensor) -> Tensor:
        """Map (batch, 16) and steps (1,) to (batch, 16)."""
        for _ in range(int(steps.item())):
            x = x + 0.3 * torch.tanh(self.step(x))
        return x


class StepTable(nn.Module):
    """A schedule looked up by a Python index that `.item()` gives."""

    alphas: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("alphas", torch.linspace(0.99, 0.1, 10))
        self.body = nn.Linear(16, 16)

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        """Denoise (batch, 16) at step (1,)."""
        alpha = self.alphas[int(step.item())]
        before = self.alphas[max(int(step.item()) - 1, 0)]
        noise: Tensor = self.body(x)
        return before.sqrt() * (x - (1 - alpha).sqrt() * noise) / alpha.sqrt()


class TaskHeads(nn.Module):
    """A head looked up in a ModuleDict by a number of the input: a dict access is the branch."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(16, 16)
        self.heads = nn.ModuleDict({str(index): nn.Linear(16, 4) for index in range(3)})

    def forward(self, x: Tensor, task: Tensor) -> Tensor:
        """Map (batch, 16) by the head `task` (1,) to (batch, 4)."""
        out: Tensor = self.heads[str(int(task))](torch.relu(self.body(x)))
        return out


class Mixture(nn.Module):
    """Top-2 routing: each expert runs on the rows that chose it, added back by index_add."""

    def __init__(self, experts: int = 4) -> None:
        super().__init__()
        self.gate = nn.Linear(16, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 16)) for _ in range(experts)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, seq, 16) to the same."""
        rows = x.reshape(-1, x.shape[-1])
        weights, chosen = torch.topk(torch.softmax(self.gate(rows), dim=-1), 2, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        out = torch.zeros_like(rows)
        for index, expert in enumerate(self.experts):
            row, slot = torch.where(chosen == index)
            out.index_add_(0, row, expert(rows[row]) * weights[row, slot, None])
        return out.reshape(x.shape)


class MixtureSkipping(nn.Module):
    """Top-1 routing that leaves out experts that nobody chose."""

    def __init__(self, experts: int = 4) -> None:
        super().__init__()
        self.gate = nn.Linear(16, experts)
        self.experts = nn.ModuleList(nn.Linear(16, 8) for _ in range(experts))

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 16) to (batch, 8)."""
        chances = torch.softmax(self.gate(x), dim=-1)
        chosen = chances.argmax(dim=-1)
        out = torch.zeros(x.shape[0], 8)
        for index, expert in enumerate(self.experts):
            mask = chosen == index
            if mask.any():
                out[mask] = expert(x[mask]) * chances[mask, index].unsqueeze(-1)
        return out


class PackedTagger(nn.Module):
    """An LSTM over packed sequences; `total_length` keeps the padded size."""

    def __init__(self, *, total: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16, padding_idx=0)
        self.lstm = nn.LSTM(16, 12, batch_first=True, bidirectional=True)
        self.tag, self.total = nn.Linear(24, 5), total

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Map ids (batch, seq) and lengths (batch,) to scores (batch, seq or the longest, 5)."""
        packed = pack_padded_sequence(
            self.embed(ids), lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        states, _ = self.lstm(packed)
        total = ids.shape[1] if self.total else None
        padded, _ = pad_packed_sequence(states, batch_first=True, total_length=total)
        out: Tensor = self.tag(padded)
        return out


class PackedEncoder(nn.Module):
    """The last hidden states of a GRU over packed sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.out = nn.GRU(8, 12, num_layers=2, batch_first=True), nn.Linear(12, 3)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Map (batch, seq, 8) and lengths (batch,) to (batch, 3)."""
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        _, last = self.gru(packed)
        out: Tensor = self.out(last[-1])
        return out


class Trimming(nn.Module):
    """Cuts the padding off up to the longest row before it runs, as many encoders do."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix = nn.Embedding(50, 16), nn.Conv1d(16, 16, 3, padding=1)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Map ids (batch, seq) and lengths (batch,) to means (batch, 16)."""
        longest = int(lengths.max())
        states = self.mix(self.embed(ids[:, :longest]).transpose(1, 2))
        known = torch.arange(longest)[None, :] < lengths[:, None]
        states = functional.gelu(states) * known[:, None, :]
        out: Tensor = states.sum(dim=-1) / lengths[:, None]
        return out


class Ranking(nn.Module):
    """Orders its heads by Python's sorted over scores taken out of a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(8, 3)
        self.heads = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 8) to the same through the heads in the order of their mean scores."""
        scores = self.score(x).mean(dim=0)
        for index in sorted(range(3), key=lambda place: float(scores[place])):
            x = torch.tanh(self.heads[index](x))
        return x


def _contexts() -> Feeds:
    return [{"context": normal(seed, 1, 16, scale=1.0 + seed)} for seed in range(6)]


def _steps() -> Feeds:
    return [{"x": normal(seed, 2, 16), "steps": given([seed])} for seed in (1, 2, 5)]


def _tables() -> Feeds:
    return [{"x": normal(seed, 2, 16), "step": given([seed])} for seed in (0, 3, 9)]


def _tasks() -> Feeds:
    return [{"x": normal(seed, 2, 16), "task": given([seed])} for seed in range(3)]


def _rows() -> Feeds:
    same = normal(1, 1, 16).repeat(4, axis=0)  # all rows choose one expert
    return [{"x": same}, *({"x": normal(seed, 4, 16, scale=2.0)} for seed in (2, 3))]


def _sequences() -> Feeds:
    lengths = ([7, 7, 7], [1, 4, 2], [3, 5, 1])
    return [
        {"ids": whole(seed, 3, 7, low=1, high=49), "lengths": given(rows)}
        for seed, rows in enumerate(lengths)
    ]


def _series() -> Feeds:
    return [
        {"x": normal(seed, 3, 6, 8), "lengths": given(rows)}
        for seed, rows in enumerate(([6, 6, 6], [1, 4, 2], [3, 1, 5]))
    ]


_X = "x:float32[batch=1..4,16]"
_CONTEXT = "context:float32[batch=1..4,16]"
_IDS, _LENGTHS = "ids:int64[batch=1..4,seq=4..12]{1..49}", "lengths:int64[batch=1..4]{1..4}"
CASES: tuple[Case, ...] = (
    hard("greedy-fixed-steps", GreedyDecoder, _CONTEXT, why="argmax fed back, six steps"),
    hard(
        "greedy-until-eos", GreedyUntilEnd, _CONTEXT, feeds=_contexts,
        why="stops at the end token: the output's length depends on data",
    ),
    hard("loop-count-input", Refining, _X, "steps:int64[1]{1..5}", feeds=_steps, why="range(n)"),
    hard("item-as-index", StepTable, _X, "step:int64[1]{0..9}", feeds=_tables, why="t[s.item()]"),
    hard(
        "head-by-dict-key", TaskHeads, _X, "task:int64[1]{0..2}", feeds=_tasks,
        why="a module looked up by str(int(tensor))",
    ),
    hard("mixture-of-experts", Mixture, "x:float32[batch=1..4,seq=1..6,16]", why="index_add back"),
    hard(
        "mixture-skipping-empty", MixtureSkipping, _X, feeds=_rows,
        why="experts that nobody chose are not run",
    ),
    hard("packed-lstm", PackedTagger, _IDS, _LENGTHS, feeds=_sequences, why="lengths are an input"),
    hard(
        "packed-lstm-to-longest", lambda: PackedTagger(total=False), _IDS, _LENGTHS,
        feeds=_sequences, why="the output is as long as the longest row",
    ),
    hard(
        "packed-gru-last", PackedEncoder, "x:float32[batch=1..4,seq=4..12,8]", _LENGTHS,
        feeds=_series, why="the last states of packed rows",
    ),
    hard("trim-to-longest", Trimming, _IDS, _LENGTHS, feeds=_sequences, why="x[:, :int(n.max())]"),
    hard("sorted-by-score", Ranking, "x:float32[batch=1..4,8]", why="sorted() over tensor values"),
)  # fmt: skip
