"""Quantized weights are stored in 8 bits, with the same outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from modelc.converters.quantizers.qdq_finishing import fold_weights

from .conftest import FloatModel, Quantize, sqnr


def model(scale: list[float], axis: int) -> onnx.ModelProto:
    """`y = x (dequantized w)`, with the weights in floats."""
    size = f"float[{len(scale)}]" if len(scale) > 1 else "float"
    kind = size.replace("float", "int8")
    made = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 20]> g (float[n,4] x) => (float[n,6] y)'
        f" <{size} s, {kind} z> {{ q = QuantizeLinear<axis={axis}>(w, s, z)"
        f" d = DequantizeLinear<axis={axis}>(q, s, z) y = MatMul(x, d) }}"
    )
    del made.graph.value_info[:]
    weights = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    scales = np.array(scale if len(scale) > 1 else scale[0], dtype=np.float32)
    zeros = np.zeros(scales.shape, np.int8)
    constants: dict[str, np.ndarray[Any, Any]] = {"w": weights, "s": scales, "z": zeros}
    made.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in constants.items())
    return made


@pytest.mark.parametrize(
    ("scale", "axis"), [([0.01], 1), ([0.01 * n for n in range(1, 7)], 1), ([0.01, 1, 2, 3], 0)]
)
def test_folding_keeps_the_outputs_and_removes_the_floats(scale: list[float], axis: int) -> None:
    made = model(scale, axis)
    feed = {"x": np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)}
    (before, *_) = map(np.asarray, ReferenceEvaluator(made).run(None, feed))
    fold_weights(made)
    onnx.checker.check_model(made)
    (after, *_) = map(np.asarray, ReferenceEvaluator(made).run(None, feed))
    assert np.array_equal(before, after)
    kinds = {tensor.name: tensor.data_type for tensor in made.graph.initializer}
    assert "w" not in kinds
    assert kinds["q"] == onnx.TensorProto.INT8


@pytest.mark.filterwarnings("ignore")
def test_modelopt_for_openvino_is_small(quantized: Quantize, digits: FloatModel) -> None:
    made = quantized("modelopt", "digits", "openvino")
    kinds = [t.data_type for t in onnx.load(made.path).graph.initializer if len(t.dims) > 1]
    assert kinds.count(onnx.TensorProto.INT8) >= 3
    assert sqnr(made.path, digits) > 25
