from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from torch import Tensor, nn

from modelc.converters import onnx_model
from modelc.converters.onnx_compatibility import LOADS_IN, choose_opset, lower_model
from modelc.core.contract import Job
from modelc.core.errors import ConversionError, ErrorCode, UsageError
from modelc.core.kinds import Capture, Precision

from ..reasons import has_code

JobOf = Callable[..., Job]
OLD = ("onnxruntime==1.17",)  # opset 20, IR 9


def model_of(
    *nodes: onnx.NodeProto,
    opset: int = 18,
    ir: int = 8,
    domains: Sequence[tuple[str, int]] = (),
    weights: Sequence[onnx.TensorProto] = (),
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    """x -> nodes -> y, of floats."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    graph = helper.make_graph(
        list(nodes) or [helper.make_node("Relu", ["x"], ["y"])], "g", ends[:1], ends[1:], weights
    )
    opsets = [helper.make_opsetid(domain, version) for domain, version in (("", opset), *domains)]
    return helper.make_model(graph, ir_version=ir, opset_imports=opsets, functions=list(functions))


@pytest.fixture
def written(tmp_path: Path) -> Callable[[onnx.ModelProto], Path]:
    def write(model: onnx.ModelProto) -> Path:
        path = tmp_path / "model.onnx"
        path.write_bytes(model.SerializeToString())
        return path

    return write


Written = Callable[[onnx.ModelProto], Path]


def test_the_opset_is_the_newest_that_runs_in_all_and_the_exporter_writes() -> None:
    assert choose_opset(None, OLD, default=20, last=23) == 20
    assert choose_opset(None, ["onnxruntime==1.24"], default=20, last=20) == 20
    assert choose_opset(None, ["onnxruntime==1.24"], default=20, last=23) == 21  # 23 lacks kernels
    assert choose_opset(None, ["onnxruntime==1.15"], default=20, last=23) == 18  # 19 lacks kernels
    assert choose_opset(None, ["onnxruntime==1.24", "onnxruntime==1.14"], default=20, last=23) == 18
    assert choose_opset(18, OLD, default=20, last=23) == 18  # the user asked for a lower one


def test_a_higher_opset_than_is_loaded_is_an_error() -> None:
    with pytest.raises(
        UsageError, check=has_code(ErrorCode.UNSUPPORTED, option="opset", naming="onnxruntime")
    ):
        choose_opset(21, OLD, default=20, last=23)


def test_without_runtimes_the_file_stays(written: Written) -> None:
    path = written(model_of(opset=23, ir=11))
    before = path.read_bytes()
    assert lower_model(path, ()) == {}
    assert path.read_bytes() == before


def test_the_ir_version_is_lowered_and_recorded(written: Written) -> None:
    path = written(model_of(opset=18, ir=10))
    assert lower_model(path, OLD) == {
        LOADS_IN: "onnxruntime 1.17 (opset <= 20, IR <= 9)",
        "ir": "9",
        "opset": "18",
    }
    assert onnx.load(str(path)).ir_version == 9


def test_a_lower_ir_version_stays(written: Written) -> None:
    assert lower_model(written(model_of(ir=7)), OLD)["ir"] == "7"


FAULTS = {
    "its opset is 21": model_of(opset=21),
    "its ai.onnx.ml opset is 5": model_of(domains=[("ai.onnx.ml", 5)]),
    "is an operator of mine: Odd": model_of(
        helper.make_node("Odd", ["x"], ["y"], domain="mine"), domains=[("mine", 1)]
    ),
    "it contains uint4 tensors, which require IR 10": model_of(
        ir=10, weights=[helper.make_tensor("w", TensorProto.UINT4, [2], [1, 2])]
    ),
    "it contains int4 tensors, which require IR 10": model_of(
        helper.make_node("Cast", ["x"], ["z"], to=TensorProto.INT4),
        helper.make_node("Cast", ["z"], ["y"], to=TensorProto.FLOAT),
        ir=10,
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_model_beyond_the_runtime_is_an_error(fault: str, written: Written) -> None:
    with pytest.raises(ConversionError, match=fault) as caught:
        lower_model(written(FAULTS[fault]), OLD)
    assert "onnxruntime 1.17" in caught.value.message


def test_branches_are_checked(written: Written) -> None:
    inner = helper.make_node("Odd", ["x"], ["z"], domain="mine")
    out = helper.make_tensor_value_info("z", TensorProto.FLOAT, [2])
    body = helper.make_graph([inner], "body", [], [out])
    flag = helper.make_tensor("flag", TensorProto.BOOL, [], [True])
    branch = helper.make_node("If", ["flag"], ["y"], then_branch=body, else_branch=body)
    model = model_of(branch, domains=[("mine", 1)], weights=[flag])
    with pytest.raises(
        ConversionError, check=has_code(ErrorCode.UNSUPPORTED, option="for", naming="mine: Odd")
    ):
        lower_model(written(model), OLD)


def test_an_operator_that_the_model_defines_itself_is_no_fault(written: Written) -> None:
    node = helper.make_node("Relu", ["a"], ["b"])
    own = helper.make_function("mine", "Odd", ["a"], ["b"], [node], [helper.make_opsetid("", 18)])
    call = helper.make_node("Odd", ["x"], ["y"], domain="mine")
    model = model_of(call, domains=[("mine", 1)], functions=[own])
    assert lower_model(written(model), OLD)["opset"] == "18"


@pytest.mark.parametrize(
    ("runtime", "fits"), [("onnxruntime==1.17", True), ("tensorrt==10.6", False)]
)
def test_contrib_operators_are_onnx_runtimes_alone(
    runtime: str, fits: bool, written: Written
) -> None:
    node = helper.make_node("FastGelu", ["x"], ["y"], domain="com.microsoft")
    path = written(model_of(node, domains=[("com.microsoft", 1)]))
    if fits:
        assert lower_model(path, [runtime])
    else:
        with pytest.raises(
            ConversionError,
            check=has_code(ErrorCode.UNSUPPORTED, option="for", naming="com.microsoft: FastGelu"),
        ):
            lower_model(path, [runtime])


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.layer(x).relu()
        return made


@pytest.mark.parametrize("capture", [Capture.EXPORT, Capture.TRACE])
@pytest.mark.parametrize(
    ("runtime", "opset", "ir"), [("onnxruntime==1.14", 18, 8), ("onnxruntime==1.17", 20, 9)]
)
def test_an_export_is_what_the_runtime_loads(
    job_of: JobOf, capture: Capture, runtime: str, opset: int, ir: int
) -> None:
    job = replace(job_of(Small(), "x:float32[batch=1..4,3]", capture=capture), runtimes=(runtime,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the legacy exporter
        made = onnx_model.convert(job)
    model = onnx.load(str(job.folder / "model.onnx"))
    assert next(o.version for o in model.opset_import if o.domain == "") == opset
    assert model.ir_version <= ir
    assert made.options["opset"] == str(opset)
    assert made.options[LOADS_IN].startswith(runtime.replace("==", " "))
    with onnx_model.open_runner(job.folder / "model.onnx", "cpu", job.signature) as runner:
        assert runner.run({"x": np.ones((2, 3), np.float32)})["output"].shape == (2, 2)


def test_external_weights_stay_as_they_are(job_of: JobOf) -> None:
    job = job_of(Small(), "x:float32[batch=1..4,3]", external_data=True)
    onnx_model.convert(replace(job, runtimes=("onnxruntime==1.14",)))
    with onnx_model.open_runner(job.folder / "model.onnx", "cpu", job.signature) as runner:
        assert runner.run({"x": np.ones((2, 3), np.float32)})["output"].shape == (2, 2)


def test_a_quantizer_that_raised_the_opset_is_caught(job_of: JobOf, written: Written) -> None:
    raised = written(model_of(opset=21, ir=10))
    raised = raised.rename(raised.with_name("quantized.onnx"))
    job = replace(
        job_of(Small(), "x:float32[batch=1..4,3]"),
        parent=raised,
        precision=Precision.INT8,
        runtimes=OLD,
    )
    with pytest.raises(
        ConversionError, check=has_code(ErrorCode.UNSUPPORTED, option="for", naming=" 21")
    ):
        onnx_model.convert(job)


def test_bfloat16_requires_a_runtime_with_its_opset() -> None:
    with pytest.raises(UsageError, match="bf16 requires opset 22"):
        onnx_model.plan_opset(None, ["onnxruntime==1.20"], Precision.BF16)
    assert onnx_model.plan_opset(None, ["onnxruntime==1.23"], Precision.BF16).startswith("opset 22")
