"""Types that a GPU lacks are found before a build; test_rtx_builder compares with NVIDIA's."""

from __future__ import annotations

import pytest
from onnx import parser
from onnx_ir import serde

from modelc.converters.trt.parser_support import find_unsupported_types
from modelc.converters.trt.trt_findings import TrtFault, TrtFinding
from modelc.converters.trt.trt_installation import TrtLibrary

RTX, TENSORRT = TrtLibrary.RTX, TrtLibrary.TENSORRT


def findings(dtype: str, library: TrtLibrary, *capabilities: str) -> list[TrtFinding]:
    text = f"""<ir_version: 10, opset_import: ["": 22]>
        g ({dtype}[4,4] x, {dtype}[4,4] w) => ({dtype}[4,4] y) {{
            [one] a = MatMul(x, w) [two] y = MatMul(a, w)
        }}"""
    model = serde.from_proto(parser.parse_model(text))
    return find_unsupported_types(model, {}, library, capabilities)


@pytest.mark.parametrize(
    ("dtype", "library", "capabilities", "named"),
    [
        ("bfloat16", TENSORRT, ["7.5"], "7.5"),
        ("bfloat16", RTX, ["12.0", "7.5"], "7.5"),
        ("float8e4m3fn", TENSORRT, ["8.6"], "8.6"),
        ("float8e4m3fn", RTX, ["8.0", "8.9"], "8.0"),
        ("int4", TENSORRT, ["7.5"], "7.5"),
        ("float", RTX, ["7.5"], "7.5"),
    ],
)
def test_a_type_that_the_oldest_gpu_lacks_is_found_once(
    dtype: str, library: TrtLibrary, capabilities: list[str], named: str
) -> None:
    (found,) = findings(dtype, library, *capabilities)
    assert found.fault is TrtFault.CAPABILITY
    assert named in found.what.split()
    assert "one" in found.place


@pytest.mark.parametrize(
    ("dtype", "library", "capabilities"),
    [
        ("float", TENSORRT, ["7.5"]),
        ("float16", RTX, ["7.5"]),
        ("bfloat16", TENSORRT, ["8.0"]),
        ("int4", RTX, ["8.0", "12.0"]),
        ("float8e4m3fn", TENSORRT, ["8.9"]),
        ("float8e4m3fn", TENSORRT, ["10.0"]),  # a number, not a text
        ("float8e4m3fn", RTX, []),  # not known here
    ],
)
def test_a_gpu_that_has_the_type_is_no_finding(
    dtype: str, library: TrtLibrary, capabilities: list[str]
) -> None:
    assert not findings(dtype, library, *capabilities)
