"""An artifact rejects sizes outside its ranges in its own runtime, without modelc's runner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from modelc.converters import exported_program, onnx_model, openvino_ir
from modelc.converters.openvino_reader import check_bounds
from modelc.core.contract import Job
from modelc.core.errors import ConversionError, ErrorCode, RunnerError

from ..reasons import has_code

pytestmark = pytest.mark.filterwarnings("ignore")  # the frameworks' own; the pipeline logs them
JobOf = Callable[..., Job]


class Mean(nn.Module):
    """Accepts any size."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(4, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        mean: Tensor = self.line(x).mean(1)
        return mean + y.sum()


INPUTS = ("x:float32[batch=2..5,t=1..3,4]", "y:float32[n=t+1,k=2..6]")


def shapes(*, batch: int = 3, t: int = 2, n: int = 3, k: int = 4) -> dict[str, tuple[int, ...]]:
    return {"x": (batch, t, 4), "y": (n, k)}


def feed_of(sizes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    return {name: np.ones(size, np.float32) for name, size in sizes.items()}


INSIDE = [
    shapes(batch=2, t=1, n=2, k=2), shapes(batch=5, t=3, n=4, k=6), shapes(),
]  # fmt: skip
OUTSIDE = [
    shapes(batch=1), shapes(batch=6), shapes(t=4, n=5), shapes(k=1), shapes(k=7),
    shapes(n=1), shapes(n=5), shapes(batch=50, t=30, n=31, k=60),
]  # fmt: skip


@pytest.fixture
def ir(job_of: JobOf) -> Path:
    """The IR of `Mean`, from its ONNX."""
    job = job_of(Mean(), *INPUTS)
    onnx_model.convert(job)
    folder = job.folder / "ir"
    folder.mkdir()
    openvino_ir.convert(replace(job, parent=job.folder / "model.onnx", folder=folder, model=None))
    return folder / "model.xml"


@pytest.mark.needs("openvino")
@pytest.mark.needs("onnx")
@pytest.mark.slow
def test_openvino_and_our_runner_reject_sizes_outside(ir: Path, job_of: JobOf) -> None:
    import openvino

    model = openvino.Core().compile_model(str(ir), "CPU")
    for inside in INSIDE:
        assert model(feed_of(inside))[0].shape == (inside["x"][0], 3)
    request = model.create_infer_request()
    for outside in OUTSIDE:
        feed = feed_of(outside)
        with pytest.raises(RuntimeError, match="incompatible"):
            model(feed)
        with pytest.raises(RuntimeError, match="incompatible"):
            request.infer({name: openvino.Tensor(array) for name, array in feed.items()})
    with openvino_ir.open_runner(ir, "cpu", job_of(Mean(), *INPUTS).signature) as runner:
        assert list(runner.run(feed_of(INSIDE[0]))) == ["output"]
        with pytest.raises(RunnerError, match="incompatible"):
            runner.run(feed_of(OUTSIDE[0]))


@pytest.mark.needs("pt2")
def test_a_pt2_rejects_sizes_outside(job_of: JobOf) -> None:
    job = job_of(Mean(), *INPUTS)
    exported_program.convert(job)
    module = torch.export.load(job.folder / "model.pt2").module()
    for inside in INSIDE:
        tensors = [torch.ones(size) for size in inside.values()]
        assert module(*tensors)[0].shape == (inside["x"][0], 3)
    for outside in OUTSIDE:
        with pytest.raises((AssertionError, RuntimeError)):
            module(*(torch.ones(size) for size in outside.values()))


@pytest.mark.needs("openvino")
def test_a_dim_that_openvino_made_constant_is_rejected(job_of: JobOf) -> None:
    import openvino
    from openvino import opset13

    x = opset13.parameter([3, 2, 4], np.float32, name="x")
    x.output(0).set_names({"x"})
    model = openvino.Model([opset13.relu(x)], [x], "fixed")
    with pytest.raises(
        ConversionError,
        check=has_code(ErrorCode.UNSUPPORTED, option="static", naming="'batch'"),
    ) as caught:
        check_bounds(model, job_of(Mean(), *INPUTS).signature)
    assert "--static batch" in caught.value.hint
