"""Spectra, ELU and inverses by operators that are accurate in every runtime."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from modelc.capture.evidence import RefusalEvidence, Symptom, evidence_of
from modelc.capture.numeric_rewrites import EXACT_ELU, EXACT_SPECTRA, LOOPED_INVERSE
from modelc.capture.rewrite import Rewrite
from modelc.capture.scripted_loops import inverse, solution

ROUGH = evidence_of(Symptom.ROUNDOFF)
ONE = ("fft", "ifft", "rfft", "irfft")
MORE = ("fft2", "ifft2", "rfft2", "irfft2", "fftn", "ifftn", "rfftn", "irfftn")


class Plain(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = torch.fft.irfft(torch.fft.rfft(x), n=x.shape[-1])
        return found


def drawn(name: str) -> Tensor:
    """What a transform takes: real values for those that give half a spectrum."""
    torch.manual_seed(0)
    dtype = torch.float64 if name.startswith("r") else torch.complex128
    return torch.randn(3, 5, 6, dtype=dtype)


def agrees(name: str, *args: Any, **named: Any) -> None:
    x = drawn(name)
    wanted = getattr(torch.fft, name)(x, *args, **named)
    with EXACT_SPECTRA.during(Plain()):
        found = getattr(torch.fft, name)(x, *args, **named)
    assert found.dtype == wanted.dtype
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("norm", [None, "backward", "ortho", "forward"])
@pytest.mark.parametrize("name", [*ONE, *MORE])
def test_a_transform_is_torchs_own(name: str, norm: str | None) -> None:
    agrees(name, norm=norm)


@pytest.mark.parametrize("size", [1, 2, 4, 7, 10, 31])
@pytest.mark.parametrize("name", ONE)
def test_sizes_cut_and_fill_up(name: str, size: int) -> None:
    agrees(name, n=size, dim=1)


@pytest.mark.parametrize("name", MORE)
def test_sizes_of_several_dims(name: str) -> None:
    agrees(name, s=(4, 9), dim=(0, 2))


@pytest.mark.parametrize("size", [97, 184, 255])
def test_single_precision_is_as_near_as_torchs(size: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 8, size)
    with EXACT_SPECTRA.during(Plain()):
        found = Plain()(x)
    assert (found - x).norm() / x.norm() < 1e-6  # ONNX Runtime's DFT leaves 3e-5 at 184


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"hop_length": 5, "win_length": 7, "window": True},
        {"window": True, "center": False, "normalized": True},
        {"hop_length": 3, "onesided": False, "pad_mode": "constant"},
    ],
    ids=["plain", "short window", "not centred", "two-sided"],
)
@pytest.mark.filterwarnings("ignore:A window was not", "ignore:stft with return_complex")
def test_frames_are_transformed_as_torch_does(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 50, dtype=torch.float64)
    length = options.get("win_length", 12)
    window = torch.hann_window(length, dtype=torch.float64) if options.get("window") else None
    given = {**options, "window": window, "return_complex": True}
    wanted, row = torch.stft(x, 12, **given), torch.stft(x[0], 12, **given)
    parts = x.stft(12, **{**given, "return_complex": False})
    with EXACT_SPECTRA.during(Plain()):
        torch.testing.assert_close(torch.stft(x, 12, **given), wanted, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(torch.stft(x[0], 12, **given), row, rtol=1e-12, atol=1e-12)
        found = x.stft(12, **{**given, "return_complex": False})
    torch.testing.assert_close(found, parts, rtol=1e-12, atol=1e-12)


def test_a_trace_keeps_sizes_open() -> None:
    with EXACT_SPECTRA.during(Plain()):
        traced = torch.jit.trace(Plain(), torch.randn(2, 6))  # type: ignore[no-untyped-call]  # torch's own
    x = torch.randn(3, 9)
    torch.testing.assert_close(traced(x), x, rtol=1e-5, atol=1e-5)


BEYOND_FLOAT64 = evidence_of(Symptom.FLOAT64_ROUNDOFF)
SMALL = -torch.logspace(-7, 2, 2000)
CALLS = [
    lambda x: functional.elu(x, 1.0),
    lambda x: functional.elu(x, 0.7),
    lambda x: functional.celu(x, 1.3),
    lambda x: functional.selu(x, inplace=False),
    lambda x: nn.ELU()(x + 0),
    lambda x: nn.SELU(inplace=True)(x.clone()),
]


class PlainElu(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.elu(x)


@pytest.mark.parametrize("call", CALLS)
def test_small_numbers_keep_their_bits(call: object) -> None:
    assert callable(call)
    truth = call(SMALL.double())
    with EXACT_ELU.during(PlainElu()):
        found = call(SMALL)
    assert ((found - truth) / truth).abs().max() < 1e-6
    assert (((SMALL.exp() - 1) - torch.expm1(SMALL.double())) / SMALL).abs().max() > 1e-2


@pytest.mark.parametrize("call", CALLS)
def test_the_ends_and_the_positive_are_as_torch_gives_them(call: object) -> None:
    assert callable(call)
    x = torch.tensor([0.0, 1e-7, 3.0, 1e30, float("inf"), float("-inf"), float("nan"), -1e30])
    wanted = call(x)
    with EXACT_ELU.during(PlainElu()):
        torch.testing.assert_close(call(x), wanted, equal_nan=True)


def test_in_place_is_in_place() -> None:
    x = SMALL.clone()
    with EXACT_ELU.during(PlainElu()):
        given = functional.elu(x, inplace=True)
    assert given is x
    torch.testing.assert_close(x, functional.elu(SMALL))


def test_torchs_own_are_put_back() -> None:
    before = functional.elu, functional.celu, functional.selu

    def half_way() -> None:
        with EXACT_ELU.during(PlainElu()):
            assert functional.elu is not before[0]
            raise ValueError("half way")

    with pytest.raises(ValueError, match="half way"):
        half_way()
    assert (functional.elu, functional.celu, functional.selu) == before


OPEN_INVERSE = evidence_of(Symptom.OPEN_INVERSE)


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
    with LOOPED_INVERSE.during(net):
        made = torch.jit.script(net)
    assert "linalg_inv" not in str(made.inlined_graph)
    torch.testing.assert_close(made(x), net(x), rtol=1e-4, atol=1e-5)
    assert torch.linalg.inv(torch.eye(2)).equal(torch.eye(2))


@pytest.mark.parametrize(
    ("rewrite", "needed", "suited", "other"),
    [
        (EXACT_SPECTRA, ROUGH, [Plain()], nn.Linear(2, 2)),
        (
            EXACT_ELU,
            BEYOND_FLOAT64,
            [PlainElu(), nn.Sequential(nn.Linear(2, 2), nn.ELU()), nn.SELU(), nn.CELU()],
            nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.GELU()),
        ),
        (LOOPED_INVERSE, OPEN_INVERSE, [Filter()], nn.Linear(2, 2)),
    ],
)
def test_a_rewrite_suits_models_that_call_it_after_its_symptom(
    rewrite: Rewrite, needed: RefusalEvidence, suited: list[nn.Module], other: nn.Module
) -> None:
    assert all(rewrite.may_help(module, needed) for module in suited)
    assert not any(rewrite.may_help(module, RefusalEvidence()) for module in suited)
    assert not rewrite.may_help(other, needed)
