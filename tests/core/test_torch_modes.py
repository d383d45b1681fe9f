"""Modes made of one function: what is compiled in one is compiled again without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from modelc.core.torch_tools import intercept_operators

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
