"""Complex tensors in two parts: as eager computes them, in ONNX Runtime and in OpenVINO."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from modelc.capture.refusals import RefusedError
from modelc.converters import onnx_model
from modelc.core.contract import Job

from .eager_agreement import JobOf, assert_agrees, job_of_calls

pytestmark = [
    pytest.mark.needs("onnx"),
    pytest.mark.needs("openvino"),
    pytest.mark.filterwarnings("ignore"),  # torch's own; the pipeline sends them to a log
]
SPEC = "x:float32[batch=1..4,rows=4..8,2,columns=4..8]"
SHAPES = ((2, 4, 2, 8), (1, 7, 2, 5), (3, 8, 2, 4))
NETS = 3
WEIGHT = torch.randn(2, 3, 4, 3, dtype=torch.cfloat, generator=torch.Generator().manual_seed(0))


class FourierOperator(nn.Module):
    """A layer of a two-dimensional Fourier neural operator."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(WEIGHT.clone())

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 2, 1, 3)
        spectrum = torch.fft.rfft2(x)
        shape = (x.shape[0], 3, x.shape[2], x.shape[3] // 2 + 1)
        out = torch.zeros(shape, dtype=torch.cfloat)
        low = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :4, :3], self.weight)
        out[:, :, :4, :3] = low
        out[:, :, -2:, :3] = low[:, :, :2] * 0.5
        found: Tensor = torch.fft.irfft2(out, s=(x.shape[2], x.shape[3]))
        return found


def numbers(x: Tensor) -> Tensor:
    return torch.complex(x[:, :, 0], x[:, :, 1])


CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "fft2": lambda x: torch.fft.fft2(x, dim=(1, 3)),
    "fftn": lambda x: torch.fft.fftn(x, dim=(1, 2, 3), norm="ortho"),
    "ifft2": lambda x: torch.fft.ifft2(numbers(x)),
    "ifftn": lambda x: torch.fft.ifftn(numbers(x), norm="forward"),
    "rfft2": lambda x: torch.fft.rfft2(x, dim=(3, 1)),
    "irfft2": lambda x: torch.fft.irfft2(
        torch.fft.rfft2(x, dim=(1, 3)) * 0.5, s=(x.shape[1], x.shape[3]), dim=(1, 3)
    ),
    "hfft": lambda x: torch.fft.hfft(numbers(x), dim=1),
    "fft_of_more": lambda x: torch.fft.fft(x, n=x.shape[1] + 2, dim=1),
    "einsum": lambda x: torch.einsum("brc,brd->bcd", numbers(x), numbers(x).conj()),
    "matmul": lambda x: numbers(x) @ numbers(x).mH,
    "abs": lambda x: numbers(x * 1e25).abs() * 1e-25,
    "angle": lambda x: numbers(x).angle(),
    "exp": lambda x: numbers(x).exp(),
    "log": lambda x: numbers(x).log(),
    "polar": lambda x: torch.polar(x[:, :, 0].abs(), x[:, :, 1]),
    "pow": lambda x: numbers(x) ** 3,
    "pow_of_zero": lambda x: (numbers(x) * 0) ** 2,
    "pow_without_effect": lambda x: (numbers(x) * 0) ** 0 + (numbers(x) * 0) ** 0.5,
    "integers_times_j": lambda x: torch.arange(x.shape[3]) * 0.5j + numbers(x),
    "div": lambda x: numbers(x) / (numbers(x).flip(1) + 3j),
    "div_real": lambda x: numbers(x) / (x[:, :, 0].abs() + 1),
    "rdiv": lambda x: 2.0 / (numbers(x) + 5),
    "sub": lambda x: x[:, :, 0] - numbers(x),
    "mul_integers": lambda x: numbers(x) * torch.arange(x.shape[3]),
    "mul_inf": lambda x: numbers(x / x[:, :, 1:].relu()) * 2.0,
    "where": lambda x: torch.where(x[:, :, 0] > 0, numbers(x), 1j * numbers(x)),
    "where_real": lambda x: torch.where(x[:, :, 0] > 0, numbers(x), x[:, :, 1]),
    "pad": lambda x: nn.functional.pad(numbers(x), (1, 2)),
    "roll": lambda x: numbers(x).roll((1, -1), (1, 2)),
    "flip": lambda x: numbers(x).flip(-1),
    "cat_real": lambda x: torch.cat([numbers(x), x[:, :, 0].to(torch.cfloat)], 1),
    "stack": lambda x: torch.stack([numbers(x), numbers(x).conj()], -1),
    "sum": lambda x: numbers(x).sum((0, 2)),
    "mean": lambda x: torch.complex(x, x * 2).mean(2, keepdim=True),
    "cumsum": lambda x: numbers(x).cumsum(1),
    "split": lambda x: torch.split(torch.complex(x, x * 2), 1, 2)[1],
    "masked_fill": lambda x: numbers(x).masked_fill(x[:, :, 0] > 0, 2.0),
    "full": lambda x: numbers(x) + torch.full((x.shape[3],), 1 - 2j),
    "view_as_complex": lambda x: torch.view_as_complex(x.transpose(2, 3).contiguous()),
    "to_device": lambda x: numbers(x).to(x.device) * 2,
}


def assert_complex_agrees(job: Job) -> None:
    feeds = [
        {"x": np.random.default_rng(seed).normal(size=shape).astype(np.float32)}
        for seed, shape in enumerate(SHAPES)
    ]
    assert_agrees(job, feeds, rtol=2e-4, atol=2e-5, openvino=True)


@pytest.mark.parametrize("first", range(NETS))
def test_complex_numbers_are_as_eager_computes_them(job_of: JobOf, first: int) -> None:
    calls = {name: CALLS[name] for name in list(CALLS)[first::NETS]}
    assert_complex_agrees(job_of_calls(job_of, calls, SPEC))


def test_fourier_operator_of_any_size(job_of: JobOf) -> None:
    assert_complex_agrees(job_of(FourierOperator(), SPEC))


def test_a_real_program_is_returned_unchanged(job_of: JobOf) -> None:
    from modelc.capture.capture_strategies import capture_exported_program
    from modelc.converters.onnx_complex import split_complex

    program = capture_exported_program(job_of_calls(job_of, {"relu": torch.relu}, SPEC)).program
    assert split_complex(program) is program


@pytest.mark.parametrize(
    ("operator", "call"),
    [
        ("view", lambda x: torch.complex(x, x).view(torch.float32)),
        ("linalg_eig", lambda x: torch.linalg.eigvals(x[:, :, 0] @ x[:, :, 1].mT).abs()),
    ],
)
def test_an_operator_without_a_rule_is_named(
    job_of: JobOf, operator: str, call: Callable[[Tensor], Tensor]
) -> None:
    with pytest.raises(RefusedError, match=operator):
        onnx_model.convert(job_of_calls(job_of, {operator: call}, SPEC))
