"""Real outputs of TensorRT's engine inspector, in `inspector/`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from modelc.converters.trt.engine_layers import engine_coverage, read_layers
from modelc.core.records import UNKNOWN_DTYPE

HERE = Path(__file__).parent
OUTPUTS = HERE / "inspector"
# The compute layers of each output by dtype, counted by hand.
EXPECTED = {
    "bert_fp16_myelin.json": {"fp16": 3},
    "linears_typed_myelin.json": {},
    "linears_weak_myelin.json": {},
    "mobilenet_v2_qat_turing.json": {"int8": 4},
    "pointwise_matmul_tensorrt82.json": {"fp16": 1},
    "pooling_fp16_cask.json": {},
    "qat_detector_names.json": {UNKNOWN_DTYPE: 4},
    "resnet18_fp16_a100.json": {"fp16": 4},
    "resnet18_fp32_a100.json": {"fp32": 1, "tf32": 2},
    "resnet18_int8_detailed.json": {"int8": 3},
    "resnet18_int8_names.json": {UNKNOWN_DTYPE: 3},
    "resnet18_qat_a100.json": {"int8": 3},
    "resnet50_fp32_tensorrt9.json": {"tf32": 1},
    "rtdetr_int8_names.json": {UNKNOWN_DTYPE: 3},
}


def output(name: str) -> str:
    return (OUTPUTS / name).read_text(encoding="utf-8")


def test_every_output_has_an_origin_and_an_expected_count() -> None:
    names = {path.name for path in OUTPUTS.iterdir()}
    origins = json.loads((HERE / "inspector_origins.json").read_text(encoding="utf-8"))
    assert names == origins.keys() == EXPECTED.keys()
    assert all(
        {"repository", "tensorrt", "licence", "changes"} <= one.keys() for one in origins.values()
    )


@pytest.mark.parametrize(("name", "layers"), EXPECTED.items())
def test_the_compute_layers_of_an_output_are_counted_by_dtype(
    name: str, layers: dict[str, int]
) -> None:
    assert engine_coverage(read_layers(output(name)).layers).layers == layers


@pytest.mark.parametrize("name", EXPECTED)
def test_an_output_without_its_types_is_unknown_and_never_another_dtype(name: str) -> None:
    """As trtexec writes it for dynamic shapes: only the kernel's name and the weights remain."""
    document = json.loads(output(name))
    for layer in (one for one in document["Layers"] if isinstance(one, dict)):
        for tensor in (*layer["Inputs"], *layer["Outputs"]):
            tensor["Format/Datatype"] = "N/A due to dynamic shapes"
    whole = engine_coverage(read_layers(output(name)).layers).layers
    found = engine_coverage(read_layers(json.dumps(document)).layers).layers
    assert sum(found.values()) == sum(whole.values())
    assert all(found[dtype] <= whole[dtype] for dtype in found if dtype != UNKNOWN_DTYPE)


def test_an_int8_convolution_of_dynamic_size_is_read_from_its_kernel_or_its_weights() -> None:
    tensor = {"Name": "t", "Dimensions": [-1, 3], "Format/Datatype": "N/A due to dynamic shapes"}
    kernel = "sm80_xmma_fprop_implicit_gemm_interleaved_i8f32_i8i32_f32_nchw_vect_c_32kcrs"
    row = {"Name": "c", "LayerType": "CaskConvolution", "Inputs": [tensor], "Outputs": [tensor]}
    by_kernel = {**row, "Weights": {"Type": "Float"}, "TacticName": kernel}
    by_weights = {**row, "Weights": {"Type": "Int8", "Count": 13824}}
    layers = read_layers(json.dumps({"Layers": [by_kernel, by_weights, row]})).layers
    assert [layer.dtype for layer in layers] == ["int8", "int8", UNKNOWN_DTYPE]


def test_a_node_of_a_layer_counts_by_its_operator() -> None:
    layers = json.loads(output("linears_typed_myelin.json"))["Layers"]
    text = json.dumps({"Layers": [{**one, "Metadata": "[ONNX Layer: fc1]"} for one in layers]})
    dense = read_layers(text, {"fc1": "Gemm"}).layers
    assert [layer.computes for layer in dense] == [True, True]
    norm = read_layers(text, {"fc1": "LayerNormalization"}).layers
    assert [layer.computes for layer in norm] == [False, False]


def test_a_kernel_that_only_moves_the_operands_of_a_product_does_not_compute() -> None:
    row = {
        "Name": "__myl_MoveConc_myl0_1",
        "LayerType": "kgen",
        "Inputs": [{"Name": "a", "Format/Datatype": "Half"}],
        "TacticName": "__myl_MoveConc_0xf16f16f16f16f16f",
        "Metadata": "[ONNX Layer: /fc1/MatMul]",
    }
    (layer,) = read_layers(json.dumps({"Layers": [row]})).layers
    assert not layer.computes


@pytest.mark.parametrize(("metadata", "computes"), [("", True), ("/nms/TopK", False)])
def test_a_region_of_myelin_is_unknown_inside_whatever_its_ends_are(
    metadata: str, computes: bool
) -> None:
    row = {
        "Name": "{ForeignNode[/a.../b]}",
        "LayerType": "Myelin",
        "Inputs": [{"Name": "x", "Dimensions": [1, 3], "Format/Datatype": "Float"}],
        "Metadata": f"[ONNX Layer: {metadata}]" if metadata else "",
    }
    (layer,) = read_layers(json.dumps({"Layers": [row]})).layers
    assert (layer.computes, layer.dtype) == (computes, UNKNOWN_DTYPE)


def test_sizes_and_scales_among_the_inputs_do_not_count() -> None:
    inputs = [
        {"Name": "length", "Dimensions": [2], "Format/Datatype": "Int64"},
        {"Name": "scale", "Dimensions": [1], "Format/Datatype": "Float"},
        {"Name": "x", "Dimensions": [8, 64], "Format/Datatype": "Int8"},
    ]
    row = {"Name": "fc", "LayerType": "gemm", "Inputs": inputs}
    (layer,) = read_layers(json.dumps({"Layers": [row]})).layers
    assert layer.dtype == "int8"


def test_int8_beside_floating_point_without_a_kernel_name_is_unknown() -> None:
    """Weights in INT8 alone are multiplied in floating point."""
    inputs = [
        {"Name": "w", "Dimensions": [64, 64], "Format/Datatype": "Int8"},
        {"Name": "x", "Dimensions": [8, 64], "Format/Datatype": "Half"},
    ]
    row = {"Name": "fc", "LayerType": "gemm", "Inputs": inputs}
    (layer,) = read_layers(json.dumps({"Layers": [row]})).layers
    assert layer.dtype == UNKNOWN_DTYPE
