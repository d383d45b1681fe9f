"""Integer weights without data, from the checkpoint to the verdict."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import numpy_helper

from modelc.core.kinds import Precision, ReasonCode
from modelc.pipeline.manifest_file import read_manifest
from modelc.pipeline.order import Lowering, Order, Source, Wanted
from modelc.pipeline.run_order import run
from modelc.pipeline.validate_file import validate_file

from ..reasons import reason_codes


def double_one_scale(path: Path, copy: Path) -> None:
    model = onnx.load(str(path))
    node = next(one for one in model.graph.node if one.op_type == "MatMulNBits")
    tensor = next(one for one in model.graph.initializer if one.name == node.input[2])
    scales = numpy_helper.to_array(tensor).copy()
    scales[3, 0] *= 2
    tensor.CopyFrom(numpy_helper.from_array(scales, tensor.name))
    onnx.save(model, str(copy))


def alter_one_float(path: Path, copy: Path) -> None:
    model = onnx.load(str(path))
    node = next(one for one in model.graph.node if one.op_type == "Conv")
    tensor = next(one for one in model.graph.initializer if one.name == node.input[1])
    values = numpy_helper.to_array(tensor).copy()
    values.flat[3] *= 1.01
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    onnx.save(model, str(copy))


@pytest.mark.slow
def test_one_doubled_scale_is_rejected_that_the_outputs_do_not_show(
    digits_source: Source, tmp_path: Path
) -> None:
    wanted = Wanted(target="onnx", precision=Precision.INT4)
    out = tmp_path / "out"
    lowering = Lowering(group_size=64)
    assert run(Order(source=digits_source, wanted=(wanted,), out=out, lowering=lowering)).passed
    manifest = read_manifest(out)
    assert manifest is not None
    artifact = next(one for one in manifest.artifacts if one.name == "onnx-int4")
    assert artifact.calibration is None
    assert "of 64" in artifact.options["weights"]
    assert artifact.coverage is not None
    assert artifact.coverage.layers == {"fp32": 3, "int4": 2}
    path = out / "model.int4.onnx"
    assert validate_file(path, digits_source, precision=Precision.INT4).passed
    double_one_scale(path, tmp_path / "wrong.onnx")
    verdict = validate_file(tmp_path / "wrong.onnx", digits_source, precision=Precision.INT4)
    assert all(output.passed for output in verdict.outputs)
    assert reason_codes(verdict) == [ReasonCode.WEIGHT_ALTERED]
    assert "block" in verdict.reason

    alter_one_float(path, tmp_path / "float.onnx")
    verdict = validate_file(tmp_path / "float.onnx", digits_source, precision=Precision.INT4)
    assert all(output.passed for output in verdict.outputs)
    assert reason_codes(verdict) == [ReasonCode.WEIGHT_ALTERED]
    assert "_conv.weight" in verdict.reason
