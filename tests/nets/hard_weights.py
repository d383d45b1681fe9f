"""Hard cases: weights that are shared, computed, strided, of other precisions, many, or huge."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn.utils import parametrizations, parametrize

from modelc.tests.nets.case_helpers import hard
from modelc.tests.nets.cases import Case


class TiedDecoder(nn.Module):
    """The output layer's weight is the embedding's, and two layers are one."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.first = nn.Embedding(60, 16), nn.Linear(16, 16)
        self.second = self.first
        self.out = nn.Linear(16, 60, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids (batch, seq) to logits (batch, seq, 60)."""
        inner = torch.tanh(self.second(torch.tanh(self.first(self.embed(ids)))))
        out: Tensor = self.out(inner)
        return out


class Strided(nn.Module):
    """Weights that are transposes, expansions and slices of others' memory."""

    def __init__(self) -> None:
        super().__init__()
        self.turned = nn.Parameter(torch.randn(16, 12).t())
        self.wide = nn.Parameter(torch.randn(1, 8).expand(12, 8))
        self.part = nn.Parameter(torch.randn(8, 16)[:, ::2])

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 16) to (batch, 8)."""
        inner = torch.tanh(nn.functional.linear(x, self.turned))
        return nn.functional.linear(inner @ self.wide, self.part)


class Symmetric(nn.Module):
    """A parametrization of a user's own: W + W^T."""

    def forward(self, weight: Tensor) -> Tensor:
        """Map (n, n) to a symmetric (n, n)."""
        return weight.triu() + weight.triu(1).mT


class Parametrized(nn.Module):
    """weight_norm, spectral_norm, orthogonal and a parametrization of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.normed = parametrizations.weight_norm(nn.Conv1d(4, 8, 3, padding=1))
        self.spectral = parametrizations.spectral_norm(nn.Linear(8, 8))
        self.turning = parametrizations.orthogonal(nn.Linear(8, 8, bias=False))
        self.mirror = nn.Linear(8, 8)
        parametrize.register_parametrization(self.mirror, "weight", Symmetric())

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 4, time) to (batch, time, 8)."""
        inner = torch.tanh(self.normed(x)).transpose(1, 2)
        out: Tensor = self.mirror(self.turning(torch.tanh(self.spectral(inner))))
        return out


class OldWeightNorm(nn.Module):
    """weight_norm as it was before parametrizations: a hook computes the weight."""

    def __init__(self) -> None:
        super().__init__()
        norm: Any = torch.nn.utils.weight_norm
        with warnings.catch_warnings():  # deprecated, and in most vocoders
            warnings.simplefilter("ignore", FutureWarning)
            self.up = norm(nn.ConvTranspose1d(8, 4, 4, stride=2, padding=1))
            self.smooth = norm(nn.Conv1d(4, 4, 7, padding=3))

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 8, time) to (batch, 4, twice the time)."""
        out: Tensor = self.smooth(nn.functional.leaky_relu(self.up(x), 0.1))
        return out


class Precise(nn.Module):
    """A model in the precision of its weights: inputs are brought to it, results to float32."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 8)
        self.to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 16) to float32 (batch, 8)."""
        inner = self.norm(x.to(self.up.weight.dtype))
        out: Tensor = self.down(torch.relu(self.up(inner)))
        return out.float()


class Doubled(nn.Module):
    """float64 through and through: inputs, weights, outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.out = nn.Linear(6, 12), nn.Linear(12, 3)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        """Map float64 (batch, 6) to float64 (batch, 3)."""
        out: Tensor = self.out(torch.tanh(self.body(x)))
        return out


class StraightThrough(Function):
    """Rounds; gradients pass. The idiom of learnt quantisation."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, step: Tensor) -> Tensor:
        """Round x to multiples of `step`."""
        ctx.save_for_backward(x, step)
        return torch.round(x / step) * step

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Pass the gradient on to x; none to `step`."""
        return grads[0] * ctx.saved_tensors[1].sign().abs(), None


class CustomFunction(nn.Module):
    """A custom autograd function between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 16), nn.Linear(16, 8)
        self.step = nn.Parameter(torch.tensor(0.125))

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 16) to (batch, 8)."""
        inner: Any = StraightThrough.apply(torch.tanh(self.up(x)), self.step)  # type: ignore[no-untyped-call]
        out: Tensor = self.down(inner)
        return out


class Deep(nn.Module):
    """200 residual layers."""

    def __init__(self, depth: int = 200) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(depth))
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 8) to the same."""
        for layer in self.layers:
            x = x + 0.1 * torch.tanh(layer(x))
        out: Tensor = self.norm(x)
        return out


class ForcesOfEnergy(nn.Module):
    """An energy and its gradient by positions, as interatomic potentials give them."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Map (batch, atoms, 3) to energies (batch,) and forces (batch, atoms, 3)."""
        with torch.enable_grad():
            places = positions.detach().requires_grad_(True)
            energy = self.energy(places).sum(dim=(1, 2))
            (slope,) = torch.autograd.grad(energy.sum(), places)
        return energy.detach(), -slope


class Large(nn.Module):
    """About 2.2 GiB of float32: an embedding and a layer that reads it out."""

    def __init__(self, vocab: int = 140_000, width: int = 4096) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.up, self.out = nn.Linear(width, width), nn.Linear(width, 64)

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids (batch, seq) to (batch, seq, 64)."""
        out: Tensor = self.out(torch.relu(self.up(self.embed(ids))))
        return out


def _plain(name: str, build: Any, *inputs: str, why: str) -> Case:
    """A case whose weights are as its own constructor draws them."""
    return Case(name=name, family="hard", build=build, inputs=inputs, why=why, drawn=False)


_X = "x:float32[batch=1..4,16]"
_IDS = "ids:int64[batch=1..4,seq=1..12]{0..59}"
_WAVE = "x:float32[batch=1..4,8,time=8..40]"
CASES: tuple[Case, ...] = (
    _plain("tied-weights", TiedDecoder, _IDS, why="one tensor under two names, one layer twice"),
    _plain("strided-weights", Strided, _X, why="transposed, expanded and sliced parameters"),
    _plain(
        "parametrizations", Parametrized, "x:float32[batch=1..4,4,time=4..20]",
        why="weight_norm, spectral_norm, orthogonal, one of its own",
    ),
    _plain("old-weight-norm", OldWeightNorm, _WAVE, why="a forward_pre_hook computes the weight"),
    _plain("float16-checkpoint", lambda: Precise(torch.float16), _X, why="weights in float16"),
    _plain("bfloat16-checkpoint", lambda: Precise(torch.bfloat16), _X, why="weights in bfloat16"),
    _plain("float64-model", Doubled, "x:float64[batch=1..4,6]", why="float64 everywhere"),
    _plain("custom-autograd", CustomFunction, _X, why="an autograd.Function in forward"),
    hard("very-deep", Deep, "x:float32[batch=1..4,8]", why="200 layers"),
    hard(
        "forces-by-autograd", ForcesOfEnergy, "positions:float32[batch=1..4,atoms=2..9,3]",
        why="torch.autograd.grad inside forward",
    ),
    Case(
        name="over-2-gib", family="large", build=Large, drawn=False,
        inputs=("ids:int64[batch=1..2,seq=1..8]{0..139999}",), why="2.2 GiB of weights",
    ),
)  # fmt: skip
