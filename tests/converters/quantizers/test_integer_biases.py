"""Biases of integer products are int32, so that ONNX Runtime has an integer kernel for them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from modelc.converters.quantizers.qdq_biases import quantize_biases

BODIES = {
    "MatMul": "m = MatMul(a, w) y = Add(m, b)",
    "MatMul, bias first": "m = MatMul(a, w) y = Add(b, m)",
    "Gemm": "y = Gemm(a, w, b)",
    "Gemm of rows": "y = Gemm<transB=1>(a, w, b)",
    "Conv": "y = Conv(a, w, b)",
}
SHAPES = {"Gemm of rows": (6, 4), "Conv": (6, 4, 1, 1)}
INPUTS = {"Conv": "float[n,4,5,5] x"}
ROWS = ("Gemm of rows", "Conv")


def quantized(name: str, *, per_channel: bool = True, bias: float = 1.0) -> onnx.ModelProto:
    """A product of data in uint8 and weights in int8, with a float bias."""
    shape, axis = SHAPES.get(name, (4, 6)), 0 if name in ROWS else 1
    size = "float[6]" if per_channel else "float"
    output = "float[n,6,5,5] y" if name == "Conv" else "float[n,6] y"
    dims = ",".join(map(str, shape))
    made = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 20]> g ({INPUTS.get(name, "float[n,4] x")})'
        f" => ({output})"
        f" <float s, uint8 z, {size} ws, {size.replace('float', 'int8')} wz, int8[{dims}] wq,"
        f" float[6] b> {{ q = QuantizeLinear(x, s, z) a = DequantizeLinear(q, s, z)"
        f" w = DequantizeLinear<axis={axis}>(wq, ws, wz) {BODIES[name]} }}"
    )
    random = np.random.default_rng(0)
    scales = np.float32(0.01) * (np.arange(6, dtype=np.float32) + 1 if per_channel else 1)
    arrays = {
        "s": np.float32(0.02), "z": np.uint8(128), "ws": np.asarray(scales, np.float32),
        "wz": np.zeros(np.shape(scales), np.int8), "wq": random.integers(-127, 128, shape, np.int8),
        "b": (bias * random.normal(size=6)).astype(np.float32),
    }  # fmt: skip
    del made.graph.value_info[:]
    made.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(one), key) for key, one in arrays.items()
    )
    for index, node in enumerate(made.graph.node):
        node.name = f"node{index}"
    return made


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("name", BODIES)
def test_the_outputs_stay_within_half_a_step(name: str, per_channel: bool) -> None:
    made = quantized(name, per_channel=per_channel)
    shape = (3, 4, 5, 5) if name == "Conv" else (3, 4)
    feed = {"x": np.random.default_rng(1).normal(size=shape).astype(np.float32)}
    (before,) = map(np.asarray, ReferenceEvaluator(made).run(None, feed))
    assert quantize_biases(made) == 1
    nodes = {node.output[0]: node for node in made.graph.node}
    added = next(node for key, node in nodes.items() if key.endswith("::bias::dequantized"))
    made.graph.node.remove(added)
    made.graph.node.insert(0, added)
    onnx.checker.check_model(made)
    (after,) = map(np.asarray, ReferenceEvaluator(made).run(None, feed))
    assert np.abs(after - before).max() <= 0.5 * 0.02 * 0.06 + 1e-5
    assert "b" not in {tensor.name for tensor in made.graph.initializer}


@pytest.mark.parametrize("name", BODIES)
def test_onnx_runtime_computes_the_product_in_integers(name: str, tmp_path: Path) -> None:
    made = quantized(name)
    quantize_biases(made)
    found = operators(made, tmp_path / "optimized.onnx")
    assert not {"Gemm", "MatMul", "Conv"} & set(found)
    assert found["DequantizeLinear"] <= (1 if name == "Conv" else 0)  # of the output


def operators(model: onnx.ModelProto, path: Path) -> Counter[str]:
    """The operators that ONNX Runtime runs."""
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(sorted(nodes, key=lambda one: not one.name.endswith("::bias")))
    if any(node.op_type == "Conv" for node in nodes):  # its kernel also needs a quantized output
        last = next(node for node in model.graph.node if node.op_type == "Conv")
        last.output[0] = "c"
        model.graph.node.extend([
            onnx.helper.make_node("QuantizeLinear", ["c", "s", "z"], ["cq"]),
            onnx.helper.make_node("DequantizeLinear", ["cq", "s", "z"], ["y"]),
        ])  # fmt: skip
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath, options.log_severity_level = str(path), 3
    onnxruntime.InferenceSession(model.SerializeToString(), options)
    return Counter(node.op_type for node in onnx.load(path).graph.node)


def test_a_bias_that_int32_cannot_hold_stays_float() -> None:
    made = quantized("MatMul", bias=1e9)
    assert quantize_biases(made) == 0
    assert "b" in {tensor.name for tensor in made.graph.initializer}


def test_a_product_with_float_weights_keeps_its_bias() -> None:
    made = quantized("Gemm")
    for node in made.graph.node:
        if node.op_type == "Gemm":
            node.input[1] = "plain"
    made.graph.initializer.append(numpy_helper.from_array(np.ones((4, 6), np.float32), "plain"))
    assert quantize_biases(made) == 0


def test_the_biases_of_nodes_of_one_name_stay_apart() -> None:
    made = quantized("Gemm")
    made.graph.node[-1].output[0] = "first"
    made.graph.node.extend([
        onnx.helper.make_node("Gemm", ["a", "w", "other"], ["second"], name="node3"),
        onnx.helper.make_node("Sub", ["first", "second"], ["y"], name="sub"),
    ])  # fmt: skip
    made.graph.initializer.extend([
        numpy_helper.from_array(np.arange(6, dtype=np.float32), "other"),
        numpy_helper.from_array(np.zeros(6, np.float32), "node3_bias_scale"),
    ])  # fmt: skip
    assert quantize_biases(made) == 2
    names = [tensor.name for tensor in made.graph.initializer]
    outputs = [name for node in made.graph.node for name in node.output]
    assert len(names + outputs) == len({*names, *outputs})


def test_scales_without_zero_points_keep_their_bias(tmp_path: Path) -> None:
    made = quantized("MatMul")
    for node in made.graph.node:
        if node.output[0] == "w":
            del node.input[2]
    assert quantize_biases(made) == 0
    operators(made, tmp_path / "optimized.onnx")
    feed = {"x": np.ones((2, 4), np.float32)}
    onnxruntime.InferenceSession(made.SerializeToString()).run(None, feed)
