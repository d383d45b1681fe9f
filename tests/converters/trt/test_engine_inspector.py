"""The engine inspector's JSON in the forms of TensorRT 10 and 11, written by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import pytest

from modelc.converters.trt.engine_layers import (
    INSPECTOR_SOURCE,
    EngineLayer,
    engine_coverage,
    parse_layers,
    read_layers,
)
from modelc.core.errors import ConversionError, ErrorCode
from modelc.core.records import UNKNOWN_DTYPE

from ...reasons import has_code

REFORMAT = "Reformatting CopyNode for Input Tensor 0 to conv1"


def layer(name: str, kind: str, inputs: Sequence[Mapping[str, object]], **more: object) -> object:
    return {"Name": name, "LayerType": kind, "Inputs": inputs, "Outputs": [], **more}


TEN = json.dumps(
    {
        "Layers": [
            layer(
                REFORMAT,
                "Reformat",
                [{"Name": "x", "Format/Datatype": "Row major linear FP32"}],
                TacticName="copy_gemm_layout",
            ),
            layer(
                "conv1 + relu",
                "CaskConvolution",
                [
                    {
                        "Name": "q",
                        "Format/Datatype": "Thirty-two wide channel vectorized row major Int8",
                    }
                ],
                ParameterType="Convolution",
                Metadata="[ONNX Layer: conv1]\u001e[ONNX Layer: relu]",
            ),
            layer("fc", "gemm", [{"Name": "h", "Format/Datatype": "Half"}]),
            layer("pool", "CaskPooling", [{"Name": "h", "Format/Datatype": "Half"}]),
        ],
        "Bindings": ["x", "y"],
    }
)
ELEVEN = json.dumps(
    {
        "Layers": [
            layer("conv1", "Convolution", [{"Name": "q", "Format": "LINEAR", "DataType": "Int8"}]),
            layer(
                "fc", "MatrixMultiply", [{"Name": "h", "Format": "kLINEAR", "Datatype": "BFloat16"}]
            ),
        ],
        "I/O Tensors": [
            {"Name": "x", "IOMode": "Input", "DataType": "Float", "Dimensions": [-1, 3]},
            {"Name": "y", "IOMode": "OUTPUT", "DataType": "Half", "Dimensions": [-1, 10]},
        ],
    }
)


def test_only_eleven_has_dtypes_and_dims_of_inputs_and_outputs() -> None:
    assert read_layers(TEN).inputs == ()
    eleven = read_layers(ELEVEN)
    assert [(t.name, t.dtype, t.dims) for t in (*eleven.inputs, *eleven.outputs)] == [
        ("x", "float32", ("?", "3")),
        ("y", "float16", ("?", "10")),
    ]


@pytest.mark.parametrize(
    ("text", "layers"), [(TEN, {"int8": 1, "fp16": 1}), (ELEVEN, {"int8": 1, "bf16": 1})]
)
def test_only_layers_that_compute_are_counted(text: str, layers: dict[str, int]) -> None:
    found = engine_coverage(read_layers(text).layers)
    assert found.layers == layers
    assert set(found.share.values()) == {0.5}
    assert (found.work, found.source) == ("layers", INSPECTOR_SOURCE)


def test_fused_nodes_are_kept() -> None:
    assert read_layers(TEN).layers[1].nodes == ("conv1", "relu")


@pytest.mark.parametrize(
    ("tactic", "dtype"),
    [
        ("sm72_xmma_fprop_implicit_gemm_indexed_i8i8_i8i32_f32_nchw_tensor8x8x16", "int8"),
        ("sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize64", "fp16"),
        ("sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_s16816", "bf16"),
        ("sm80_xmma_fprop_implicit_gemm_tf32tf32_tf32f32_f32_nhwc", "tf32"),
        ("sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nchw_simt", "fp32"),
        ("ampere_sgemm_128x64_nn", "fp32"),
        ("sm90_xmma_gemm_e4m3e4m3_e4m3f32_f32_tn", "fp8"),
        ("sm80_xmma_gemm_i8f32_i8i32_f32_tn_n_tilesize128x128x64_tensor16x8x32_fused", "int8"),
        ("sm80_xmma_gemm_i8i8_i8i32_f32_tn_n_tilesize64x64x64_by_fusion_tactic", "int8"),
        ("sm80_xmma_fprop_implicit_gemm_interleaved_i8f16_i8i32_f32_nchw_vect_c_32", "int8"),
        ("sm90_xmma_gemm_i8i32_i8i32_i32_tn_n_tilesize256x128x128", "int8"),
        ("cutlass_80_tensorop_i16832gemm_s8_128x128_64x3_tn_align16", "int8"),
        ("ampere_igemm_int8_128x128_ldg4_nn", "int8"),
        ("ampere_fp32_icudnn_int8x4_128x64_relu_medium_nn_v1", "int8"),
        ("turing_fp16_i8816cudnn_int8_128x128_ldg16_relu_small_nt_v1", "int8"),
        ("sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize128x128x128", "fp8"),
        ("cutlass3x_sm100_tensorop_s256x256x32gemm_f8_f8_f32_f16_f16", "fp8"),
        ("sm80_xmma_fprop_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc", "tf32"),
        ("sm50_xmma_cublas_smallN_NN_f32f32_f32_f32_nn_n_int32_unit_n", "fp32"),
        ("ampere_scudnn_128x64_relu_xregs_large_nn_v1", "fp32"),
        ("ampere_h16816cudnn_128x128_ldg8_relu_exp_stages_64x3_large_nhwc_tn_v1", "fp16"),
        ("trt_turing_cutlass_image_network_first_layer_hmma_fprop_f16f16f32_nhwc", "fp16"),
        ("_gemm_mha_v2_0xf16f16f16f16f16ff16f16f16f16f16f", UNKNOWN_DTYPE),
    ],
)
def test_the_compute_dtype_is_read_from_the_kernel_name(tactic: str, dtype: str) -> None:
    row = layer("c", "gemm", [{"Format/Datatype": "N/A due to dynamic shapes"}], TacticName=tactic)
    (found,) = read_layers(json.dumps({"Layers": [row], "Bindings": []})).layers
    assert found.dtype == dtype


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        ("Float", "fp32"),
        ("Half", "fp16"),
        ("BFloat16", "bf16"),
        ("Int8", "int8"),
        ("UInt8", UNKNOWN_DTYPE),
        ("Row major linear FP16 format (kLINEAR)", "fp16"),
        ("N/A due to dynamic shapes", UNKNOWN_DTYPE),
    ],
)
def test_the_dtype_of_a_tensor_is_read_in_every_spelling(text: str, dtype: str) -> None:
    row = layer("c", "gemm", [{"Format/Datatype": text}])
    (found,) = read_layers(json.dumps({"Layers": [row]})).layers
    assert found.dtype == dtype


def test_an_engine_built_without_details_has_unknown_dtypes() -> None:
    found = engine_coverage(read_layers('{"Layers": ["conv1", "pool"], "Bindings": []}').layers)
    assert found.layers == {UNKNOWN_DTYPE: 1}


def test_a_cast_is_no_convolution() -> None:
    (found,) = read_layers(json.dumps({"Layers": [layer("c", "ConverterCast", [])]})).layers
    assert not found.computes


def test_shares_are_of_time_where_every_layer_has_one() -> None:
    layers = read_layers(TEN).layers
    timed = engine_coverage(layers, {"conv1 + relu": 1.0, "fc": 3.0, REFORMAT: 9.0})
    assert (timed.work, timed.share) == ("time", {"int8": 0.25, "fp16": 0.75})
    assert engine_coverage(layers, {"fc": 3.0}).work == "layers"


def test_an_engine_in_which_nothing_computes_has_no_share() -> None:
    idle = EngineLayer(name="r", kind="Reformat", dtype="fp32", computes=False)
    assert engine_coverage([idle]).layers == engine_coverage([idle]).share == {}


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"Layers": 3}', '{"Layers": [3]}'])
def test_another_form_is_an_error_or_no_layers_with_a_reason(text: str) -> None:
    with pytest.raises(ConversionError, check=has_code(ErrorCode.CORRUPT_FILE)):
        read_layers(text)
    found, reason = parse_layers(text)
    assert found.layers == ()
    assert reason
    assert parse_layers(TEN) == (read_layers(TEN), "")
