"""Models that some capture refuses, or takes wrongly, unless a copy of them is rewritten."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

X = "x:float32[batch=1..4,8]"


class Gate(nn.Module):
    """Only a script keeps its branch."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.a(x) if x.mean() > 0 else self.b(x)
        return out


class Named(Gate):
    """With a method beside forward."""

    def named(self, x: Tensor) -> Tensor:
        return self.forward(x) * 2


class TrainingGate(Gate):
    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            x = x + random.random()
        out: Tensor = self.a(x) if x.mean() > 0 else self.b(x)
        return out


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(checkpoint(self.block, x, use_reentrant=True))  # type: ignore[no-any-return]

    def block(self, x: Tensor) -> Tensor:
        return torch.relu(self.a(x))


class CompiledInside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = torch.compile(nn.Linear(8, 8), backend="eager"), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.block(x))  # type: ignore[no-any-return]  # torch types a call so

    @torch.compile(backend="eager")
    def block(self, x: Tensor) -> Tensor:
        return torch.relu(self.a(x))


class Packed(nn.Module):
    """Outputs, lengths, and the final states of a packed run."""

    def __init__(
        self, kind: Callable[..., nn.RNNBase], *, whole: bool = False, **options: bool
    ) -> None:
        super().__init__()
        self.rnn = kind(8, 6, num_layers=2, **options)
        self.whole, self.first = whole, self.rnn.batch_first

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        rows = pack_padded_sequence(x, lengths, self.first, enforce_sorted=False)
        out, state = self.rnn(rows)
        total = x.shape[1 if self.first else 0] if self.whole else None
        padded, counts = pad_packed_sequence(out, self.first, total_length=total)
        return (padded, counts, *(state if isinstance(state, tuple) else (state,)))


class Causal(nn.Module):
    """As decoders write it: causal, unless there is one query only."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x)[:, None]
        attend = nn.functional.scaled_dot_product_attention
        return attend(q, q, q, is_causal=q.shape[2] > 1)[:, 0]


def widened(module: nn.Module) -> None:
    """A patch that changes nothing that counts."""
    module.extra = nn.Identity()


def spoilt(module: nn.Module) -> None:
    """A patch that writes into shared weights, past torch's version counters."""
    next(module.parameters()).data.mul_(2)


def raising(module: nn.Module) -> None:
    raise KeyError(type(module).__name__)


def no_module(module: nn.Module) -> str:
    return repr(module)


class Branchless(nn.Module):
    """Both arms of a Gate, and a choice between them that a capture can take."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self.gate = gate

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x.mean() > 0, self.gate.a(x), self.gate.b(x))


def branchless(module: Gate) -> nn.Module:
    return Branchless(module)


class Doubled(nn.Module):
    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self.gate = gate

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.gate.a(x), self.gate.b(x)


def doubled(module: Gate) -> nn.Module:
    """A patch after which the model gives two outputs."""
    return Doubled(module)


class Counted(nn.Module):
    """Its batch becomes a Python number, which fixes it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        if len([x]) != 1:
            raise ValueError("lists have a length as ever")
        return self.fc(x) + torch.zeros(len(x), 4)  # type: ignore[no-any-return]  # as above


class Twofold(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        ctx.mark_non_differentiable(x)
        ctx.kept = x.shape
        return x * 2


class Shifted(torch.autograd.Function):
    """Its forward takes no ctx."""

    @staticmethod
    def forward(x: Tensor, by: float) -> Tensor:
        return x + by

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[object, ...], output: object) -> None:
        """Nothing: a capture has no backward."""


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        shift: Any = Shifted.apply
        double: Any = Twofold.apply
        return shift(double(self.fc(x)), 0.5)  # type: ignore[no-any-return]  # as above
