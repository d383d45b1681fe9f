"""Hard cases: Python control flow on what the tensors hold. A trace sees only one way through."""

# Thresholds stand in the models as their authors write them.

from __future__ import annotations

from contextlib import suppress

import torch
from torch import Tensor, nn

from modelc.tests.nets.case_helpers import Feeds, flags, hard, normal, spiked
from modelc.tests.nets.cases import Case


class SignGate(nn.Module):
    """One of two heads for the whole batch, by the sign of a learnt score."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.score = nn.Linear(16, 24), nn.Linear(24, 1, bias=False)
        self.left, self.right = nn.Linear(24, 4), nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 16) to (batch, 4)."""
        inner = torch.tanh(self.body(x))
        out: Tensor = self.left(inner) if self.score(inner).sum() > 0 else self.right(inner)
        return out


class Guarded(nn.Module):
    """Repairs inputs that are not finite, or far out of range, before the layers see them."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 16) to (batch, 8)."""
        if torch.isnan(x).any():
            x = torch.nan_to_num(x)
        if x.abs().max() > 50.0:
            x = x / x.abs().max() * 50.0
        out: Tensor = self.body(x)
        return out


class SquareRoot(nn.Module):
    """Newton's iteration until it has settled: a while loop on the residual."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(12, 6)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 12) to the square roots (batch, 6) of its features."""
        wanted = self.body(x).square() + 0.5
        root = torch.ones_like(wanted)
        while ((root * root - wanted).abs() / wanted).max() > 1e-4:
            root = 0.5 * (root + wanted / root)
        return root


class EarlyExit(nn.Module):
    """Blocks with a classifier each; leaves at the first that is sure of every row."""

    def __init__(self, depth: int = 4) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(depth))
        self.heads = nn.ModuleList(nn.Linear(16, 3) for _ in range(depth))
        self.least = 0.55

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 16) to probabilities (batch, 3)."""
        chances = torch.zeros(x.shape[0], 3)
        for block, head in zip(self.blocks, self.heads, strict=True):
            x = x + torch.relu(block(x))
            chances = torch.softmax(head(x), dim=-1)
            if chances.amax(dim=-1).min() > self.least:
                return chances
        return chances


class Rescaled(nn.Module):
    """Takes the largest value out as a Python number, as hand-made quantisation does."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 16) to (batch, 8)."""
        scale = float(x.abs().max()) / 127.0 + 1e-6
        whole = torch.round(x / scale)
        out: Tensor = self.body(whole * scale) * scale
        return out


class Caught(nn.Module):
    """A check that raises, and a handler that goes another way: a branch without an `if`."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(16, 8)

    def _checked(self, x: Tensor) -> Tensor:
        if x.abs().max() > 6.0:
            raise ValueError("values out of range")
        return x

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 16) to (batch, 8)."""
        try:
            x = self._checked(x)
        except ValueError:
            x = x.clamp(-1.0, 1.0)
        out: Tensor = self.body(x)
        return out


class CaughtSeldom(nn.Module):
    """The same with a check that fails on few inputs only, and a layer of its own for those."""

    def __init__(self) -> None:
        super().__init__()
        self.usual, self.seldom = nn.Linear(16, 8), nn.Linear(16, 8)

    def _checked(self, x: Tensor) -> Tensor:
        if 7.0 < float(x.max()) < 7.5:
            raise ValueError("an outlier")
        return x

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 16) to (batch, 8)."""
        try:
            out: Tensor = self.usual(self._checked(x))
        except ValueError:
            out = torch.relu(self.seldom(x))
        return out


class Suppressed(CaughtSeldom):
    """An assertion that contextlib.suppress lets go: what comes after it is not run."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 16) to (batch, 8)."""
        out: Tensor = torch.relu(self.seldom(x))
        with suppress(AssertionError):
            assert not 7.0 < float(x.max()) < 7.5
            out = self.usual(x)
        return out


class Asserting(nn.Module):
    """Asserts on values and shapes; nothing else depends on data."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(30, 16)
        self.body = nn.Linear(16, 8)

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids (batch, seq) below 30 to (batch, seq, 8)."""
        assert ids.dim() == 2, f"ids are (batch, seq), not {tuple(ids.shape)}"
        assert int(ids.max()) < self.embed.num_embeddings, "an id is out of the vocabulary"
        if (ids < 0).any():
            raise ValueError(f"negative ids: {int(ids.min())}")
        out: Tensor = self.body(self.embed(ids))
        return out


