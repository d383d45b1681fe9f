"""Operators that a scripted or traced graph has by another name: as eager computes them."""

from __future__ import annotations

import textwrap
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from modelc.converters.onnx_torchscript_ops import TORCHSCRIPT_OPS
from modelc.core.kinds import Capture

from .eager_agreement import JobOf, assert_agrees

if TYPE_CHECKING:
    from torch import nn

pytestmark = [
    pytest.mark.needs("onnx"),
    pytest.mark.filterwarnings("ignore"),  # torch's own; the pipeline sends them to a log
]
SPECS = ("x:float32[batch=1..4,seq=2..6]", "y:float32[batch=1..4,seq=2..6]")
CALLS = {
    "absolute": "torch.absolute(x)",
    "acosh": "torch.acosh(x.abs() + 1)",
    "addcdiv": "torch.addcdiv(x, y, y.abs() + 1, value=0.5)",
    "addmv": "torch.addmv(x[0], x.t(), y[:, 0], beta=0.5, alpha=2)",
    "arccos": "torch.arccos(x.tanh())",
    "arccosh": "torch.arccosh(x.abs() + 1)",
    "arcsin": "torch.arcsin(x.tanh())",
    "arcsinh": "torch.arcsinh(x)",
    "arctan": "torch.arctan(x)",
    "arctan2": "torch.arctan2(x, y)",
    "arctan2-of-zeros": "torch.arctan2(torch.relu(x) * y.sign(), torch.relu(y) * x.sign())",
    "arctan2-far-out": "torch.arctan2(x / y.relu(), y / x.relu())",
    "arctanh": "torch.arctanh(x * 0.1)",
    "argwhere": "torch.argwhere(x > 0)",
    "asinh": "torch.asinh(x)",
    "atanh": "torch.atanh(x * 0.1)",
    "clip": "torch.clip(x, -0.5, 0.5)",
    "clip-of-one": "torch.clip(x, min=0.5)",
    "clip-of-tensors": "torch.clip(x, y.abs().neg(), y.abs())",
    "clip-in-place": "(x + 1).clip_(0.0, 1.0)",
    "column_stack": "torch.column_stack((x[:, 0], y, x))",
    "concat": "torch.concat((x, y), dim=1)",
    "concatenate": "torch.concatenate((x, y), dim=-1)",
    "cosh": "torch.cosh(x)",
    "deg2rad": "torch.deg2rad(x)",
    "diff": "torch.diff(x, dim=1)",
    "diff-of-more": "torch.diff(x, n=2, dim=0, prepend=y, append=x)",
    "div": "torch.div(x, y.abs() + 1)",
    "div-down": "torch.div(x, 0.1, rounding_mode='floor')",
    "div-truncated": "torch.div(x, y.abs() + 1, rounding_mode='trunc')",
    "divide": "torch.divide(x, y.abs() + 1)",
    "divide-down": "torch.divide(x, 0.5, rounding_mode='floor')",
    "dstack": "torch.dstack((x, y))",
    "dstack-of-rows": "torch.dstack((x[0], y[0]))",
    "erfc": "torch.erfc(x)",
    "exp2": "torch.exp2(x)",
    "fix": "torch.fix(x * 3)",
    "fliplr": "torch.fliplr(x)",
    "flipud": "torch.flipud(x)",
    "floor_divide": "torch.floor_divide(x, 0.1)",
    "floor_divide-of-tensors": "torch.floor_divide(x, y.abs() + 0.5)",
    "fmax": "torch.fmax(x, y / (x > 0).float() * 0)",
    "fmin": "torch.fmin(x / (y > 0).float() * 0, y)",
    "frac": "torch.frac(x * 3)",
    "greater": "torch.greater(x, y)",
    "greater_equal": "torch.greater_equal(x, 0.5)",
    "heaviside": "torch.heaviside(x, y)",
    "inner": "torch.inner(x, y)",
    "isneginf": "torch.isneginf(x / y.relu())",
    "isposinf": "torch.isposinf(x / y.relu())",
    "less": "torch.less(x, y)",
    "less_equal": "torch.less_equal(x, y)",
    "linalg_matmul": "torch.linalg.matmul(x, y.t())",
    "linspace": "x[:, :1] + torch.linspace(0.1, x.shape[1], 7)",
    "linspace-of-whole": "x[:, :1].long() + torch.linspace(0, 8, 5, dtype=torch.int64)",
    "logaddexp": "torch.logaddexp(x * 50, y * 50)",
    "logaddexp-of-none": "torch.logaddexp(torch.log(x.relu()), torch.log(y.relu()))",
    "logaddexp2": "torch.logaddexp2(x, y)",
    "moveaxis": "torch.moveaxis(x.unsqueeze(0), 0, 2)",
    "msort": "torch.msort(x)",
    "multiply": "torch.multiply(x, y)",
    "negative": "torch.negative(x)",
    "not_equal": "torch.not_equal(x, y)",
    "positive": "torch.positive(x) + 1",
    "rad2deg": "torch.rad2deg(x)",
    "ravel": "torch.ravel(x)",
    "row_stack": "torch.row_stack((x, y))",
    "sgn": "torch.sgn(x)",
    "sinc": "torch.sinc(x)",
    "sinh": "torch.sinh(x)",
    "special_erf": "torch.special.erf(x)",
    "special_erfc": "torch.special.erfc(x)",
    "special_exp2": "torch.special.exp2(x)",
    "special_expit": "torch.special.expit(x)",
    "special_expm1": "torch.special.expm1(x * 1e-4)",
    "special_log1p": "torch.special.log1p(x.abs() * 1e-4)",
    "special_log_softmax": "torch.special.log_softmax(x, 1)",
    "special_logsumexp": "torch.special.logsumexp(x, 1)",
    "special_round": "torch.special.round(x)",
    "special_sinc": "torch.special.sinc(x)",
    "special_softmax": "torch.special.softmax(x, 1)",
    "special_xlogy": "torch.special.xlogy(x, y.abs())",
    "subtract": "torch.subtract(x, y, alpha=2)",
    "swapaxes": "torch.swapaxes(x, 0, 1)",
    "swapdims": "torch.swapdims(x, 0, -1)",
    "take_along_dim": "torch.take_along_dim(x, x.argsort(dim=1)[:1], dim=1)",
    "take_along_dim-flat": "torch.take_along_dim(x, x.argsort(dim=1))",
    "trace": "torch.trace(x)",
    "trunc": "torch.trunc(x * 3)",
    "xlogy": "torch.xlogy(x, y.abs())",
}


