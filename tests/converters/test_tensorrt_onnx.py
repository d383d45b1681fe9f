"""Engine-ready ONNX: typed in half, or with Q/DQ that TensorRT supports."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from modelc.converters import onnx_model, tensorrt_onnx
from modelc.converters.registry import target_for
from modelc.core.contract import Job
from modelc.core.errors import ConversionError, ErrorCode
from modelc.core.grammar import parse_input
from modelc.core.kinds import Precision
from modelc.core.signature import merge_inputs

from ..reasons import has_code

pytestmark = [
    pytest.mark.needs("onnx"),
    pytest.mark.filterwarnings("ignore"),  # the frameworks' own; the pipeline logs them
]
CHANNELS = 4
JobOf = Callable[..., Job]


def quantized(folder: Path, *, dtype: object = np.int8, zero: int = 0, bias: bool = False) -> Path:
    """One convolution with Q/DQ as a file, and a sidecar that calls it `stem.conv`."""
    weights = {
        "s": np.float32(0.02), "z": np.asarray(zero, dtype),  # type: ignore[call-overload]  # any dtype
        "w": np.random.default_rng(0).integers(-9, 9, (CHANNELS, 1, 3, 3)).astype(np.int8),
        "w_s": np.full(CHANNELS, 0.01, np.float32), "w_z": np.zeros(CHANNELS, np.int8),
        "b": np.arange(CHANNELS, dtype=np.int32), "b_s": np.float32(0.0002),
    }  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], "q"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], "d"),
        helper.make_node("DequantizeLinear", ["w", "w_s", "w_z"], ["v"], "v", axis=0),
        *([helper.make_node("DequantizeLinear", ["b", "b_s"], ["c"], "c")] if bias else []),
        helper.make_node("Conv", ["d", "v", *(["c"] if bias else [])], ["y"], "conv"),
    ]
    used = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", CHANNELS, 6, 6])],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in weights.items() if k in used],
    )
    path = folder / "quantized.onnx"
    opsets = [helper.make_opsetid("", 20)]
    onnx.save_model(helper.make_model(graph, opset_imports=opsets, ir_version=9), str(path))
    sidecar = {"schema_version": 1, "nodes": {"conv": {"module": "stem.conv"}}}
    path.with_suffix(".debug.json").write_text(json.dumps(sidecar))
    return path


@pytest.fixture
def from_parent(tmp_path: Path) -> JobOf:
    """`from_parent(path, Precision.INT8)`: a job for engine-ready ONNX of `x`."""

    def make(parent: Path, precision: Precision, *, external_data: bool = False) -> Job:
        folder = tmp_path / "work"
        folder.mkdir(exist_ok=True)
        return Job(
            signature=merge_inputs([parse_input("x:float32[n=1..4,1,8,8]")], {}).with_outputs(
                ["y"]
            ),
            precision=precision,
            folder=folder,
            stem=f"model.{precision}",
            example={"x": np.random.default_rng(1).random((2, 1, 8, 8), dtype=np.float32)},
            parent=parent,
            external_data=external_data,
            metadata={"checkpoint": "abc"},
        )

    return make


def test_a_symmetric_model_is_copied_with_its_own_metadata(
    tmp_path: Path, from_parent: JobOf
) -> None:
    parent = quantized(tmp_path)
    job = from_parent(parent, Precision.INT8)
    converted = tensorrt_onnx.convert(job)
    path = job.folder / "model.int8.trt.onnx"
    assert converted.files == (
        ("model.int8.trt.onnx", "model"),
        ("model.int8.trt.debug.json", "debug"),
    )
    assert converted.notes == ()
    before, after = (onnx.load(str(one)).graph.node for one in (parent, path))
    assert [node.op_type for node in after] == [node.op_type for node in before]
    with tensorrt_onnx.open_runner(path, "cpu", job.signature) as mine:
        found = mine.run(job.example)["y"]
    with onnx_model.open_runner(parent, "cpu", job.signature) as theirs:
        assert np.array_equal(found, theirs.run(job.example)["y"])
    assert target_for(path).NAME == tensorrt_onnx.inspect(path).target == tensorrt_onnx.NAME
    assert tensorrt_onnx.inspect(path).metadata == {"modelc.checkpoint": "abc"}
    coverage = tensorrt_onnx.coverage(path, job.example, "cpu")
    assert coverage is not None
    assert coverage.layers == {"int8": 1}


def test_weights_may_be_external(tmp_path: Path, from_parent: JobOf) -> None:
    job = from_parent(exported(tmp_path), Precision.FP32, external_data=True)
    files = dict(tensorrt_onnx.convert(job).files)
    assert files["model.fp32.trt.onnx.data"] == "data"
    assert (job.folder / "model.fp32.trt.onnx.data").is_file()


def exported(folder: Path) -> Path:
    """A plain FP32 matrix product big enough for a data file."""
    weight = np.random.default_rng(0).random((8, 64), dtype=np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "fc")],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 1, 8, 64])],
        [numpy_helper.from_array(weight, "w")],
    )
    path = folder / "plain.onnx"
    opsets = [helper.make_opsetid("", 20)]
    onnx.save_model(helper.make_model(graph, opset_imports=opsets, ir_version=9), str(path))
    return path


@pytest.mark.parametrize(
    ("precision", "code"),
    [(Precision.FP16, TensorProto.FLOAT16), (Precision.BF16, TensorProto.BFLOAT16)],
)
def test_weights_are_half_and_inputs_and_outputs_float(
    tmp_path: Path, from_parent: JobOf, precision: Precision, code: int
) -> None:
    job = from_parent(exported(tmp_path), precision)
    path = job.folder / tensorrt_onnx.convert(job).files[0][0]
    graph = onnx.load(str(path)).graph
    assert {tensor.data_type for tensor in graph.initializer} == {code}
    ends = [*graph.input, *graph.output]
    assert {end.type.tensor_type.elem_type for end in ends} == {TensorProto.FLOAT}


@pytest.mark.parametrize(("precision", "kept"), [(Precision.BF16, True), (Precision.FP16, False)])
def test_what_tensorrt_does_not_build_in_bf16_stays_fp32(
    tmp_path: Path, from_parent: JobOf, precision: Precision, kept: bool
) -> None:
    weight = np.random.default_rng(0).random((1, 2, 3, 3), dtype=np.float32)
    nodes = [
        helper.make_node("ConvTranspose", ["x", "w"], ["a"], "grow"),
        helper.make_node("HardSwish", ["a"], ["b"], "switch"),
        helper.make_node("Relu", ["b"], ["y"], "last"),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2, 10, 10])],
        [numpy_helper.from_array(weight, "w")],
    )
    opsets = [helper.make_opsetid("", 20)]
    onnx.save_model(
        helper.make_model(graph, opset_imports=opsets, ir_version=10), str(tmp_path / "m.onnx")
    )
    job = from_parent(tmp_path / "m.onnx", precision)
    converted = tensorrt_onnx.convert(job)
    made = onnx.shape_inference.infer_shapes(onnx.load(job.folder / converted.files[0][0])).graph
    values = (*made.value_info, *made.input)
    types = {one.name: one.type.tensor_type.elem_type for one in values}
    types |= {one.name: one.data_type for one in made.initializer}
    operators = {node.op_type: types[node.input[0]] for node in made.node}
    assert (operators["ConvTranspose"] == TensorProto.FLOAT) is kept
    assert (operators["HardSwish"] == TensorProto.FLOAT) is kept
    assert operators["Relu"] != TensorProto.FLOAT
    assert bool(converted.notes) is kept


def test_fp32_is_copied(tmp_path: Path, from_parent: JobOf) -> None:
    job = from_parent(exported(tmp_path), Precision.FP32)
    path = job.folder / tensorrt_onnx.convert(job).files[0][0]
    assert [node.op_type for node in onnx.load(str(path)).graph.node] == ["MatMul"]


@pytest.mark.parametrize(
    ("fault", "precision", "value"),
    [
        ({"zero": 3}, Precision.INT8, "(3)"),
        ({"zero": 3}, Precision.FP32, "(3)"),
        ({"dtype": np.uint8}, Precision.INT8, "uint8"),
        ({"bias": True}, Precision.INT8, "int32"),
    ],
)
def test_unsupported_qdq_is_an_error_with_its_module(
    tmp_path: Path,
    from_parent: JobOf,
    fault: dict[str, object],
    precision: Precision,
    value: str,
) -> None:
    job = from_parent(quantized(tmp_path, **fault), precision)  # type: ignore[arg-type]  # from the table
    with pytest.raises(
        ConversionError, check=has_code(ErrorCode.UNSUPPORTED, naming=value)
    ) as caught:
        tensorrt_onnx.convert(job)
    assert "stem.conv" in caught.value.message
    assert not list(job.folder.iterdir())


def test_int8_without_a_quantized_layer_is_an_error(tmp_path: Path, from_parent: JobOf) -> None:
    unsupported = has_code(ErrorCode.UNSUPPORTED, naming="DequantizeLinear")
    with pytest.raises(ConversionError, check=unsupported):
        tensorrt_onnx.convert(from_parent(exported(tmp_path), Precision.INT8))


def test_a_text_file_of_its_suffix_is_not_claimed(tmp_path: Path) -> None:
    path = tmp_path / "model.trt.onnx"
    path.write_text("hello")
    assert not tensorrt_onnx.claims(path)