class Flagged(nn.Module):
    """A bool tensor as a switch."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.refine = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor, refine: Tensor) -> Tensor:
        """Map (batch, 16) to the same; `refine` is a bool without dims."""
        out: Tensor = self.body(x)
        if refine:
            out = out + torch.tanh(self.refine(out))
        return out


class Shortcut(nn.Module):
    """Skips the comparison where both inputs are the same: an arm that random feeds never take."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Bilinear(8, 8, 4)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """Compare two (batch, 8) by four scores (batch, 4)."""
        if torch.equal(left, right):
            return torch.ones(left.shape[0], 4)
        out: Tensor = torch.sigmoid(self.body(left, right))
        return out


class Conditional(nn.Module):
    """The branch said with torch.cond."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(16, 4), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 16) to (batch, 4)."""
        out: Tensor = torch.cond(
            x.mean() > 0,
            lambda given: torch.tanh(self.left(given)),
            lambda given: self.right(given).relu(),
            (x,),
        )
        return out


class Selected(nn.Module):
    """The branch done as arithmetic: both heads run, torch.where chooses by row."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(16, 4), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 16) to (batch, 4)."""
        chosen = x.mean(dim=1, keepdim=True) > 0
        return torch.where(chosen, self.left(x), self.right(x).exp())


def _signs() -> Feeds:
    return [{"x": normal(seed, 3, 16, shift=shift)} for seed in (1, 2) for shift in (2.0, -2.0)]


def _guarded() -> Feeds:
    values = (float("nan"), 400.0, 0.0)
    return [{"x": spiked(seed, 3, 16, value=value)} for seed, value in enumerate(values)]


def _far() -> Feeds:
    return [{"x": spiked(seed, 3, 16, value=value)} for seed, value in enumerate((0.5, 9.0, -20.0))]


def _outliers() -> Feeds:
    return [{"x": spiked(seed, 3, 16, value=value)} for seed, value in enumerate((7.2, 0.5))]


def _scales() -> Feeds:
    return [{"x": normal(seed, 3, 16, scale=scale)} for seed, scale in enumerate((0.1, 1.0, 9.0))]


def _flagged() -> Feeds:
    return [{"x": normal(4, 2, 16), "refine": flags([on]).reshape(())} for on in (True, False)]


def _shortcut() -> Feeds:
    left, right = normal(5, 3, 8), normal(6, 3, 8)
    return [{"left": left, "right": left.copy()}, {"left": left, "right": right}]


def _roots() -> Feeds:
    return [{"x": normal(seed, 2, 12, scale=scale)} for seed, scale in enumerate((0.1, 1.0, 20.0))]


_X = "x:float32[batch=1..4,16]"
_LEFT, _RIGHT = "left:float32[batch=1..4,8]", "right:float32[batch=1..4,8]"
_IDS = "ids:int64[batch=1..4,seq=2..12]{0..29}"
CASES: tuple[Case, ...] = (
    hard("data-dependent-if", SignGate, _X, feeds=_signs, why="one of two heads by a score's sign"),
    hard("nan-guard", Guarded, _X, feeds=_guarded, why="repairs that random feeds do not take"),
    hard(
        "data-dependent-while", SquareRoot, "x:float32[batch=1..4,12]", feeds=_roots,
        why="a while loop until a residual is small",
    ),
    hard("early-exit", EarlyExit, _X, feeds=_scales, why="return from a loop over modules"),
    hard("value-as-float", Rescaled, _X, feeds=_scales, why="computes with float(x.max())"),
    hard(
        "try-except-on-values", Caught, _X, feeds=_far,
        why="a branch by an exception that forward itself catches",
    ),
    hard("try-except-rare", CaughtSeldom, _X, feeds=_outliers, why="it is seldom raised"),
    hard("suppressed-check", Suppressed, _X, feeds=_outliers, why="an assert in suppress()"),
    hard("assert-on-values", Asserting, _IDS, why="assert and raise on values, the rest plain"),
    hard("bool-switch", Flagged, _X, "refine:bool[]", feeds=_flagged, why="if on a bool input"),
    hard(
        "equal-shortcut", Shortcut, _LEFT, _RIGHT, feeds=_shortcut,
        why="torch.equal decides; random feeds never make it true",
    ),
    hard("torch-cond", Conditional, _X, feeds=_signs, why="torch.cond over two submodules"),
    hard("where-instead-of-if", Selected, _X, feeds=_signs, why="both arms run, chosen by row"),
)  # fmt: skip
