"""Eager with its sums taken one element after the other."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from modelc.sources.in_turn import LONGEST, in_turn


def one_by_one(values: np.ndarray) -> np.float32:
    total = np.float32(0)
    for value in values:
        total = np.float32(total + value)
    return total


@pytest.mark.parametrize("name", ["sum", "mean"])
def test_a_long_sum_is_made_in_order(name: str) -> None:
    x = torch.full((1, 2, 30, 30), 0.1)
    with in_turn():
        found = getattr(x, name)((2, 3))
    wanted = one_by_one(x[0, 0].flatten().numpy())
    assert found.shape == (1, 2)
    assert found[0, 0].item() == wanted / np.float32(900 if name == "mean" else 1)
    assert found[0, 0].item() != getattr(x, name)((2, 3))[0, 0].item()


@pytest.mark.parametrize(
    "pool", [torch.nn.AdaptiveAvgPool2d(1), torch.nn.AdaptiveAvgPool2d((1, 1))]
)
def test_a_global_pool_errs_by_more_and_keeps_its_shape(pool: torch.nn.Module) -> None:
    x = torch.full((2, 3, 56, 56), 0.3)
    with in_turn():
        found = pool(x)
    assert found.shape == (2, 3, 1, 1)
    truth = x[..., :1, :1]
    assert abs(found - truth).max() > 1e-6
    assert abs(pool(x) - truth).max() < 1e-7


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.sum(),
        lambda x: x.mean(),
        lambda x: x.sum(-1),
        lambda x: x.mean(dim=(0, 2), keepdim=True),
        lambda x: x.sum((0, 1, 2), keepdim=True),
        lambda x: x.double().mean(0),
        lambda x: x.sum(1, dtype=torch.float64),
        lambda x: x.to(torch.int64).sum(),
        lambda x: x[:, :0].sum(1),
        lambda x: x[0, 0, 0].sum(),
        lambda x: x.transpose(0, 2).mean(1),
    ],
)
def test_every_other_form_is_as_torch_gives_it(call: object) -> None:
    assert callable(call)
    x = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0))
    with in_turn():
        found = call(x)
    torch.testing.assert_close(found, call(x))


def test_sums_beyond_the_longest_are_left_to_torch() -> None:
    x = torch.full((LONGEST + 1,), 0.1)
    with in_turn():
        found = x.sum()
    assert found.item() == x.sum().item()
