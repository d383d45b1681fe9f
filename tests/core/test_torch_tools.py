"""Tensors as arrays, and modes that intercept torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from modelc.checkpoints.taint import track_taint
from modelc.core.torch_tools import intercept_operators, to_array

ONES = torch.ones(2, 2)


@pytest.mark.parametrize(
    ("tensor", "dtype"),
    [
        (ONES.half(), "float16"),
        (ONES.bfloat16(), "float32"),
        (ONES.to(torch.float8_e4m3fn), "float32"),
        (ONES.bool(), "bool"),
        (ONES.to(torch.complex64), "complex64"),
        (ONES.to_sparse(), "float32"),
        (ONES.clone().requires_grad_(True), "float32"),
    ],
)
def test_a_tensor_of_any_kind_becomes_an_array(tensor: Tensor, dtype: str) -> None:
    array = to_array(tensor)
    assert str(array.dtype) == dtype
    assert np.array_equal(array, np.ones((2, 2)))


def test_lazy_conjugates_are_worked_out() -> None:
    assert to_array(torch.tensor([1 + 2j]).conj())[0] == 1 - 2j


def test_an_array_is_a_copy() -> None:
    tensor = torch.ones(2)
    array = to_array(tensor)
    tensor.zero_()
    assert array.tolist() == [1, 1]


pytestmark = pytest.mark.filterwarnings("ignore")  # torch.compile's own


def branching(x: Tensor) -> Tensor:
    found: Tensor = torch.cond(x.mean() > 0, lambda y: y + 1, lambda y: y.relu(), (x,))
    return found


def test_a_branch_of_torch_runs_after_a_mode() -> None:
    seen: list[str] = []

    def through(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        seen.append(func.overloadpacket.__name__)
        return func(*args, **kwargs)

    with torch.no_grad(), intercept_operators(through), pytest.raises(NotImplementedError):
        branching(torch.ones(2, 3))
    assert "mean" in seen
    with torch.no_grad():
        for rows in (2, 1, 4):
            assert torch.equal(branching(torch.ones(rows, 3)), torch.full((rows, 3), 2.0))
            assert torch.equal(branching(-torch.ones(rows, 3)), torch.zeros(rows, 3))


def test_a_branch_of_torch_runs_after_data_was_followed_through_it() -> None:
    module, x = torch.nn.Linear(3, 3), torch.ones(2, 3)

    def run(rows: int) -> Tensor:
        return branching(module(torch.ones(rows, 3)))

    with torch.no_grad():
        run(8)
        with track_taint(module, [x]):
            branching(module(x))
        for rows in (1, 3, 1):
            assert run(rows).shape == (rows, 3)
