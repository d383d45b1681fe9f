"""Sizes that stay symbolic: lengths, steps, frequencies, pooling."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from modelc.capture.evidence import RefusalEvidence, Symptom, evidence_of
from modelc.capture.rewrite_table import REWRITE_TABLE
from modelc.capture.size_rewrites import LENGTH_REWRITES

LINSPACE, NUMBERS, FREQUENCIES = (
    next(one for one in LENGTH_REWRITES if one.name == name)
    for name in ("dynamic-linspace", "symbolic-numbers", "dynamic-frequencies")
)
FIXED = evidence_of(Symptom.FIXED_SIZE)


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
    assert LINSPACE.may_help(Ramp(), FIXED)
    assert not LINSPACE.may_help(nn.Linear(2, 2), FIXED)
    assert not LINSPACE.may_help(Ramp(), RefusalEvidence())


class Parts(nn.Module):
    """The first part of a row, and as many zeros as the rest, one at least."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        part = int(x.shape[0] / 2)
        assert isinstance(part, int)
        return x[:part] * int("2"), x.new_zeros(max(int(x.shape[0] * 0.29), 1))


def test_numbers_of_a_size_stay_symbolic() -> None:
    net = Parts()
    with NUMBERS.during(net):
        program = torch.export.export(
            net, (torch.ones(20),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},),
            prefer_deferred_runtime_asserts_over_guards=True,
        )  # fmt: skip
    for size in (7, 20, 100, 101):
        for found, wanted in zip(
            program.module()(torch.ones(size)), net(torch.ones(size)), strict=True
        ):
            assert torch.equal(found, wanted)
    assert "int" not in globals()
    assert "max" not in globals()


def test_it_suits_a_number_that_was_taken_for_granted() -> None:
    granted = evidence_of(Symptom.ASSUMED_SIZE, Symptom.SIZE_ARITHMETIC)
    assert NUMBERS.may_help(Parts(), granted)
    assert not NUMBERS.may_help(Parts(), RefusalEvidence())
    assert not NUMBERS.may_help(nn.Linear(2, 2), granted)


class Frequencies(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        size = x.shape[0]
        whole = torch.fft.fftfreq(size, d=0.3, dtype=torch.float64)
        return x * torch.fft.fftfreq(size), torch.fft.rfftfreq(size) * whole[1]


def test_captured_frequencies_are_those_of_any_size() -> None:
    net, size = Frequencies(), torch.export.Dim("size", min=2, max=50)
    with FREQUENCIES.during(net):
        program = torch.export.export(net, (torch.ones(5),), dynamic_shapes=({0: size},))
    for steps in (2, 3, 4, 7, 10, 49):
        x = torch.ones(steps)
        for found, wanted in zip(program.module()(x), net(x), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-6, atol=0)


def test_it_suits_a_size_that_was_fixed_beside_frequencies() -> None:
    assert FREQUENCIES.may_help(Frequencies(), FIXED)
    assert not FREQUENCIES.may_help(Ramp(), FIXED)
    assert not FREQUENCIES.may_help(Frequencies(), RefusalEvidence())


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
