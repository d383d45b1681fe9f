"""torch.linspace of a dynamic number of steps: as torch's own, without a size made a constant."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from modelc.sources.rewrites.lengths import REWRITES

(LINSPACE,) = (one for one in REWRITES if one.name == "dynamic-linspace")
FIXED = ("torch.export refused the model: your code specialized it to be a constant (5)",)


class Ramp(nn.Module):
    def __init__(self, start: float = -1.0, end: float = 2.5) -> None:
        super().__init__()
        self.ends = start, end

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        start, end = self.ends
        return x + torch.linspace(start, end, x.shape[0], device=x.device)


@pytest.mark.parametrize("ends", [(-1.0, 2.5), (0, 1), (3.0, -3.0), (2.0, 2.0)])
def test_a_captured_ramp_takes_any_size(ends: tuple[float, float]) -> None:
    net = Ramp(*ends)
    size = torch.export.Dim("size", max=50)
    with LINSPACE.during(net):
        program = torch.export.export(net, (torch.zeros(5),), dynamic_shapes=({0: size},))
    for steps in (1, 2, 3, 4, 7, 10, 49):
        x = torch.zeros(steps)
        torch.testing.assert_close(program.module()(x), net(x), rtol=1e-6, atol=2e-7)


def test_a_number_of_steps_is_left_to_torch() -> None:
    whole = torch.linspace(0, 9, 4, dtype=torch.int64)
    with LINSPACE.during(Ramp()):
        assert torch.equal(torch.linspace(0, 9, 4, dtype=torch.int64), whole)
    assert torch.equal(torch.linspace(0, 9, 4, dtype=torch.int64), whole)


def test_it_suits_a_size_that_was_fixed_beside_a_linspace() -> None:
    assert LINSPACE.suits(Ramp(), FIXED)
    assert not LINSPACE.suits(nn.Linear(2, 2), FIXED)
    assert not LINSPACE.suits(Ramp(), ("another reason",))
