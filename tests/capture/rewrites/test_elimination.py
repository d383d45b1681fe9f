"""Inverses by a loop over the rows: as torch's own, and scripted in place of it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from modelc.capture.evidence import RefusalEvidence, Symptom, evidence_of
from modelc.capture.rewrite_table import REWRITE_TABLE
from modelc.capture.scripted_loops import inverse, solution

LOOPED = next(one for one in REWRITE_TABLE if one.name == "looped-inverse")
REFUSED = evidence_of(Symptom.OPEN_INVERSE)


class Filter(nn.Module):
    """A matrix that is inverted again in each turn."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = torch.eye(3).expand(x.size(0), 3, 3)
        for step in x.unbind(1):
            state = torch.linalg.inv(state + step.unsqueeze(-1) @ step.unsqueeze(-2))
        return state


@pytest.mark.parametrize("size", [1, 2, 5, 17])
def test_solutions_are_torchs(size: int) -> None:
    drawn = torch.Generator().manual_seed(size)
    a = torch.randn(3, 2, size, size, dtype=torch.float64, generator=drawn)
    b = torch.randn(3, 2, size, 4, dtype=torch.float64, generator=drawn)
    torch.testing.assert_close(inverse(a), torch.linalg.inv(a))
    torch.testing.assert_close(solution(a, b), torch.linalg.solve(a, b))
    torch.testing.assert_close(solution(a, b[..., 0]), torch.linalg.solve(a, b[..., 0]))


def test_a_pivot_of_zero_is_exchanged() -> None:
    turned = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 2.0], [4.0, 0.0, 0.0]])
    torch.testing.assert_close(inverse(turned), torch.linalg.inv(turned))


def test_a_script_takes_the_loop_in_place_of_torchs() -> None:
    net, x = Filter().eval(), torch.randn(2, 5, 3)
    with LOOPED.during(net):
        made = torch.jit.script(net)
    assert "linalg_inv" not in str(made.inlined_graph)
    torch.testing.assert_close(made(x), net(x), rtol=1e-4, atol=1e-5)
    assert torch.linalg.inv(torch.eye(2)).equal(torch.eye(2))


def test_it_suits_models_that_invert() -> None:
    assert LOOPED.may_help(Filter(), REFUSED)
    assert not LOOPED.may_help(Filter(), RefusalEvidence())
    assert not LOOPED.may_help(nn.Linear(2, 2), REFUSED)
