"""Caches of recurrent layers, whose states are of one size whatever the sequence's length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from modelc.capture.evidence import Symptom, evidence_of
from modelc.capture.rewrite_table import apply_rewrites, suggest_rewrites

from .conftest import Opened
from .test_rewrites import agree, export, trace

caches = pytest.importorskip("transformers.cache_utils")
Open = Callable[..., Opened]
X = "x:float32[batch=1..3,seq=1..9,4]"
KERNEL = 4


class ShortConv(nn.Module):
    """A causal convolution and a sum over time, whose states go into a cache."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(4, 4, KERNEL, groups=4, padding=KERNEL - 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        layer: Any = caches.LinearAttentionLayer()
        steps = x.transpose(1, 2)
        full = layer.update_conv_state(steps, conv_kernel_size=KERNEL)
        out = self.conv(full)[..., : full.shape[-1]][..., -steps.shape[-1] :]
        total = layer.update_recurrent_state(functional.softplus(out).sum(-1))
        return {"out": out, "total": total, "conv_state": layer.conv_states[0]}


@pytest.mark.parametrize("capture", [trace, export])
def test_a_state_shorter_than_the_kernel_is_taken(
    capture: Callable[..., Callable[..., object]], opened: Open
) -> None:
    torch.manual_seed(0)
    eager, signature = opened(ShortConv(), X)
    usual = caches.LinearAttentionLayer.update_conv_state
    with pytest.raises((RuntimeError, AssertionError)):  # the padding is a branch on sizes
        agree(capture(eager, signature), eager, signature)

    assert suggest_rewrites(eager, evidence_of(Symptom.SIZE_BRANCH))[0] == ("state-caches",)
    with apply_rewrites(eager, ("state-caches",)) as copied:
        made = capture(copied, signature)

    agree(made, eager, signature)
    assert caches.LinearAttentionLayer.update_conv_state is usual


def test_a_second_step_goes_on_from_the_first(opened: Open) -> None:
    eager, _ = opened(ShortConv(), X)
    steps = torch.randn(2, 4, 7)

    def states() -> list[Tensor]:
        layer: Any = caches.LinearAttentionLayer()
        given = [
            layer.update_conv_state(part, conv_kernel_size=KERNEL)[..., -part.shape[-1] - 3 :]
            for part in (steps[..., :5], steps[..., 5:])
        ]
        layer.update_recurrent_state(steps.sum(-1))
        kept = layer.update_recurrent_state(steps.amax(-1))
        return [given[1], layer.conv_states[0], kept, layer.recurrent_states[0]]

    wanted = states()
    with apply_rewrites(eager, ("state-caches",)):
        found = states()
    assert all(torch.equal(a, b) for a, b in zip(wanted, found, strict=True))
