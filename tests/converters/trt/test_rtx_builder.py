"""The real builder of TensorRT-RTX, through the child process that builds every engine."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_ir import serde

from modelc.converters.trt.build_launcher import build_with_python
from modelc.converters.trt.engine_layers import read_layers
from modelc.converters.trt.engine_options import (
    COMPUTE_CAPABILITIES,
    EngineOptions,
    Profile,
    ShapeRange,
)
from modelc.converters.trt.engine_records import BuildRequest, BuildResult
from modelc.converters.trt.parser_support import find_unsupported_types
from modelc.converters.trt.trt_findings import TrtFault
from modelc.converters.trt.trt_installation import TrtLibrary
from modelc.core.errors import ConversionError, ErrorCode
from modelc.tests.nets.one_operator import operators

from ...reasons import has_code

pytestmark = [pytest.mark.rtx, pytest.mark.slow]
pytest.importorskip("tensorrt_rtx")
MODELS = {one.name: one for one in operators()}
Build = Callable[..., BuildResult]


def static(name: str, *shape: int, values: tuple[int, int, int] | None = None) -> ShapeRange:
    return ShapeRange(name=name, low=shape, opt=shape, high=shape, values=values)


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """`build(model, profile, **options)`: the result, with the engine in `tmp_path`."""

    def make(
        model: onnx.ModelProto, profile: Profile = (), advance: Any = None, **options: Any
    ) -> BuildResult:
        onnx.save(model, tmp_path / "model.onnx")
        request = BuildRequest(
            onnx=str(tmp_path / "model.onnx"),
            engine=str(tmp_path / "model.rtx.engine"),
            profiles=(profile,),
            options=EngineOptions(**options),
            library=TrtLibrary.RTX,
        )
        return build_with_python(request, advance or (lambda *_: None))

    return make


def convolutions(count: int, opset: int = 20, batch: int | str = 1) -> onnx.ModelProto:
    """A chain of convolutions of 16 channels."""
    draw = np.random.default_rng(0)
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [batch, 16, 32, 32])
        for name in ("t0", f"t{count}")
    ]
    weights = [
        numpy_helper.from_array(draw.normal(0, 0.1, (16, 16, 3, 3)).astype(np.float32), f"w{i}")
        for i in range(count)
    ]
    nodes = [
        helper.make_node(
            "Conv", [f"t{i}", f"w{i}"], [f"t{i + 1}"], name=f"conv{i}", pads=[1, 1, 1, 1]
        )
        for i in range(count)
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize("opset", range(18, 24))
def test_every_opset_is_built(build: Build, tmp_path: Path, opset: int) -> None:
    result = build(convolutions(1, opset), (static("t0", 1, 16, 32, 32),))
    assert (tmp_path / "model.rtx.engine").read_bytes().startswith(b"vtrt")
    assert [one.name for one in result.inputs] == ["t0"]
    assert [one.dtype for one in read_layers(result.layers).layers if one.computes] == ["fp32"]


def quantized_product(dtype: int) -> onnx.ModelProto:
    """`y = x W` with 128 rows: W in 4-bit blocks, or x and W in 8-bit floats."""
    weights = np.random.default_rng(0).integers(-7, 8, (128, 64))
    stored = helper.make_tensor("w", dtype, [128, 64], weights.flatten().tolist())
    scales = numpy_helper.from_array(np.full((1, 64), 0.1, np.float16), "s")
    one = numpy_helper.from_array(np.asarray(0.1, np.float16), "one")
    zero = helper.make_tensor("zero", dtype, [], [0])
    if dtype == TensorProto.INT4:
        nodes = [
            helper.make_node("DequantizeLinear", ["w", "s"], ["wd"], axis=0, block_size=128),
            helper.make_node("MatMul", ["x", "wd"], ["y"]),
        ]
        tensors = [stored, scales]
    else:
        nodes = [
            helper.make_node("QuantizeLinear", ["x", "one", "zero"], ["xq"]),
            helper.make_node("DequantizeLinear", ["xq", "one", "zero"], ["xd"]),
            helper.make_node("DequantizeLinear", ["w", "one", "zero"], ["wd"]),
            helper.make_node("MatMul", ["xd", "wd"], ["y"]),
        ]
        tensors = [stored, one, zero]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT16, [32, size])
        for name, size in (("x", 128), ("y", 64))
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], tensors)
    opsets = [helper.make_opsetid("", 21)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize(
    ("dtype", "name"), [(TensorProto.INT4, "int4"), (TensorProto.FLOAT8E4M3FN, "fp8")]
)
def test_fp8_and_int4_are_chosen(build: Build, dtype: int, name: str) -> None:
    result = build(quantized_product(dtype), (static("x", 32, 128),))
    assert name in [one.dtype for one in read_layers(result.layers).layers if one.computes]


def product(dtype: int) -> onnx.ModelProto:
    """`y = x W`, all of one type."""
    ends = [
        helper.make_tensor_value_info(name, dtype, [32, size])
        for name, size in (("x", 128), ("y", 64))
    ]
    weights = helper.make_tensor("w", dtype, [128, 64], [0.1] * (128 * 64))
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="product")
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], [weights])
    opsets = [helper.make_opsetid("", 21)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


TYPED = {
    "fp32 conv": (convolutions(1), static("t0", 1, 16, 32, 32)),
    "fp32": (product(TensorProto.FLOAT), static("x", 32, 128)),
    "fp16": (product(TensorProto.FLOAT16), static("x", 32, 128)),
    "bf16": (product(TensorProto.BFLOAT16), static("x", 32, 128)),
    "int4": (quantized_product(TensorProto.INT4), static("x", 32, 128)),
    "fp8": (quantized_product(TensorProto.FLOAT8E4M3FN), static("x", 32, 128)),
}


@pytest.mark.parametrize("name", TYPED)
@pytest.mark.parametrize("capability", COMPUTE_CAPABILITIES)
def test_the_builder_fails_where_a_gpu_lacks_the_type(
    build: Build, capability: str, name: str
) -> None:
    model, shape = TYPED[name]
    typed = serde.from_proto(onnx.shape_inference.infer_shapes(model))
    found = find_unsupported_types(typed, {}, TrtLibrary.RTX, [capability])
    try:
        build(model, (shape,), compute_capabilities=(capability,))
    except ConversionError:
        assert [one.fault for one in found] == [TrtFault.CAPABILITY]
    else:
        assert not found


@pytest.mark.parametrize("name", ["Attention:4D", "Attention:4D half", "Attention:3D"])
def test_attention_is_built(build: Build, name: str) -> None:
    model = MODELS[name].make()
    built = build(model, tuple(static(f"x{i}", *_sizes(model, i)) for i in range(3)))
    assert [one.name for one in built.outputs] == [one.name for one in model.graph.output]


def _sizes(model: onnx.ModelProto, index: int) -> tuple[int, ...]:
    shape = model.graph.input[index].type.tensor_type.shape
    return tuple(dim.dim_value for dim in shape.dim)


@pytest.mark.parametrize("name", ["TopK:computed", "Slice:computed", "Range"])
def test_an_input_that_sets_a_size_is_built_with_its_range(build: Build, name: str) -> None:
    model = MODELS[name].make()
    inputs = [one.name for one in model.graph.input]
    ranges = [static(one, *_sizes(model, i)) for i, one in enumerate(inputs)]
    with pytest.raises(ConversionError, check=has_code(ErrorCode.MISSING_DIMS, option="input")):
        build(model, tuple(ranges))
    ranges[-1] = static(inputs[-1], *_sizes(model, len(inputs) - 1), values=(1, 5, 10))
    assert build(model, tuple(ranges)).inputs[-1].name == inputs[-1]


def test_dynamic_shapes_and_progress(build: Build) -> None:
    seen: list[int] = []
    x = ShapeRange(name="t0", low=(1, 16, 32, 32), opt=(4, 16, 32, 32), high=(8, 16, 32, 32))
    build(convolutions(8, batch="n"), (x,), lambda done, _: seen.append(done))
    assert seen
    assert seen == sorted(seen)


def test_options_of_the_builder(build: Build, tmp_path: Path) -> None:
    build(
        convolutions(1),
        (static("t0", 1, 16, 32, 32),),
        workspace=1 << 28,
        optimization_level=1,
        tf32=False,
        weight_streaming=True,
        compute_capabilities=("7.5", "8.9", "12.0"),
    )
    assert (tmp_path / "model.rtx.engine").stat().st_size


def test_weights_in_another_file(build: Build, tmp_path: Path) -> None:
    model = convolutions(2)
    onnx.save(
        model, tmp_path / "model.onnx", save_as_external_data=True, location="model.onnx.data",
        size_threshold=0,
    )  # fmt: skip
    assert (tmp_path / "model.onnx.data").stat().st_size > 16_000
    build(
        onnx.load(tmp_path / "model.onnx", load_external_data=False), (static("t0", 1, 16, 32, 32),)
    )
    assert (tmp_path / "model.rtx.engine").is_file()


def test_a_rejected_operator_is_named(build: Build, tmp_path: Path) -> None:
    model = MODELS["Det"].make()
    with pytest.raises(
        ConversionError, check=has_code(ErrorCode.RUNTIME_FAILED, naming="Det node")
    ):
        build(model, (static("x0", 4, 4),))
    assert not (tmp_path / "model.rtx.engine").exists()


def test_an_interrupted_build_leaves_nothing(tmp_path: Path) -> None:
    onnx.save(convolutions(400), tmp_path / "model.onnx")
    code = f"""
        from modelc.converters.trt.build_launcher import build_with_python
        from modelc.converters.trt.engine_options import EngineOptions, ShapeRange
        from modelc.converters.trt.engine_records import BuildRequest
        from modelc.converters.trt.trt_installation import TrtLibrary

        shape = (1, 16, 32, 32)
        x = ShapeRange(name="t0", low=shape, opt=shape, high=shape)
        request = BuildRequest(
            onnx={str(tmp_path / "model.onnx")!r},
            engine={str(tmp_path / "model.rtx.engine")!r},
            profiles=((x,),),
            options=EngineOptions(optimization_level=5),
            library=TrtLibrary.RTX,
        )
        build_with_python(request, lambda done, total: print(done, flush=True))
    """
    ran = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert ran.stdout is not None
    ran.stdout.readline()
    ran.send_signal(signal.SIGINT)
    began = time.monotonic()
    ran.communicate(timeout=60)
    assert time.monotonic() - began < 45
    assert ran.returncode != 0
    assert {one.name for one in tmp_path.iterdir()} == {"model.onnx"}
