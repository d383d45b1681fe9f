"""Fourier transforms by matrices: as torch's own, at any size, dim and norm."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from modelc.capture.evidence import RefusalEvidence, Symptom, evidence_of
from modelc.capture.rewrite_table import REWRITE_TABLE

EXACT = next(rewrite for rewrite in REWRITE_TABLE if rewrite.name == "exact-spectra")
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
    with EXACT.during(Plain()):
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
    with EXACT.during(Plain()):
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
    with EXACT.during(Plain()):
        torch.testing.assert_close(torch.stft(x, 12, **given), wanted, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(torch.stft(x[0], 12, **given), row, rtol=1e-12, atol=1e-12)
        found = x.stft(12, **{**given, "return_complex": False})
    torch.testing.assert_close(found, parts, rtol=1e-12, atol=1e-12)


def test_a_trace_keeps_sizes_open() -> None:
    with EXACT.during(Plain()):
        traced = torch.jit.trace(Plain(), torch.randn(2, 6))  # type: ignore[no-untyped-call]  # torch's own
    x = torch.randn(3, 9)
    torch.testing.assert_close(traced(x), x, rtol=1e-5, atol=1e-5)


def test_afterwards_the_transforms_are_torchs() -> None:
    before = torch.fft.rfft
    with EXACT.during(Plain()):
        assert torch.fft.rfft is not before
    assert torch.fft.rfft is before


def test_it_suits_what_was_too_rough_and_calls_one() -> None:
    assert EXACT.may_help(Plain(), ROUGH)
    assert not EXACT.may_help(Plain(), RefusalEvidence())
    assert not EXACT.may_help(nn.Sequential(nn.Linear(2, 2)), ROUGH)
