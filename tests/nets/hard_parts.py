"""Hard cases: one part of a model asks what its tensors hold; the rest is plain and larger.

The rest is written so that torch.jit.script does not take it (options by name, activations from a
table, generators), as most published models are.
"""

# Thresholds stand in the models as their authors write them.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from modelc.tests.nets.case_helpers import Feeds, flags, hard, normal
from modelc.tests.nets.cases import Case

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "silu": functional.silu,
}


class Trunk(nn.Module):
    """Residual layers; activations by name, options by keyword: not TorchScript's Python."""

    def __init__(self, depth: int = 6, **options: Any) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(depth))
        self.options = {"activation": "gelu", **options}

    def forward(self, x: Tensor, **given: Any) -> Tensor:
        """Map (..., 16) to the same."""
        act = _ACTIVATIONS[{**self.options, **given}["activation"]]
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + act(layer(norm(x)))
        return x


class Chooser(nn.Module):
    """The part that branches: one of two heads by the mean of a score."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(16, 1, bias=False)
        self.left, self.right = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 16) to the same."""
        if self.score(x).mean() > 0:
            return torch.tanh(self.left(x))
        return torch.relu(self.right(x))


class Settler(nn.Module):
    """The part that loops: damped steps until they are small, at most twenty."""

    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 16) to the same."""
        state, turns = torch.zeros_like(x), 0
        moved = torch.ones(1)
        while bool(moved > 0.02) and turns < 20:
            new = torch.tanh(0.3 * self.step(state) + x)
            moved = (new - state).abs().max()
            state = new
            turns += 1
        return state


class OnePart(nn.Module):
    """Trunk, one deciding part, trunk."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.before, self.part, self.after = Trunk(), part, Trunk(activation="silu")
        self.out = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 16) to (batch, 4)."""
        out: Tensor = self.out(self.after(self.part(self.before(x)), activation="gelu"))
        return out


class SharedPart(nn.Module):
    """The deciding part is called twice; its two calls may go different ways."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.part, self.out = Trunk(), Chooser(), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 16) to (batch, 4)."""
        out: Tensor = self.out(self.part(self.trunk(x)) + self.part(-x))
        return out


class ParentChooses(nn.Module):
    """The outermost forward chooses between two trunks: a cheap one where an input says so."""

    def __init__(self) -> None:
        super().__init__()
        self.cheap, self.dear, self.out = Trunk(1), Trunk(8), nn.Linear(16, 4)

    def forward(self, x: Tensor, fast: Tensor) -> Tensor:
        """Map (batch, 16) and a bool (1,) to (batch, 4)."""
        x = self.cheap(x) if fast.item() else self.dear(x)
        out: Tensor = self.out(x)
        return out


class DecodedByPart(nn.Module):
    """An encoder that scripting refuses, and a greedy decoder that stops when it is done."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = Trunk(), Decoder()

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, seq, 16) to tokens (batch, at most 8)."""
        out: Tensor = self.decoder(self.encoder(x).mean(dim=1))
        return out


class Decoder(nn.Module):
    """A GRU that feeds its argmax back until every row has said 5."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cell, self.out = nn.Embedding(6, 16), nn.GRUCell(16, 16), nn.Linear(16, 6)

    def forward(self, state: Tensor) -> Tensor:
        """Map a state (batch, 16) to tokens (batch, at most 8)."""
        token = torch.ones(state.shape[0], dtype=torch.long)
        ended = torch.zeros(state.shape[0], dtype=torch.bool)
        tokens = torch.zeros(state.shape[0], 0, dtype=torch.long)
        while tokens.shape[1] < 8 and not bool(ended.all()):
            state = self.cell(self.embed(token), state)
            token = self.out(state).argmax(dim=-1)
            tokens = torch.cat([tokens, token[:, None]], dim=1)
            ended = ended | (token == 5)
        return tokens


class AnyOfList(nn.Module):
    """Rows' peaks as a list of floats, and any() over it decides: rare on random feeds."""

    def __init__(self) -> None:
        super().__init__()
        self.usual, self.seldom = nn.Linear(16, 4), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 16) to (batch, 4)."""
        peaks = [float(row.max()) for row in x]
        if any(7.0 < peak < 7.5 for peak in peaks):
            return torch.relu(self.seldom(x))
        out: Tensor = self.usual(x)
        return out


class Autocast(nn.Module):
    """A low-rank adapter in bfloat16 by torch.autocast, inside forward, a tenth of the result."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.out = Trunk(2), nn.Linear(16, 8)
        self.down, self.up = nn.Linear(16, 4, bias=False), nn.Linear(4, 8)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 16) to float32 (batch, 8)."""
        x = self.body(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            adapted = self.up(self.down(x))
        out: Tensor = self.out(x) + 0.1 * adapted.float()
        return out


def _signs() -> Feeds:
    return [
        {"x": normal(seed, 3, 16, scale=2.0, shift=shift)}
        for seed in (1, 3)
        for shift in (-4.0, 0.0)
    ]


def _calls() -> Feeds:
    return [{"x": normal(seed, 3, 16, scale=2.0)} for seed in range(5)]


def _clips() -> Feeds:
    return [{"x": normal(seed, 1, 3, 16, scale=2.0)} for seed in range(4)]


def _scales() -> Feeds:
    return [{"x": normal(seed, 3, 16, scale=scale)} for seed, scale in enumerate((0.01, 1.0, 9.0))]


def _speeds() -> Feeds:
    return [{"x": normal(3, 2, 16), "fast": flags([fast])} for fast in (True, False)]


def _peaks() -> Feeds:
    rare = normal(4, 3, 16)
    rare[1, 2] = 7.2
    return [{"x": rare}, {"x": normal(5, 3, 16)}]


_BFLOAT16 = 2.0**-8  # half its last bit: a runtime may compute these parts in float32
_X, _SEQ = "x:float32[batch=1..4,16]", "x:float32[batch=1..4,seq=1..6,16]"
CASES: tuple[Case, ...] = (
    hard("one-part-branches", lambda: OnePart(Chooser()), _X, feeds=_signs,
         why="a branch in one part; scripting refuses the rest"),
    hard("one-part-loops", lambda: OnePart(Settler()), _X, feeds=_scales,
         why="a while loop in one part; scripting refuses the rest"),
    hard("shared-part-branches", SharedPart, _X, feeds=_calls,
         why="the deciding part is called twice, and may go two ways"),
    hard("parent-chooses", ParentChooses, _X, "fast:bool[1]", feeds=_speeds,
         why="the outermost forward decides; scripting refuses its children"),
    hard("one-part-decodes", DecodedByPart, _SEQ, feeds=_clips,
         why="a greedy decoder behind an encoder that scripting refuses"),
    hard("any-over-a-list", AnyOfList, _X, feeds=_peaks,
         why="any() over floats taken out of a tensor, an arm that random feeds miss"),
    hard("autocast-inside", Autocast, _X, close=_BFLOAT16,
         why="torch.autocast to bfloat16 in forward"),
)  # fmt: skip