def net_of(call: str, folder: Path) -> nn.Module:
    """A module that can be scripted, as its source lies in a file."""
    file = folder / "net.py"
    file.write_text(
        textwrap.dedent(f"""
        import torch

        class Net(torch.nn.Module):
            def forward(self, x: torch.Tensor, y: torch.Tensor):
                return {call}
        """)
    )
    spec = util.spec_from_file_location("net", file)
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    net: nn.Module = module.Net()
    return net


def feed() -> dict[str, np.ndarray]:
    """Values with ties and zeros."""
    drawn = np.random.default_rng(0).normal(size=(2, 3, 5))
    x, y = (np.round(drawn * 2) / 2 + 0.0).astype(np.float32)
    return {"x": x, "y": y}


@pytest.mark.parametrize("capture", [Capture.SCRIPT, Capture.TRACE])
@pytest.mark.parametrize("name", CALLS)
def test_a_name_is_written_as_eager_computes_it(
    job_of: JobOf, tmp_path: Path, name: str, capture: Capture
) -> None:
    job = job_of(net_of(CALLS[name], tmp_path), *SPECS, capture=capture)
    assert_agrees(job, [feed()], rtol=2e-6)


def test_every_name_has_a_call() -> None:
    assert {f"aten::{name.partition('-')[0]}" for name in CALLS} == set(TORCHSCRIPT_OPS)
