"""The layers of an engine in the log of TensorRT-RTX's builder, which needs no GPU.

builder_log.txt is what TensorRT-RTX 1.7.1 logged for the INT8 engine of sample_models/digits.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from modelc.converters import tensorrt_rtx
from modelc.converters.trt.build_launcher import build_with_python
from modelc.converters.trt.engine_layers import engine_coverage, read_layers
from modelc.converters.trt.engine_options import EngineOptions, ShapeRange
from modelc.converters.trt.engine_records import BuildRequest, EngineSidecar, write_sidecar
from modelc.converters.trt.trt_callbacks import BUILDER_LOG_SOURCE, layers_in_log
from modelc.converters.trt.trt_installation import TrtLibrary
from modelc.core.records import UNKNOWN_DTYPE, record_of

MESSAGE = Path(__file__).with_name("builder_log.txt").read_text(encoding="utf-8")


def test_the_operands_of_convolutions_and_products_are_counted() -> None:
    found = read_layers(layers_in_log(MESSAGE)).layers
    assert len(found) == 13
    assert engine_coverage(found).layers == {"int8": 3, "fp32": 2}
    nodes = {one.nodes[0]: one.dtype for one in found if one.computes}
    assert nodes == {
        "node_Conv_51": "int8",
        "node_Conv_53": "int8",
        "node_Conv_55": "int8",
        "node_linear": "fp32",
        "node_linear_1": "fp32",
    }


def test_a_kernel_that_scales_a_product_does_not_count_as_one() -> None:
    found = {one.name: one for one in read_layers(layers_in_log(MESSAGE)).layers}
    scaled = found["__myl_MulAddReluMulMinMaxRounCast_myl0_3"]
    assert "node_Conv_51" in scaled.nodes
    assert not scaled.computes


def test_it_counts_where_nothing_else_names_the_product() -> None:
    lines = [line for line in MESSAGE.splitlines() if not line.startswith("Name: node_Conv_51")]
    found = {one.name: one for one in read_layers(layers_in_log("\n".join(lines))).layers}
    assert found["__myl_MulAddReluMulMinMaxRounCast_myl0_3"].computes


def test_the_placeholder_of_a_kernel_is_no_tactic() -> None:
    assert all("STUB" not in one.tactic for one in read_layers(layers_in_log(MESSAGE)).layers)


def test_a_line_of_another_form_is_a_layer_of_an_unknown_dtype() -> None:
    (layer,) = read_layers(layers_in_log("Layers:\nName: conv1, Kind: convolution")).layers
    assert (layer.name, layer.dtype, layer.computes) == ("conv1", UNKNOWN_DTYPE, True)


def test_a_message_without_layers_is_empty() -> None:
    assert layers_in_log("") == ""
    assert layers_in_log("Layers:\n\nI/O Tensors:\n") == ""


def test_the_coverage_of_an_engine_says_that_it_is_of_operands(tmp_path: Path) -> None:
    engine = tmp_path / "model.int8.rtx.engine"
    engine.write_bytes(b"vtrt")
    (tmp_path / "model.onnx").write_bytes(b"")
    sidecar = EngineSidecar(
        engine=record_of(engine), onnx=record_of(tmp_path / "model.onnx"), gpu="RTX GPUs",
        capability="8.9", memory=0, cuda="", tensorrt="1.7.1", builder="python", inputs=(),
        outputs=(), profiles=(), layers=read_layers(layers_in_log(MESSAGE)).layers,
        library=TrtLibrary.RTX,
    )  # fmt: skip
    write_sidecar(sidecar, engine)
    found = tensorrt_rtx.coverage(engine, {}, "cpu")
    assert found is not None
    assert (found.layers, found.source) == ({"int8": 3, "fp32": 2}, BUILDER_LOG_SOURCE)
    write_sidecar(replace(sidecar, layers=()), engine)
    assert tensorrt_rtx.coverage(engine, {}, "cpu") is None


def product(quantized: str) -> onnx.ModelProto:
    """A product of x and w, 64 by 64, with Q/DQ on those that are named."""
    nodes = []
    for name in quantized:
        nodes += [
            helper.make_node("QuantizeLinear", [name, "scale", "zero"], [f"{name}q"]),
            helper.make_node("DequantizeLinear", [f"{name}q", "scale", "zero"], [f"{name}d"]),
        ]
    operands = [f"{name}d" if name in quantized else name for name in "xw"]
    nodes.append(helper.make_node("MatMul", operands, ["y"], name="product"))
    weights = [
        helper.make_tensor("w", TensorProto.FLOAT, [64, 64], [0.01] * 4096),
        helper.make_tensor("scale", TensorProto.FLOAT, [], [0.1]),
        helper.make_tensor("zero", TensorProto.INT8, [], [0]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [32, 64]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights if quantized else weights[:1])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


@pytest.mark.rtx
@pytest.mark.slow
@pytest.mark.parametrize(("quantized", "dtype"), [("xw", "int8"), ("w", "fp32"), ("", "fp32")])
def test_the_builder_logs_the_operands(tmp_path: Path, quantized: str, dtype: str) -> None:
    pytest.importorskip("tensorrt_rtx")
    onnx.save(product(quantized), tmp_path / "model.onnx")
    x = ShapeRange(name="x", low=(32, 64), opt=(32, 64), high=(32, 64))
    request = BuildRequest(
        onnx=str(tmp_path / "model.onnx"),
        engine=str(tmp_path / "model.rtx.engine"),
        profiles=((x,),),
        options=EngineOptions(),
        library=TrtLibrary.RTX,
    )
    built = build_with_python(request, lambda *_: None)
    (layer,) = (one for one in read_layers(built.layers).layers if one.computes)
    assert layer.dtype == dtype
    assert "product" in layer.nodes
