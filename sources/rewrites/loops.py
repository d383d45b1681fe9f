# ruff: noqa: TID253 - torch.jit.script reads annotations as types, from this file's globals
"""Loops over time that torch.jit.script compiles, so that a trace which calls them keeps them."""

import torch
from torch import Tensor


def recurrence(gates: Tensor, inputs: Tensor, start: Tensor) -> Tensor:
    """All states of h = gate * h + input over dim 1."""
    states: list[Tensor] = []
    state = start
    for index in range(inputs.size(1)):
        state = gates[:, index] * state + inputs[:, index]
        states.append(state)
    return torch.stack(states, dim=1)


def weighted_average(  # noqa: PLR0913, PLR0917 - one tensor each: TorchScript takes no records
    decay: Tensor,
    first: Tensor,
    key: Tensor,
    value: Tensor,
    top: Tensor,
    bottom: Tensor,
    peak: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """RWKV's average of values (batch, time, channels), weighted by keys that decay.

    The average, and the state (numerator, denominator, highest exponent) after the last step.
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
