from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from modelc.core.torch_tools import to_array

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
