# ruff: noqa: TID253 - torch.jit.script reads annotations as types, from this file's globals
"""Loops for torch.jit.script, which traces keep as loops."""

import torch
from torch import Tensor


def recurrence(gates: Tensor, inputs: Tensor, start: Tensor) -> Tensor:
    """Return all states of h = gate * h + input over dim 1."""
    states: list[Tensor] = []
    state = start
    for index in range(inputs.size(1)):
        state = gates[:, index] * state + inputs[:, index]
        states.append(state)
    return torch.stack(states, dim=1)


def rwkv_average(  # noqa: PLR0913, PLR0917 - one tensor each: TorchScript takes no records
    decay: Tensor,
    first: Tensor,
    key: Tensor,
    value: Tensor,
    top: Tensor,
    bottom: Tensor,
    peak: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return RWKV's average of values (batch, time, channels), weighted by decaying keys.

    Also return the state (numerator, denominator, highest exponent) after the last step.
    """
    outs: list[Tensor] = []
    for index in range(key.size(1)):
        now, worth = key[:, index], value[:, index]
        high = torch.maximum(peak, now + first)
        old, new = torch.exp(peak - high), torch.exp(now + first - high)
        outs.append((old * top + new * worth) / (old * bottom + new))
        high = torch.maximum(peak + decay, now)
        old, new = torch.exp(peak + decay - high), torch.exp(now - high)
        top, bottom, peak = old * top + new * worth, old * bottom + new, high
    return torch.stack(outs, dim=1), top, bottom, peak


def inverse(matrices: Tensor) -> Tensor:
    """Return the inverse of each matrix; not finite for singular ones."""
    rows = torch.arange(matrices.size(-1), device=matrices.device)
    identity = (rows.unsqueeze(-1) == rows).to(matrices.dtype)
    return _eliminate(matrices, identity.expand_as(matrices))


def solution(a: Tensor, b: Tensor) -> Tensor:
    """Solve A X = B; if B has fewer dims, it is one vector per matrix."""
    if b.dim() < a.dim():
        return _eliminate(a, b.unsqueeze(-1)).squeeze(-1)
    return _eliminate(a, b)


def _eliminate(matrices: Tensor, columns: Tensor) -> Tensor:
    """Solve by Gauss-Jordan elimination with partial pivoting."""
    rows = torch.arange(matrices.size(-1), device=matrices.device)
    for at in range(matrices.size(-1)):
        below = torch.where(rows >= at, matrices.select(-1, at).abs(), -1.0)
        best = below.argmax(-1, keepdim=True)
        found = torch.where(rows == at, best, torch.where(rows == best, at, rows))
        chosen = (found.unsqueeze(-1) == rows).to(matrices.dtype)
        matrices, columns = chosen @ matrices, chosen @ columns
        factors, row = matrices.select(-1, at).unsqueeze(-1), matrices.select(-2, at)
        pivot = row.select(-1, at).unsqueeze(-1)
        row, part = (row / pivot).unsqueeze(-2), (columns.select(-2, at) / pivot).unsqueeze(-2)
        is_own = (rows == at).unsqueeze(-1)
        matrices = torch.where(is_own, row, matrices - factors * row)
        columns = torch.where(is_own, part, columns - factors * part)
    return columns
