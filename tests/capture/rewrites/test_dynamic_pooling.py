"""Maximum pooling to sizes that follow from others: as torch has it, with no size made constant."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from modelc.capture.evidence import RefusalEvidence, Symptom, evidence_of
from modelc.capture.rewrite_table import REWRITE_TABLE

POOLING = next(one for one in REWRITE_TABLE if one.name == "dynamic-max-pool")
FIXED = evidence_of(Symptom.FIXED_SIZE)
SIZES = ((4, 9), (13, 4), (20, 30))


class Shares(nn.Module):
    """Maxima of a share of the image, and of as many places as another input has."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        height, width = x.shape[-2:]
        top, places = functional.adaptive_max_pool2d(
            x, ((height + 2) // 3, (width + 1) // 2), return_indices=True
        )
        line = functional.adaptive_max_pool1d(x.flatten(2), y.shape[0])
        return top, places, line, functional.adaptive_max_pool3d(x[:, None], (2, y.shape[0], 3))


def image(height: int, width: int, odd: float | None = None) -> torch.Tensor:
    drawn = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, height, width, generator=drawn).round()  # equal ones among them
    if odd is not None:
        x[torch.rand(x.shape, generator=drawn) < 0.2] = odd
    return x


@pytest.mark.parametrize("odd", [None, math.nan, -math.inf])
def test_a_captured_pool_takes_any_size(odd: float | None) -> None:
    net, dynamic = Shares(), torch.export.Dim.DYNAMIC
    shapes = ({2: dynamic, 3: dynamic}, {0: dynamic})
    with POOLING.during(net):
        program = torch.export.export(
            net, (image(12, 15), torch.ones(7)), dynamic_shapes=shapes,
            prefer_deferred_runtime_asserts_over_guards=True,
        )  # fmt: skip
    for at, size in enumerate(SIZES):
        x, y = image(*size, odd), torch.ones(at * 3 + 2)
        for found, wanted in zip(program.module()(x, y), net(x, y), strict=True):
            torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


def test_numbers_are_left_to_torch_and_nothing_stays() -> None:
    plain = torch.adaptive_max_pool1d, torch._C._nn.adaptive_max_pool2d
    x = image(5, 7)
    wanted = functional.adaptive_max_pool2d(x, 3, return_indices=True)
    with POOLING.during(Shares()):
        found = functional.adaptive_max_pool2d(x, 3, return_indices=True)
    assert all(map(torch.equal, found, wanted))
    assert plain == (torch.adaptive_max_pool1d, torch._C._nn.adaptive_max_pool2d)


def test_it_suits_a_size_that_was_fixed_beside_a_pool() -> None:
    assert POOLING.may_help(Shares(), FIXED)
    assert POOLING.may_help(nn.Sequential(nn.AdaptiveMaxPool2d(3)), FIXED)
    assert not POOLING.may_help(Shares(), RefusalEvidence())
    assert not POOLING.may_help(nn.Linear(2, 2), FIXED)
