"""Weights with NaN or Inf are counted by name; Inf in a buffer is most often a mask."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from modelc.checkpoints.weight_loading import find_nonfinite_weights


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(4, 4), nn.Linear(4, 2)
        self.register_buffer("mask", torch.zeros(4, 4))
        self.register_buffer("count", torch.zeros(1, dtype=torch.int64))
        self.empty = nn.Parameter(torch.zeros(0, 4))


class Odd(torch.Tensor):
    """A class of tensors that answers nothing."""

    @classmethod
    def __torch_function__(cls, *_: object, **__: object) -> object:
        raise NotImplementedError


def with_values(name: str, *values: float, dtype: torch.dtype = torch.float32) -> nn.Module:
    module = Net().to(dtype)
    with torch.no_grad():
        module.state_dict()[name].view(-1)[: len(values)] = torch.tensor(values)
    return module


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("name", "values", "told"),
    [
        ("enc.weight", (math.nan,), ["enc.weight has 1 NaN"]),
        ("dec.bias", (math.inf, -math.inf), ["dec.bias has 2 Inf"]),
        ("enc.bias", (math.nan, math.inf, 1.0), ["enc.bias has 1 NaN and 1 Inf"]),
        ("mask", (-math.inf, math.inf), []),
        ("mask", (-math.inf, math.nan), ["mask has 1 NaN"]),
        ("enc.weight", (1e4, -1e4), []),
    ],
)
def test_each_weight_is_reported_with_its_counts(
    name: str, values: tuple[float, ...], told: list[str], dtype: torch.dtype
) -> None:
    assert [*map(str, find_nonfinite_weights(with_values(name, *values, dtype=dtype)))] == told


def test_what_has_no_elements_to_ask_is_passed_over() -> None:
    module = nn.Sequential(nn.LazyLinear(3), nn.Linear(2, 2, device="meta"))
    module.register_buffer("few", torch.eye(3).to_sparse())
    module.register_buffer("odd", torch.full((3,), math.nan).as_subclass(Odd))
    assert find_nonfinite_weights(module) == ()
