"""Half precision inside an FP32 model: the file opens and computes as it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from modelc.converters import onnx_model
from modelc.core.contract import Job
from modelc.core.kinds import Capture

pytestmark = [
    pytest.mark.needs("onnx"),
    pytest.mark.filterwarnings("ignore"),  # the frameworks' own; the pipeline logs them
]
JobOf = Callable[..., Job]


class Adapted(nn.Module):
    """A layer in float32 and one that autocast brings to bfloat16."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.body, self.adapter = nn.Linear(6, width), nn.Linear(6, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            adapted = self.adapter(x)
        return torch.add(out, adapted.float())


@pytest.fixture(params=[Capture.EXPORT, Capture.TRACE])
def job(job_of: JobOf, request: pytest.FixtureRequest) -> Job:
    return job_of(Adapted(), "x:float32[batch=1..4,6]", capture=request.param)


def test_onnx_runtime_agrees_with_eager_by_default(job: Job) -> None:
    (note,) = onnx_model.convert(job).notes
    assert {"bfloat16", "float32"} <= set(note.split())
    session = onnxruntime.InferenceSession(job.folder / "model.onnx")
    (found,) = session.run(None, {"x": job.example["x"]})
    assert job.model is not None
    with torch.no_grad():
        (wanted,) = job.model.flat(torch.from_numpy(job.example["x"]))
    assert np.abs(found - wanted.numpy()).max() < 1e-5


def test_external_weights_stay_external(job_of: JobOf) -> None:
    job = job_of(Adapted(64), "x:float32[batch=1..4,6]", external_data=True)
    files = onnx_model.convert(job).files
    assert ("model.onnx.data", "data") in files
    assert onnxruntime.InferenceSession(job.folder / "model.onnx").get_inputs()


def test_no_file_of_weights_is_left_where_all_are_in_the_model(job_of: JobOf) -> None:
    job = job_of(Adapted(), "x:float32[batch=1..4,6]", external_data=True)
    files = {name for name, _ in onnx_model.convert(job).files}
    assert files == {one.name for one in job.folder.iterdir()}


def test_a_model_without_half_is_unchanged(job_of: JobOf) -> None:
    job = job_of(nn.Linear(6, 4), "x:float32[batch=1..4,6]")
    assert not onnx_model.convert(job).notes
    model = onnx.load(Path(job.folder / "model.onnx"))
    assert [node.op_type for node in model.graph.node] == ["Gemm"]
