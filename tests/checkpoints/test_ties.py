"""Eager with the choice among equal scores settled by index."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from torch import nn

from modelc.checkpoints.eager_model import Eager
from modelc.checkpoints.eager_perturbations import TieChoices, order_ties
from modelc.core.call import bind_inputs, parameters_of

if TYPE_CHECKING:
    from collections.abc import Callable

SCORES = torch.tensor([[1.0, 3.0, 2.0, 3.0, 3.0], [5.0, 5.0, 5.0, 5.0, 1.0]])


def settled(call: Callable[[], object], *, last: bool) -> tuple[object, int]:
    choices = TieChoices(last=last)
    with order_ties(choices):
        found = call()
    return found, choices.made


def test_of_equal_scores_the_first_or_the_last_are_taken() -> None:
    for last, wanted in ((False, [[1, 3], [0, 1]]), (True, [[4, 3], [3, 2]])):
        choices = TieChoices(last=last)
        with order_ties(choices):
            places = SCORES.topk(2).indices
        assert (places.tolist(), choices.made) == (wanted, 1)


def test_scores_that_roundoff_tells_apart_are_equal_and_a_thousandth_is_not() -> None:
    near = torch.tensor([1.0, 1.0 + 1.2e-7, 1.001])
    with order_ties(TieChoices(last=False)):
        values, indices = near.topk(2)
    assert indices.tolist() == [2, 0]
    assert torch.equal(values, near[[2, 0]])


@pytest.mark.parametrize("dim", [0, -1])
def test_a_sort_is_settled_along_its_dim_either_way(dim: int) -> None:
    x = torch.tensor([[2.0, 1.0, 1.0], [2.0, 2.0, 1.0]])
    for downwards in (False, True):
        found, _ = settled(lambda d=downwards: x.sort(dim, d), last=False)  # type: ignore[misc]
        wanted = x.sort(dim=dim, descending=downwards, stable=True)
        assert torch.equal(found[0], wanted.values)  # type: ignore[index]
        assert torch.equal(found[1], wanted.indices)  # type: ignore[index]


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.sort(dim=-1, stable=True).indices,
        lambda x: torch.argsort(x, stable=True),
        lambda x: x.argmax(dim=-1),
        lambda x: x.max(dim=-1).indices,
        lambda x: (x > 0).nonzero(),
        lambda x: x[0, 0].sort().values,
    ],
)
def test_what_torch_leaves_no_choice_in_is_as_it_gives_it(
    call: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    found, made = settled(lambda: call(SCORES), last=True)
    assert torch.equal(found, call(SCORES))  # type: ignore[arg-type]
    assert made == 0


class Best(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places: torch.Tensor = x.topk(2).indices
        return places.to(x.dtype)


def test_eager_is_run_so_in_float32_and_in_float64() -> None:
    module = Best().eval()
    eager = Eager(module, ("x",), bind_inputs(("x",), parameters_of(module.forward)))
    for exact, dtype in ((False, np.float32), (True, np.float64)):
        found = eager.run_with_tie_order({"x": SCORES.numpy()}, last=True, exact=exact)
        assert found is not None
        assert found["output"].dtype == dtype
        assert found["output"].tolist() == [[4, 3], [3, 2]]


def test_without_a_choice_there_is_no_answer() -> None:
    module = nn.Linear(5, 2).eval()
    eager = Eager(module, ("input",), bind_inputs(("input",), parameters_of(module.forward)))
    assert eager.run_with_tie_order({"input": SCORES.numpy()}, last=True) is None
