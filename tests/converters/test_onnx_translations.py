"""modelc's own ONNX translations: each operator as eager computes it, by both exporters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from modelc.core.kinds import Capture

from .eager_agreement import JobOf, assert_agrees, job_of_calls

pytestmark = [
    pytest.mark.needs("onnx"),
    pytest.mark.filterwarnings("ignore"),  # torch's own; the pipeline sends them to a log
]
SPEC = "x:float32[batch=1..4,seq=2..6,3]"
EXCHANGED = torch.eye(3)[[1, 2, 0]]  # a zero is the first pivot
EDGES = torch.tensor([-1.0, -0.5, 0.0, 0.5])


def drawn_values() -> np.ndarray:
    """Values with ties, among them the edges themselves."""
    drawn = np.random.default_rng(0).normal(size=(3, 5, 3))
    return np.asarray(np.round(drawn * 2) / 2, dtype=np.float32)


def mask(x: Tensor) -> Tensor:
    """Real factors of half a spectrum over the second dim."""
    return 0.25 * torch.arange(x.shape[1] // 2 + 1)[None, :, None]


def square(x: Tensor) -> Tensor:
    """Matrices of 3 rows whose rows eager exchanges."""
    return x.transpose(1, 2) @ x + EXCHANGED * 5


CALLS: dict[str, Callable[[Tensor], Any]] = {
    "cumprod": lambda x: torch.cumprod(x, dim=1),
    "cumprod-last": lambda x: torch.cumprod(x, dim=-1),
    "cumprod-first": lambda x: torch.cumprod(x, dim=0),
    "cummax": lambda x: torch.cummax(x, dim=1)[0],
    "cummax-places": lambda x: torch.cummax(x, dim=1)[1],
    "cummax-last": lambda x: torch.cummax(x, dim=-1)[1],
    "searchsorted": lambda x: torch.searchsorted(x.abs().cumsum(-1), x.contiguous()),
    "searchsorted-right": lambda x: torch.searchsorted(x.abs().cumsum(-1), x.abs(), right=True),
    "bucketize": lambda x: torch.bucketize(x, EDGES),
    "bucketize-right": lambda x: torch.bucketize(x, EDGES, right=True, out_int32=True),
    "bucketize-nan": lambda x: torch.bucketize(x / x.abs(), EDGES),
    "cdist": lambda x: torch.cdist(x, x * 0.5),
    "cdist-1": lambda x: torch.cdist(x, x * 0.5, p=1.0),
    "logcumsumexp": lambda x: torch.logcumsumexp(x * 1000, dim=1),
    "hypot": lambda x: torch.hypot(x * 1e30, x.flip(1) * 1e30) * 1e-30,
    "hypot-of-none": lambda x: torch.hypot(x * 0, x * 0),
    "hypot-of-inf": lambda x: torch.hypot(x / x.relu(), x.flip(1)),
    "inverse": lambda x: torch.linalg.inv(square(x)),
    "inverse-exchanged": lambda x: torch.inverse(EXCHANGED * (1 + x[:, :1, :1].abs())),
    "det": lambda x: torch.det(square(x)),
    "det-exchanged": lambda x: torch.linalg.det(EXCHANGED * (1 + x[:, :1, :1].abs())),
    "det-of-none": lambda x: torch.det(x.mT @ x * 0),
    "slogdet-sign": lambda x: torch.linalg.slogdet(square(x))[0],
    "slogdet": lambda x: torch.linalg.slogdet(square(x))[1],
    "logdet": lambda x: torch.logdet(square(x)),
    "solve": lambda x: torch.linalg.solve(square(x), x.mT),
    "solve-of-rows": lambda x: torch.linalg.solve(square(x), x[:, 0]),
    "solve-right": lambda x: torch.linalg.solve(square(x), x, left=False),
    "triangle": lambda x: torch.linalg.solve_triangular(square(x), x.mT, upper=False),
    "triangle-upper": lambda x: torch.linalg.solve_triangular(square(x)[0], x.mT, upper=True),
    "triangle-right": lambda x: torch.linalg.solve_triangular(square(x), x, upper=True, left=False),
    "triangle-of-ones": lambda x: torch.linalg.solve_triangular(
        square(x) / 9, x.mT, upper=False, unitriangular=True
    ),
    "argsort-stable": lambda x: torch.argsort(x, dim=1, stable=True),
    "argsort-falling": lambda x: torch.argsort(x, dim=1, stable=True, descending=True),
    "irfft": lambda x: torch.fft.irfft(torch.fft.rfft(x, dim=1) * (1 + 0.5j), n=5, dim=1),
    "irfft-even": lambda x: torch.fft.irfft(torch.fft.rfft(torch.cat([x, x], -1)) * 0.1j, n=6),
    "irfft-halved": lambda x: torch.fft.irfft(torch.fft.rfft(x, dim=1) * 0.5, n=5, dim=1),
    "irfft-of-sizes": lambda x: torch.fft.irfft(
        torch.fft.rfft(x, dim=1) * 0.5, n=x.shape[1], dim=1
    ),
    "irfft-masked": lambda x: torch.fft.irfft(mask(x) * torch.fft.rfft(x, dim=1), n=5, dim=1),
    "irfft-shifted": lambda x: torch.fft.irfft(
        (torch.fft.rfft(x, dim=1) - mask(x)) / (1 + mask(x)), n=5, dim=1
    ),
    "roll-of-all": lambda x: torch.roll(x, x.shape[1] // 2 + 1),
    "roll-of-sizes": lambda x: torch.roll(x, (x.shape[1] // 2, -x.shape[0], 1), (1, 0, -1)),
    "fftshift": lambda x: torch.fft.fftshift(x * 2, dim=(0, 1)),
    "mT": lambda x: (x * 2).mT,
    "bilinear": lambda x: torch.nn.functional.bilinear(x, x + 1, torch.ones(2, 3, 3)),
}
NETS = 4
# the TorchScript exporter has no complex numbers, and does not know these sizes
UNSEEN = (
    "inverse-exchanged",
    "det-exchanged",
    "solve-of-rows",
    "roll-of-sizes",
    "roll-of-all",
    "fftshift",
)


CAPTURES = pytest.mark.parametrize("capture", [Capture.EXPORT, Capture.TRACE])


@CAPTURES
@pytest.mark.parametrize("first", range(NETS))
def test_operators_are_as_eager_computes_them(job_of: JobOf, first: int, capture: Capture) -> None:
    names = [
        name
        for name in list(CALLS)[first::NETS]
        if capture is Capture.EXPORT or (name not in UNSEEN and not name.startswith("irfft"))
    ]
    job = job_of_calls(job_of, {name: CALLS[name] for name in names}, SPEC, capture)
    assert_agrees(job, [{"x": drawn_values()}])


NEAR_ZERO: dict[str, Callable[[Tensor], Tensor]] = {
    "log1p": torch.log1p,
    "log1p-of-integers": lambda x: torch.log1p((x * 1e8).long()),
    "log1p-of-doubles": lambda x: torch.log1p(x.double()),
    "expm1": torch.expm1,
}


@CAPTURES
def test_small_numbers_keep_their_digits(job_of: JobOf, capture: Capture) -> None:
    """1 + 1e-8 is 1 in float32, and so is exp(1e-8)."""
    small = np.array([1e-8, 3.3e-5, 1e-3, 0.02, 0.3, 0.499, 0.501, 0.9, 7.0], np.float32)
    x = np.tile(small, 4)[:30].reshape(2, 5, 3)
    assert_agrees(job_of_calls(job_of, NEAR_ZERO, SPEC, capture), [{"x": x}], rtol=1e-6, atol=0)


REMAINDERS: dict[str, Callable[[Tensor], Tensor]] = {
    "float": lambda x: x % 0.1,
    "negative": lambda x: torch.remainder(x, -0.1),
    "tensor": lambda x: torch.remainder(x, x.flip(0)),
    "of-number": lambda x: torch.remainder(1.0, x),
    "whole": lambda x: (x * 10).round().long() % 3,
    "whole-by-float": lambda x: (x * 10).round().long() % 0.7,
    "double": lambda x: x.double() % 0.1,
}


@CAPTURES
def test_remainder_of_multiples_is_exact(job_of: JobOf, capture: Capture) -> None:
    x = (np.arange(-14.5, 15) * 0.2).astype(np.float32).reshape(2, 5, 3)
    assert_agrees(job_of_calls(job_of, REMAINDERS, SPEC, capture), [{"x": x}], rtol=0, atol=0)


TENTHS = ((np.arange(121) - 60) * np.float32(0.1)).astype(np.float32)  # -6..6
UNSEEN_BY_OPENVINO = ("double", "half", "rest-double")  # it computes them in float32


def tame(x: Tensor) -> Tensor:
    """Finite values, small enough for integers."""
    return x.nan_to_num(0).clamp(-1000, 1000)


QUOTIENTS: dict[str, Callable[[Tensor], Tensor]] = {
    "number": lambda x: x // 0.1,
    "negative": lambda x: torch.floor_divide(x, -0.1),
    "mode": lambda x: torch.div(x, 0.1, rounding_mode="floor"),
    "tensor": lambda x: x // (x * 0 - 0.1),
    "tensor-mode": lambda x: torch.divide(x, x.flip(0) / 7, rounding_mode="floor"),
    "none": lambda x: torch.div(x, 0.0, rounding_mode="floor"),
    "of-number": lambda x: torch.floor_divide(torch.tensor(1.0), x),
    "whole-by-float": lambda x: (tame(x) * 10).round().long() // 0.7,
    "whole": lambda x: torch.div((tame(x) * 10).round().long(), 3, rounding_mode="floor"),
    "towards-0": lambda x: torch.div(tame(x), 0.1, rounding_mode="trunc"),
    "double": lambda x: x.double() // 0.1,
    "half": lambda x: x.half() // (x * 0 + 0.1).half(),
}


@CAPTURES
def test_quotients_of_multiples_round_down_exactly(job_of: JobOf, capture: Capture) -> None:
    job = job_of_calls(job_of, QUOTIENTS, "x:float32[n=2..200]", capture)
    others = np.random.default_rng(1).normal(size=99).astype(np.float32) * 1000
    ends = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1e-40, 3e38, -3e38], np.float32)
    assert_agrees(job, [{"x": TENTHS}, {"x": others}, {"x": ends}], rtol=0, atol=0)


def test_a_trace_divides_halves_by_a_number_in_float32(job_of: JobOf) -> None:
    """The dynamo exporter rounds the number to float16 first."""
    calls = {"half": lambda x: x.half() // 0.1}
    job = job_of_calls(job_of, calls, "x:float32[n=2..200]", Capture.TRACE)
    assert_agrees(job, [{"x": TENTHS}], rtol=0, atol=0)


@pytest.mark.needs("openvino")
def test_openvino_divides_multiples_as_eager(job_of: JobOf) -> None:
    calls = {**QUOTIENTS, **{f"rest-{name}": call for name, call in REMAINDERS.items()}}
    calls = {name: call for name, call in calls.items() if name not in UNSEEN_BY_OPENVINO}
    job = job_of_calls(job_of, calls, "x:float32[n=2..200]")
    others = np.random.default_rng(1).normal(size=99).astype(np.float32) * 1000
    assert_agrees(job, [{"x": TENTHS}, {"x": others}], rtol=0, atol=0, openvino=True)


class Same(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if torch.equal(x, x.flip(1)):
            return x * 0
        return x + 1


class Broad(nn.Module):
    """Compares tensors that are equal only when broadcast."""

    def forward(self, x: Tensor) -> Tensor:
        if torch.equal(x, x[:1]):
            return x * 0
        return x + 1


@pytest.mark.parametrize("net", [Same, Broad])
def test_equal_decides_a_branch_of_a_script(job_of: JobOf, net: type[nn.Module]) -> None:
    x = drawn_values()
    feeds = [{"x": one} for one in (x, x + x[:, ::-1], np.ones((3, 5, 3), np.float32))]
    assert_agrees(job_of(net(), SPEC, capture=Capture.SCRIPT), feeds)


class Steps(nn.Module):
    """Cells ask `input.dim() in (1, 2)`, in a loop over a size."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(x.shape[0], 4)
        for step in range(x.shape[1]):
            state = self.cell(x[:, step], state)
        return state


class LongSteps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(3, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        state, cell = torch.zeros(x.shape[0], 4), torch.zeros(x.shape[0], 4)
        for step in range(x.shape[1]):
            state, cell = self.cell(x[:, step], (state, cell))
        return state, cell


@pytest.mark.parametrize(
    "net",
    [
        Steps(nn.GRUCell(3, 4)),
        Steps(nn.GRUCell(3, 4, bias=False)),
        Steps(nn.RNNCell(3, 4)),
        Steps(nn.RNNCell(3, 4, nonlinearity="relu")),
        LongSteps(),
    ],
    ids=["gru", "gru-without-bias", "tanh", "relu", "lstm"],
)
def test_a_cell_in_a_scripted_loop(job_of: JobOf, net: nn.Module) -> None:
    job = job_of(net, SPEC, capture=Capture.SCRIPT)
    assert_agrees(job, [{"x": drawn_values()}])
