"""ELU and its kin by tanh: as exact as torch's own, where exp(x) - 1 is not."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from modelc.capture.evidence import RefusalEvidence, Symptom, evidence_of
from modelc.capture.numeric_rewrites import EXACT_ELU as EXACT

ROUGH = evidence_of(Symptom.FLOAT64_ROUNDOFF)
SMALL = -torch.logspace(-7, 2, 2000)
CALLS = [
    lambda x: functional.elu(x, 1.0),
    lambda x: functional.elu(x, 0.7),
    lambda x: functional.celu(x, 1.3),
    lambda x: functional.selu(x, inplace=False),
    lambda x: nn.ELU()(x + 0),
    lambda x: nn.SELU(inplace=True)(x.clone()),
]


class Plain(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.elu(x)


@pytest.mark.parametrize("call", CALLS)
def test_small_numbers_keep_their_bits(call: object) -> None:
    assert callable(call)
    truth = call(SMALL.double())
    with EXACT.during(Plain()):
        found = call(SMALL)
    assert ((found - truth) / truth).abs().max() < 1e-6
    assert (((SMALL.exp() - 1) - torch.expm1(SMALL.double())) / SMALL).abs().max() > 1e-2


@pytest.mark.parametrize("call", CALLS)
def test_the_ends_and_the_positive_are_as_torch_gives_them(call: object) -> None:
    assert callable(call)
    x = torch.tensor([0.0, 1e-7, 3.0, 1e30, float("inf"), float("-inf"), float("nan"), -1e30])
    wanted = call(x)
    with EXACT.during(Plain()):
        torch.testing.assert_close(call(x), wanted, equal_nan=True)


def test_in_place_is_in_place() -> None:
    x = SMALL.clone()
    with EXACT.during(Plain()):
        given = functional.elu(x, inplace=True)
    assert given is x
    torch.testing.assert_close(x, functional.elu(SMALL))


def test_torchs_own_are_put_back() -> None:
    before = functional.elu, functional.celu, functional.selu

    def half_way() -> None:
        with EXACT.during(Plain()):
            assert functional.elu is not before[0]
            raise ValueError("half way")

    with pytest.raises(ValueError, match="half way"):
        half_way()
    assert (functional.elu, functional.celu, functional.selu) == before


def test_it_suits_what_was_too_rough_and_calls_one() -> None:
    for module in (Plain(), nn.Sequential(nn.Linear(2, 2), nn.ELU()), nn.SELU(), nn.CELU()):
        assert EXACT.may_help(module, ROUGH)
        assert not EXACT.may_help(module, RefusalEvidence())
    assert not EXACT.may_help(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.GELU()), ROUGH)
