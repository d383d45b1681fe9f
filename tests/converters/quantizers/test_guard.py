"""Every Q/DQ model is checked: scales that cannot be right, and a model that is not quantized."""

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
def test_a_scale_that_cannot_be_is_refused_with_its_node(scale: float) -> None:
    with pytest.raises(ConversionError, match=rf"\bgive\b.* {scale}"):
        check_quantized(product(scale), {})


@pytest.mark.parametrize("scale", [np.inf, np.nan, 0.0])
def test_one_bad_channel_of_the_weights_is_refused(scale: float) -> None:
    with pytest.raises(ConversionError, match=rf"\bweights\b.* {scale}"):
        check_quantized(product(0.01, (0.1, scale)), {})


def test_a_step_beyond_the_useful_values_is_refused_with_who_reads_them() -> None:
    with pytest.raises(ConversionError, match=r"x .*for product"):
        check_quantized(product(39.2), {"x": 0.7})


def test_a_step_just_within_them_is_not() -> None:
    assert list(find_lost_tensors(product(0.69), {"x": 0.7})) == []


def test_a_tensor_with_nothing_between_zero_and_its_fill_is_not_lost() -> None:
    assert list(find_lost_tensors(product(39.2), {"x": 0.0})) == []


def test_a_model_whose_weights_alone_are_quantized_is_not_in_8_bits() -> None:
    model = product(0.01)
    model.graph.node[3].input[0] = "x"
    with pytest.raises(NothingQuantizedError):
        check_quantized(model, {})
