"""INT8 for TensorRT with the other layers in half precision: `tensorrt-onnx` with a rest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from modelc.converters import tensorrt_onnx
from modelc.converters.trt.qdq_rules import check_qdq, find_layer_groups, find_small_scales
from modelc.core.contract import Converted, Job
from modelc.core.grammar import parse_input
from modelc.core.kinds import Precision
from modelc.core.signature import merge_inputs

if TYPE_CHECKING:
    from numpy.typing import NDArray

SIGNATURE = merge_inputs([parse_input("x:float32[batch=1..4,4,8,8]")], {}).with_outputs(("y",))
FEED = {"x": np.random.default_rng(1).normal(0, 1, (2, 4, 8, 8)).astype(np.float32)}
Lower = Callable[..., tuple[Converted, Path]]


def quantized(*, scale: float = 0.03, gain: float = 1.0) -> onnx.ModelProto:
    """Two quantized convolutions; the second reads its data through a Transpose and back."""
    weights = np.random.default_rng(0).integers(-100, 100, (4, 4, 3, 3)).astype(np.int8)
    initializers = [
        numpy_helper.from_array(np.asarray(0.03, np.float32), "s_x"),
        numpy_helper.from_array(np.asarray(scale, np.float32), "s_w"),
        numpy_helper.from_array(np.asarray(gain, np.float32), "gain"),
        numpy_helper.from_array(np.asarray(0, np.int8), "zero"),
        numpy_helper.from_array(weights, "w"),
    ]
    pads: dict[str, Any] = {"pads": [1, 1, 1, 1]}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s_x", "zero"], ["xq"], name="q_x"),
        helper.make_node("DequantizeLinear", ["xq", "s_x", "zero"], ["xd"], name="dq_x"),
        helper.make_node("DequantizeLinear", ["w", "s_w", "zero"], ["wd"], name="dq_w"),
        helper.make_node("Conv", ["xd", "wd"], ["a"], name="conv_a", **pads),
        helper.make_node("Mul", ["a", "gain"], ["b"], name="mul"),
        helper.make_node("Relu", ["b"], ["c"], name="relu"),
        helper.make_node("QuantizeLinear", ["c", "s_x", "zero"], ["cq"], name="q_c"),
        helper.make_node("DequantizeLinear", ["cq", "s_x", "zero"], ["cd"], name="dq_c"),
        helper.make_node("Transpose", ["cd"], ["t"], name="turn", perm=[0, 1, 3, 2]),
        helper.make_node("DequantizeLinear", ["w", "s_w", "zero"], ["vd"], name="dq_v"),
        helper.make_node("Conv", ["t", "vd"], ["y"], name="conv_b", **pads),
    ]
    shape: list[str | int | None] = ["batch", 4, 8, 8]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], initializers)
    opsets = [helper.make_opsetid("", 20)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.fixture
def lower(tmp_path: Path) -> Lower:
    """`lower(model, rest, half_io=True)`: the result of the conversion, and the file."""

    def make(
        model: onnx.ModelProto, rest: Precision, *, half_io: bool = False
    ) -> tuple[Converted, Path]:
        onnx.save(model, tmp_path / "model.int8.onnx")
        (tmp_path / "out").mkdir(exist_ok=True)
        job = Job(
            signature=SIGNATURE,
            precision=Precision.INT8,
            folder=tmp_path / "out",
            stem=f"model.{rest}",
            example=FEED,
            parent=tmp_path / "model.int8.onnx",
            feeds=(FEED,),
            rest=rest,
            half_io=half_io,
        )
        made = tensorrt_onnx.convert(job)
        return made, tmp_path / "out" / made.files[0][0]

    return make


def answer(path: Path) -> NDArray[np.float32]:
    with tensorrt_onnx.open_runner(path, "cpu", SIGNATURE) as runner:
        return np.asarray(runner.run(FEED)["y"])


@pytest.mark.parametrize("half_io", [False, True])
@pytest.mark.parametrize("rest", [Precision.FP16, Precision.BF16])
def test_the_rest_is_lowered_and_layers_stay_int8(
    lower: Lower, rest: Precision, half_io: bool
) -> None:
    _, plain = lower(quantized(), Precision.FP32)
    made, path = lower(quantized(), rest, half_io=half_io)
    assert made.options["rest"] == str(rest)
    assert tensorrt_onnx.inspect(path).metadata["modelc.rest"] == str(rest)
    assert check_qdq(onnx_ir.load(path), {}) == ()
    covered = tensorrt_onnx.coverage(path, FEED, "cpu")
    assert covered is not None
    assert covered.layers == {"int8": 2}
    graph = onnx.load(path).graph
    ends = {value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)}
    half = TensorProto.FLOAT16 if rest is Precision.FP16 else TensorProto.BFLOAT16
    assert ends == {half if half_io else TensorProto.FLOAT}
    wanted, found = answer(plain), answer(path)
    assert found.dtype == np.float32
    assert np.abs(found - wanted).max() <= 0.02 * np.abs(wanted).max()


def test_fp32_leaves_the_file_as_the_quantizer_wrote_it(lower: Lower) -> None:
    made, path = lower(quantized(), Precision.FP32)
    assert "rest" not in made.options
    assert {tensor.data_type for tensor in onnx.load(path).graph.initializer} <= {
        TensorProto.FLOAT, TensorProto.INT8,
    }  # fmt: skip


def test_a_group_is_a_layer_with_its_q_and_dq() -> None:
    model = onnx_ir.from_proto(quantized())
    groups = {tuple(sorted(group)) for group in find_layer_groups(model)}
    assert groups == {
        ("conv_a", "dq_w", "dq_x", "q_x"), ("conv_b", "dq_c", "dq_v", "q_c", "turn"),
    }  # fmt: skip
    assert find_small_scales(model) == ()


def test_scales_that_fp16_holds_badly_keep_their_layers_in_fp32(lower: Lower) -> None:
    model = quantized(scale=1e-7, gain=1e5)
    assert set(find_small_scales(onnx_ir.from_proto(model))) == {"dq_w", "dq_v"}
    _, plain = lower(model, Precision.FP32)
    _, path = lower(model, Precision.FP16)
    wanted, found = answer(plain), answer(path)
    assert np.abs(wanted).max() > 0
    assert np.abs(found - wanted).max() <= 0.01 * np.abs(wanted).max()
    covered = tensorrt_onnx.coverage(path, FEED, "cpu")
    assert covered is not None
    assert covered.layers == {"int8": 2}


def test_a_layer_that_overflows_stays_fp32_with_its_q_and_dq(lower: Lower) -> None:
    model = quantized(scale=500.0, gain=1e-5)
    _, plain = lower(model, Precision.FP32)
    made, path = lower(model, Precision.FP16)
    kept = made.options.get("kept in fp32")
    assert kept
    assert np.isfinite(answer(path)).all()
    wanted, found = answer(plain), answer(path)
    assert np.abs(found - wanted).max() <= 0.02 * np.abs(wanted).max()
    covered = tensorrt_onnx.coverage(path, FEED, "cpu")
    assert covered is not None
    assert covered.layers == {"int8": 2}


@pytest.mark.rtx
@pytest.mark.slow
@pytest.mark.parametrize("rest", [Precision.FP32, Precision.FP16, Precision.BF16])
@pytest.mark.parametrize("scale", [0.03, 1e-7, 50.0])
def test_the_real_builder_takes_every_rest(
    lower: Lower, tmp_path: Path, rest: Precision, scale: float
) -> None:
    pytest.importorskip("tensorrt_rtx")
    from modelc.converters.trt.build_launcher import build_with_python
    from modelc.converters.trt.engine_options import EngineOptions
    from modelc.converters.trt.engine_profiles import profiles_for
    from modelc.converters.trt.engine_records import BuildRequest
    from modelc.converters.trt.trt_installation import TrtLibrary

    _, path = lower(quantized(scale=scale), rest)
    request = BuildRequest(
        onnx=str(path),
        engine=str(tmp_path / "model.rtx.engine"),
        profiles=profiles_for(SIGNATURE, ()),
        options=EngineOptions(),
        library=TrtLibrary.RTX,
    )
    build_with_python(request, lambda *_: None)
    assert (tmp_path / "model.rtx.engine").stat().st_size > 0
