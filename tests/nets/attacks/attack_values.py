"""Values: hooks, clips, NaN, epsilons, ties, rows that mix, dtypes that decide."""
# mypy: disable-error-code="no-any-return,no-untyped-call,no-untyped-def"

from __future__ import annotations

import threading
from typing import Any

import torch
from attack_case import attack
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as in every tutorial

X = "x:float32[batch,8]"
SEQ = {"x": (2, 6, 8)}


class Dense(nn.Module):
    """A linear layer of 8."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(8, 8)


# --- hooks -----------------------------------------------------------------------------------


@attack(X, family="hooks")
class HookWithCondition(Dense):
    def __init__(self) -> None:
        super().__init__()
        self.scale = 0.5
        self.dense.register_forward_hook(self._hook)

    def _hook(self, _module: nn.Module, _args: Any, out: Tensor) -> Tensor:
        result = out
        if self.scale:
            result = out * self.scale
        return result

    def forward(self, x: Tensor) -> Tensor:
        return self.dense(x)


@attack(X, family="hooks", good=True)
class PreHookPositional(Dense):
    def __init__(self) -> None:
        super().__init__()
        self.register_forward_pre_hook(lambda _, args: (args[0].clamp(-1, 1),))

    def forward(self, x: Tensor) -> Tensor:
        return self.dense(x)


@attack(X, family="hooks")
class HookOnNegative(Dense):
    def __init__(self) -> None:
        super().__init__()
        self.dense.register_forward_hook(lambda _m, _a, out: out.abs() if out.sum() < 0 else None)

    def forward(self, x: Tensor) -> Tensor:
        return self.dense(x)


@attack("x:float32[batch=1..8,8]", family="hooks")
class HookAtOneSize(Dense):
    """Both outcomes go to one return, the last of which is None."""

    def __init__(self) -> None:
        super().__init__()
        self.dense.register_forward_hook(lambda _m, _a, out: out * 2 if out.shape[0] == 6 else None)

    def forward(self, x: Tensor) -> Tensor:
        return self.dense(x)


@attack(X, family="hooks")
class HookThatRecords(Dense):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []
        self.dense.register_forward_hook(lambda _m, _a, out: self.seen.append(out.detach()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen.clear()
        y = self.dense(x)
        return y + self.seen[-1].mean()


@attack(X, family="hooks", good=True)
class SpectralNormed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.dense(x).relu()


# --- values that decide ----------------------------------------------------------------------


@attack(X, family="clip")
class ClipFarOut(Dense):
    def forward(self, x: Tensor) -> Tensor:
        return self.dense(x).clamp(-2e4, 2e4)


@attack(X, family="clip")
class RareSaturation(Dense):
    def forward(self, x: Tensor) -> Tensor:
        y = self.dense(x)
        return torch.where(y > 5e4, torch.zeros_like(y), y)


@attack(X, family="branch on values")
class BranchOnMean(Dense):
    def forward(self, x: Tensor) -> Tensor:
        if x.mean() > 0:
            return self.dense(x)
        return -self.dense(x).abs()


@attack(X, family="branch on values")
class BranchOnMax(Dense):
    def forward(self, x: Tensor) -> Tensor:
        y = self.dense(x)
        if bool((y.abs() > 1e3).any()):
            y = y / y.abs().max()
        return y


@attack("x[batch,seq,8]", family="branch on values", sample=SEQ)
class CountOfLarge(Dense):
    def forward(self, x: Tensor) -> Tensor:
        k = int((x[..., 0] > 0).sum().clamp(min=1, max=3))
        return self.dense(x).topk(k, 1).values.sum(1)


@attack("x[batch,seq,8]", family="branch on values", sample=SEQ)
class NonzeroRows(Dense):
    def forward(self, x: Tensor) -> Tensor:
        return self.dense(x[x[..., 0] > 0])


@attack(X, family="branch on values")
class LoopUntilSmall(Dense):
    def forward(self, x: Tensor) -> Tensor:
        steps = 0
        while x.abs().max() > 1 and steps < 5:
            x = self.dense(x) * 0.3
            steps += 1
        return x


@attack(X, family="branch on dtype")
class BranchOnDtype(Dense):
    def forward(self, x: Tensor) -> Tensor:
        y = self.dense(x)
        return y.clamp(-1, 1) if x.dtype == torch.float32 else y


@attack(X, family="branch on dtype")
class HalfInside(Dense):
    def forward(self, x: Tensor) -> Tensor:
        return self.dense(x.bfloat16().float())


@attack(X, family="branch on dtype")
class EpsOfDtype(Dense):
    def forward(self, x: Tensor) -> Tensor:
        y = self.dense(x)
        return y / (y.norm(dim=-1, keepdim=True) + torch.finfo(y.dtype).eps * 1e6)


@attack(X, family="branch on dtype")
class DoubleInside(Dense):
    def forward(self, x: Tensor) -> Tensor:
        y = self.dense(x).double()
        return (y - y.mean(1, keepdim=True)).exp().clamp(max=1e3).float()


# --- NaN -------------------------------------------------------------------------------------


@attack(X, family="nan", nan=True)
class ImputeNan(Dense):
    def forward(self, x: Tensor) -> Tensor:
        return self.dense(torch.where(torch.isnan(x), torch.zeros_like(x), x))


@attack(X, family="nan", nan=True)
class NanToNum(Dense):
    def forward(self, x: Tensor) -> Tensor:
        return self.dense(torch.nan_to_num(x, nan=0.5, posinf=9.0, neginf=-9.0))


@attack("x[batch,seq,8]", family="nan", sample=SEQ, nan=True)
class NanMean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.nanmean(x, 1)


@attack(X, family="nan", nan=True)
class ReluOfNan(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x.relu(), x.clamp(-1, 1), torch.maximum(x, -x)


@attack(X, family="nan", nan=True)
class MissingIsZero(Dense):
    def forward(self, x: Tensor) -> Tensor:
        known = (x == x).float()
        return self.dense(x.masked_fill(x != x, 0.0)) * known.mean(1, keepdim=True)


@attack(X, family="nan")
class LogOfNegative(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = torch.log(x)
        return torch.where(torch.isfinite(y), y, torch.full_like(y, -7.0))


# --- epsilons and norms ------------------------------------------------------------------------


@attack("x[batch,seq,8]", family="epsilon", sample=SEQ)
class TinyEpsilonNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8, eps=1e-12)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x * 1e-3)


@attack("x[batch,seq,8]", family="epsilon", sample=SEQ, good=True)
class RmsNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(8) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


@attack("x[batch,8,height,width]", family="epsilon", sample={"x": (2, 8, 6, 6)})
class InstanceNormEps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.InstanceNorm2d(8, eps=1e-3, affine=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x)


@attack("x[batch,8,height,width]", family="epsilon", sample={"x": (2, 8, 6, 6)}, good=True)
class GroupNormed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.conv = nn.GroupNorm(4, 8), nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.norm(self.conv(x)))


@attack(X, family="epsilon")
class CosineOfZero(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 8))

    def forward(self, x: Tensor) -> Tensor:
        return F.cosine_similarity(x[:, None], self.weight[None], dim=-1)


@attack(X, family="epsilon")
class NormalizeTiny(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x * 1e-8, dim=-1)


@attack("x[batch,seq,8]", family="epsilon", sample=SEQ)
class StdOfRows(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-5)


@attack(X, family="epsilon")
class SoftplusThreshold(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return F.softplus(x, beta=2, threshold=5), F.logsigmoid(x * 20)


@attack(X, family="epsilon")
class LogSumExp(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.logsumexp(-1), (x * 50).log_softmax(-1)


# --- rows that mix, order, ties --------------------------------------------------------------


@attack(X, family="batch mixing")
class BatchSoftmax(Dense):
    def forward(self, x: Tensor) -> Tensor:
        return self.dense(x).softmax(0)


@attack(X, family="batch mixing")
class BatchCovariance(Dense):
    def forward(self, x: Tensor) -> Tensor:
        y = self.dense(x)
        y = y - y.mean(0)
        return y.T @ y / max(x.shape[0] - 1, 1)


@attack("x[batch,seq,8]", family="batch mixing", sample=SEQ)
class ViewAcrossRows(Dense):
    def forward(self, x: Tensor) -> Tensor:
        return self.dense(x.transpose(0, 1).reshape(x.shape[0], x.shape[1], 8))


@attack(X, family="order")
class TopThree(Dense):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        found = self.dense(x).topk(3)
        return found.values, found.indices


@attack(X, family="order")
class StableSort(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        values, order = x.sort(dim=-1, stable=True, descending=True)
        return values, order


@attack("x[batch,seq,8]", family="order", sample=SEQ)
class MedianAndKth(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.median(1).values, x.kthvalue(1, -1).values


@attack("x[batch,seq,8]", family="order", sample=SEQ)
class ArgmaxOfTies(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.round()
        return y.argmax(-1), y.argmin(1)


@attack("x[batch,seq,8]", family="order", sample=SEQ)
class QuantileOfRows(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.quantile(x, torch.tensor([0.1, 0.5, 0.9]), dim=1)


@attack("x[batch,seq,8]", family="order", sample=SEQ)
class UniqueInverse(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        values, inverse = torch.unique(x.round(), return_inverse=True)
        return values[inverse] * 2


@attack("x[batch,seq,8]", family="cumulative", sample=SEQ)
class CumulativeAll(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = x.tanh()
        return y.cumsum(1), y.flip(1).cumsum(1).flip(1), torch.cummax(x, 1).values


@attack("x[batch,seq,8]", family="cumulative", sample=SEQ)
class CumulativeProduct(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (1 - x.sigmoid() * 0.5).cumprod(1)


@attack("x[batch,seq,8]", family="scatter", sample=SEQ)
class ScatterByRank(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        order = x.argsort(1)
        return torch.zeros_like(x).scatter(1, order, x.cumsum(1))


@attack("x[batch,seq,8]", family="scatter", sample=SEQ)
class ScatterAddGroups(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        groups = (x[..., :1] > 0).long().expand_as(x)
        return x.new_zeros(x.shape[0], 2, 8).scatter_add(1, groups, x)


@attack("x[batch,seq,8]", family="scatter", sample=SEQ)
class IndexPutEvery2(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x.clone()
        y[:, ::2] = x[:, ::2] * 3
        y[:, 0, 0] = 1.0
        return y


@attack("x[batch,seq,8]", family="scatter", sample=SEQ)
class ScatterMax(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        groups = (x[..., :1].abs() * 2).long().clamp(max=3).expand_as(x)
        return x.new_full((x.shape[0], 4, 8), -9.0).scatter_reduce(1, groups, x, "amax")


@attack(X, family="threads")
class ThreadInForward(Dense):
    def forward(self, x: Tensor) -> Tensor:
        parts: dict[int, Tensor] = {}

        def work(at: int) -> None:
            with torch.no_grad():
                parts[at] = self.dense(x[:, :8]) * (at + 1)

        threads = [threading.Thread(target=work, args=(at,)) for at in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return parts[0] + parts[1]


@attack(X, family="complex")
class ComplexTurn(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        z = torch.complex(x[:, :4], x[:, 4:])
        turned = z * torch.polar(torch.ones(4), torch.arange(4.0))
        return torch.cat([turned.real, turned.imag], -1)


@attack("x[batch,seq,8]", family="complex", sample={"x": (2, 16, 8)})
class FourierMixing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.fft2(x, dim=(1, 2)).real


@attack("x[batch,samples]", family="complex", sample={"x": (2, 64)})
class RealFft(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.rfft(x).abs().log1p()


@attack(X, family="transpose")
class MatrixTranspose(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.mT + (x[:, None] @ self.weight.mT)[:, 0].mT.mT
