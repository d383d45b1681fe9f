"""Bags, circular padding and attention, so that OpenVINO reads them too: as eager computes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from modelc.converters import onnx_model, openvino_ir
from modelc.core.contract import Job
from modelc.core.kinds import Capture

JobOf = Callable[..., Job]
pytestmark = [
    pytest.mark.needs("onnx"),
    pytest.mark.needs("openvino"),
    pytest.mark.filterwarnings("ignore"),  # torch's own; the pipeline sends them to a log
]
TABLE = torch.randn(9, 4, generator=torch.Generator().manual_seed(0))
OFFSETS = torch.tensor([0, 2, 2, 5])


class Calls(nn.Module):
    def __init__(self, call: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.call = call

    def forward(self, x: Tensor) -> Any:
        return self.call(x)


def agrees(job: Job, x: np.ndarray) -> None:
    """Raises where ONNX Runtime or OpenVINO says something else than eager."""
    onnx_model.convert(job)
    assert job.model is not None
    with torch.no_grad():
        (wanted,) = job.model.flat(torch.tensor(x))
    folder = job.folder / "ir"
    folder.mkdir()
    child = replace(job, parent=job.folder / "model.onnx", folder=folder, model=None)
    openvino_ir.convert(child)
    for target, path in ((onnx_model, child.parent), (openvino_ir, folder / "model.xml")):
        assert path is not None
        with target.open_runner(path, "cpu", job.signature) as runner:
            (found,) = runner.run({"x": x}).values()
        np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-5, atol=1e-6)


def bag(x: Tensor, offsets: Tensor = OFFSETS, **named: Any) -> Tensor:
    return functional.embedding_bag(x, TABLE, offsets, **named)


BAGS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda x: bag(x, mode="sum"),
    "mean": lambda x: bag(x, mode="mean"),
    "max": lambda x: bag(x, mode="max"),
    "padding": lambda x: bag(x, mode="sum", padding_idx=3),
    "mean-padding": lambda x: bag(x, mode="mean", padding_idx=3),
    "max-padding": lambda x: bag(x, mode="max", padding_idx=3),
    "padding-from-the-end": lambda x: bag(x, mode="mean", padding_idx=-6),
    "weights": lambda x: bag(x, mode="sum", per_sample_weights=x / 7),
    "ends": lambda x: bag(
        x,
        torch.cat([OFFSETS, torch.tensor([x.shape[0]])]),
        mode="sum",
        include_last_offset=True,
    ),
    "rows": lambda x: functional.embedding_bag(torch.stack([x, x.flip(0)]), TABLE, mode="mean"),
}


@pytest.mark.parametrize("name", BAGS)
def test_bags_are_as_eager_computes_them(job_of: JobOf, name: str) -> None:
    job = job_of(Calls(BAGS[name]), "x:int64[n=6..9]{0..8}", capture=Capture.EXPORT)
    agrees(job, np.array([3, 1, 8, 3, 0, 3, 2], np.int64))


PADS: dict[str, Callable[[Tensor], Tensor]] = {
    "one-side": lambda x: functional.pad(x, (0, 2), mode="circular"),
    "both": lambda x: functional.pad(x, (3, 1), mode="circular"),
    "two-dims": lambda x: functional.pad(x[:, None], (1, 2, 2, 0), mode="circular"),
    "reflect": lambda x: functional.pad(x, (1, 2), mode="reflect"),
    "constant": lambda x: functional.pad(x, (1, -1), value=2.5),
    "replicate": lambda x: functional.pad(x, (2, 1), mode="replicate"),
    "convolution": lambda x: functional.conv1d(
        functional.pad(x, (1, 1), mode="circular"), torch.ones(2, 3, 3)
    ),
}


@pytest.mark.parametrize("name", PADS)
def test_padding_is_as_eager_computes_it(job_of: JobOf, name: str) -> None:
    job = job_of(Calls(PADS[name]), "x:float32[batch=1..4,3,n=4..9]", capture=Capture.EXPORT)
    agrees(job, np.random.default_rng(0).standard_normal((2, 3, 7)).astype(np.float32))


HIDING = torch.tensor([[True, True, False], [False, False, False], [False, True, True]])


def hidden(mask: Tensor) -> Tensor:
    """As what transformers adds: -inf where nothing is to be seen."""
    return torch.zeros(mask.shape).masked_fill(~mask, float("-inf"))


@pytest.mark.parametrize("mask", [HIDING, hidden(HIDING)], ids=["bool", "float"])
def test_a_query_that_sees_no_key_gets_zeros(job_of: JobOf, mask: Tensor) -> None:
    def attend(x: Tensor) -> Tensor:
        q = x.view(2, 1, 3, 4)
        return functional.scaled_dot_product_attention(q, q + 1, q, attn_mask=mask)

    x = np.random.default_rng(1).standard_normal((2, 3, 4)).astype(np.float32)
    assert not attend(torch.tensor(x))[:, :, 1].any()
    agrees(job_of(Calls(attend), "x:float32[2,3,4]", capture=Capture.EXPORT), x)


@pytest.mark.parametrize("least", [-9.0, 0.0, 9.0])
def test_all_and_any_of_a_tensor(least: float, job_of: JobOf) -> None:
    def call(x: Tensor) -> Tensor:
        parts = torch._is_all_true(x > least), torch._is_any_true(x > least)
        return torch.stack(parts).float()

    job = job_of(Calls(call), "x:float32[n=1..8,3]", capture=Capture.EXPORT)
    agrees(job, np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32))


DIVISIONS: dict[str, Callable[[int], int]] = {
    "upwards": lambda size: -(-size // 4),
    "shifted": lambda size: (size - 9) // 4 + 9,
    "negative-step": lambda size: 30 + size // -4,
    "number-by-size": lambda size: 30 + -25 // size,
    "twice": lambda size: -((-size // 3) // 2),
    "downwards": lambda size: size // 4 + 1,
}


@pytest.mark.parametrize("size", [3, 7, 8, 13])
@pytest.mark.parametrize("name", DIVISIONS)
def test_sizes_are_divided_as_python_does(name: str, size: int, job_of: JobOf) -> None:
    def call(x: Tensor) -> Tensor:
        return functional.pad(x, (0, DIVISIONS[name](x.shape[1])))

    job = job_of(Calls(call), "x:float32[batch=1..4,n=1..48]", capture=Capture.EXPORT)
    agrees(job, np.random.default_rng(0).standard_normal((2, size)).astype(np.float32))


def test_a_division_of_what_is_not_below_zero_is_one_operator(job_of: JobOf) -> None:
    import onnx

    job = job_of(
        Calls(lambda x: functional.pad(x, (0, (x.shape[1] * 2 + 3) // 4))),
        "x:float32[batch=1..4,n=1..48]",
        capture=Capture.EXPORT,
    )
    onnx_model.convert(job)
    found = [node.op_type for node in onnx.load(job.folder / "model.onnx").graph.node]
    assert "Div" in found
    assert "Mod" not in found
