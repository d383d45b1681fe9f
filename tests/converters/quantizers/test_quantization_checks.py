"""Checks of every Q/DQ model: its scales, and that it is quantized."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from modelc.converters.quantizers.quantization_checks import (
    NothingQuantizedError,
    check_quantized,
    find_lost_tensors,
)
from modelc.core.errors import ConversionError


def product(scale: float, weight_scale: tuple[float, ...] = (0.1, 0.2)) -> onnx.ModelProto:
    """y = Q/DQ(x) @ DQ(w), with these scales."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"], name="give"),
        helper.make_node("DequantizeLinear", ["xq", "s", "z"], ["xd"], name="take"),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], name="weights", axis=1),
        helper.make_node("MatMul", ["xd", "wd"], ["y"], name="product"),
    ]
    constants = {
        "s": np.float32(scale),
        "z": np.uint8(128),
        "w": np.ones((4, 2), np.int8),
        "ws": np.array(weight_scale, np.float32),
        "wz": np.zeros(2, np.int8),
    }
    graph = helper.make_graph(
        nodes,
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    return helper.make_model(graph)


def test_a_good_model_has_its_products_counted() -> None:
    assert check_quantized(product(0.01), {"x": 1.0}) == 1


@pytest.mark.parametrize("scale", [np.inf, np.nan, 0.0, -0.1])
@pytest.mark.parametrize("node", ["give", "weights"])
def test_an_invalid_scale_is_an_error_with_its_node(node: str, scale: float) -> None:
    model = product(scale) if node == "give" else product(0.01, (0.1, scale))
    with pytest.raises(ConversionError, match=rf"\b{node}\b.* {scale}") as caught:
        check_quantized(model, {})
    assert caught.value.option == "keep-fp"


def test_a_step_beyond_the_useful_values_is_an_error_with_their_reader() -> None:
    with pytest.raises(ConversionError) as caught:
        check_quantized(product(39.2), {"x": 0.7})
    assert "--keep-fp product" in caught.value.hint


@pytest.mark.parametrize(("scale", "useful"), [(0.69, 0.7), (39.2, 0.0)])
def test_a_step_below_the_useful_values_or_without_any_loses_nothing(
    scale: float, useful: float
) -> None:
    assert list(find_lost_tensors(product(scale), {"x": useful})) == []


def test_a_model_with_quantized_weights_only_is_not_quantized() -> None:
    model = product(0.01)
    model.graph.node[3].input[0] = "x"
    with pytest.raises(NothingQuantizedError):
        check_quantized(model, {})
