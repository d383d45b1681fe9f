"""OpenVINO IR: bounds, half weights, its own record, exact arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor, nn

from modelc.converters import onnx_model, openvino_ir
from modelc.core.contract import Feed, Job, Outputs
from modelc.core.kinds import Capture
from modelc.pipeline.manifest_file import read_manifest

pytestmark = [
    pytest.mark.needs("openvino"),
    pytest.mark.needs("onnx"),
    pytest.mark.filterwarnings("ignore"),  # the frameworks' own; the pipeline logs them
]
JobOf = Callable[..., Job]
Exports = Callable[[str], Path]


def built(job: Job) -> Job:
    """The job whose IR was converted from the ONNX of `job`."""
    onnx_model.convert(job)
    folder = job.folder / "ir"
    folder.mkdir()
    child = replace(job, parent=job.folder / "model.onnx", folder=folder, model=None)
    openvino_ir.convert(child)
    return child


def run(job: Job, feed: Feed | None = None) -> Outputs:
    with openvino_ir.open_runner(job.folder / "model.xml", "cpu", job.signature) as runner:
        return runner.run(job.example if feed is None else feed)


def test_inputs_and_outputs_have_the_bounds_of_the_signature(exports: Exports) -> None:
    found = openvino_ir.inspect(exports("bert") / "model.xml")
    assert {(info.name, info.dtype, info.dims) for info in found.inputs} == {
        ("ids", "int64", ("1..4", "2..16")),
        ("mask", "int64", ("1..4", "2..16")),
    }
    assert {(info.name, info.dtype, info.dims[0]) for info in found.outputs} == {
        ("hidden", "float32", "1..4"),
        ("pooled", "float32", "1..4"),
    }


def test_a_dim_without_bounds_has_none_in_the_ir(job_of: JobOf) -> None:
    job = built(job_of(nn.Linear(6, 2), "x:float32[rows,6]", capture=Capture.TRACE))
    assert openvino_ir.inspect(job.folder / "model.xml").inputs[0].dims == ("?", "6")


def test_half_weights_take_half_the_bytes(exported_digits: Path) -> None:
    full = (exported_digits / "model.bin").stat().st_size
    half = (exported_digits / "model.fp16.bin").stat().st_size
    assert half == pytest.approx(full / 2, rel=0.02)


def test_the_metadata_has_the_digest_of_the_checkpoint_and_the_precision(
    exported_digits: Path,
) -> None:
    manifest = read_manifest(exported_digits)
    assert manifest is not None
    found = openvino_ir.inspect(exported_digits / "model.fp16.xml").metadata
    assert found["checkpoint"] == manifest.checkpoint.digest
    assert found["precision"] == "fp16"


def test_the_ir_of_a_script_keeps_its_branch(exports: Exports) -> None:
    assert openvino_ir.inspect(exports("gate") / "model.xml").operators["If"] == 1


class Twins(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = x * 2
        return {"first": y, "second": y, "same": x}


def test_one_tensor_under_two_names_stays_two_outputs(job_of: JobOf) -> None:
    names = ("first", "second", "same")
    job = built(job_of(Twins(), "x:float32[batch=1..8,6]", capture=Capture.TRACE, outputs=names))
    outputs = run(job)
    assert tuple(outputs) == names
    assert np.array_equal(outputs["first"], outputs["second"])


class Picky(nn.Module):
    def forward(self, x: Tensor, keep: Tensor, small: Tensor) -> Tensor:
        return x * keep + small


def test_inputs_may_be_bools_and_small_integers(job_of: JobOf) -> None:
    inputs = ("x:float32[batch=1..4,3]", "keep:bool[batch=1..4,3]", "small:int32[batch=1..4,3]")
    job = built(job_of(Picky(), *inputs, capture=Capture.TRACE))
    (output,) = run(job).values()
    feed = job.example
    assert np.allclose(output, feed["x"] * feed["keep"] + feed["small"])


class Switched(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.more = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor, refine: Tensor) -> Tensor:
        out: Tensor = self.body(x)
        if refine:
            out = out + self.more(out)
        return out


def test_an_input_with_a_second_name_is_fed_by_its_own(job_of: JobOf) -> None:
    inputs = ("x:float32[batch=1..4,3]", "refine:bool[]")
    job = built(job_of(Switched(), *inputs, capture=Capture.SCRIPT))
    found = openvino_ir.coverage(job.folder / "model.xml", job.example, "cpu")
    assert found.layers["fp32"] >= 1


def test_large_sums_are_not_computed_in_bfloat16(job_of: JobOf) -> None:
    job = built(job_of(nn.Linear(512, 4), "x:float32[batch=1..4,512]", capture=Capture.TRACE))
    (output,) = run(job).values()
    with onnx_model.open_runner(job.folder.parent / "model.onnx", "cpu", job.signature) as other:
        (expected,) = other.run(job.example).values()
    assert np.abs(output - expected).max() < 1e-5


class Narrow(nn.Module):
    """Returns one output in bfloat16, which numpy lacks."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return (x * 3).bfloat16(), x * 3


def test_outputs_in_bfloat16_are_read_as_floats(job_of: JobOf) -> None:
    job = built(job_of(Narrow(), "x:float32[batch=1..4,3]", outputs=("low", "high")))
    x = np.array([[1.1, -2e30, 3e-20]], dtype=np.float32)
    found = run(job, {"x": x})
    assert found["low"].dtype == np.float32
    np.testing.assert_allclose(found["low"], x * 3, rtol=2**-8)
    assert (found["low"] != found["high"]).all()  # it was rounded


def test_tensors_without_names_are_named_after_their_nodes(tmp_path: Path) -> None:
    port = '<port id="0" precision="FP32"><dim>2</dim></port>'
    (tmp_path / "model.xml").write_text(
        '<?xml version="1.0"?><net name="n" version="11"><layers>'
        '<layer id="0" name="x" type="Parameter" version="opset1">'
        f'<data shape="2" element_type="f32"/><output>{port}</output></layer>'
        '<layer id="1" name="y" type="Result" version="opset1">'
        f"<input>{port}</input></layer></layers><edges>"
        '<edge from-layer="0" from-port="0" to-layer="1" to-port="0"/></edges></net>'
    )
    found = openvino_ir.inspect(tmp_path / "model.xml")
    assert [one.name for one in found.inputs] == ["x"]
    assert [one.name for one in found.outputs] == ["y"]


def test_integers_times_an_input_are_no_weights(tmp_path: Path) -> None:
    """The product is computed at run time: its file has no precision of integers."""
    import openvino
    from openvino import opset13 as op

    x = op.parameter([-1, 4], np.float32, name="x")
    x.output(0).get_tensor().set_names({"x"})
    scaled = op.multiply(op.convert(op.constant(np.ones((1, 4), np.int8)), "f32"), x)
    result = op.result(op.relu(scaled))
    openvino.serialize(openvino.Model([result], [x]), str(tmp_path / "model.xml"))

    assert openvino_ir.inspect(tmp_path / "model.xml").quantized is None
    assert not list(openvino_ir.integer_weights(tmp_path / "model.xml"))
