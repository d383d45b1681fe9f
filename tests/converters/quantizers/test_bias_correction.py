"""The mean error of rounded weights and activations is added to the bias."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from modelc.converters.quantizers.qdq_biases import _mean_output, correct_biases
from modelc.converters.quantizers.quantization_checks import ChannelMeans

if TYPE_CHECKING:
    from numpy.typing import NDArray

CASES: dict[str, tuple[tuple[str, dict[str, Any]], tuple[int, ...], int]] = {
    "conv": (("Conv", {}), (6, 4, 1, 1), 0),
    "grouped conv": (("Conv", {"group": 2}), (6, 2, 1, 1), 0),
    "gemm": (("Gemm", {}), (4, 6), 1),
    "transposed gemm": (("Gemm", {"transB": 1, "alpha": 0.5}), (6, 4), 0),
    "matmul": (("MatMul", {}), (4, 6), 1),
}


def models(case: str, *, integer_bias: bool) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """The float model, and one whose weights are rounded to coarse steps along the channel axis."""
    (operator, attributes), shape, axis = CASES[case]
    draw = np.random.default_rng(0)
    weights = draw.normal(size=shape).astype(np.float32)
    bias = draw.normal(size=6).astype(np.float32)
    scale = draw.uniform(0.2, 0.4, 6).astype(np.float32)
    along = scale.reshape([-1 if i == axis else 1 for i in range(len(shape))])
    rounded = np.clip(np.rint(weights / along), -127, 127).astype(np.int8)
    first = node(operator, "w", "b", attributes)
    exact = model_of(first, {"w": weights, "b": bias}, operator)
    constants = {"wq": rounded, "ws": scale, "wz": np.zeros(6, np.int8)}
    taken = [helper.make_node("DequantizeLinear", ["wq", "ws", "wz"], ["wd"], axis=axis)]
    if integer_bias:
        steps = scale * np.float32(0.001)
        constants |= {"bq": np.rint(bias / steps).astype(np.int32), "bs": steps}
        constants["bz"] = np.zeros(6, np.int32)
        taken.append(helper.make_node("DequantizeLinear", ["bq", "bs", "bz"], ["b"], axis=0))
    else:
        constants["b"] = bias
    second = node(operator, "wd", "b", attributes)
    return exact, model_of([*taken, *second], constants, operator)


def node(
    operator: str, weights: str, bias: str, attributes: dict[str, Any]
) -> list[onnx.NodeProto]:
    if operator != "MatMul":
        made = helper.make_node(operator, ["x", weights, bias], ["y"], name="p", **attributes)
        return [made]
    return [
        helper.make_node("MatMul", ["x", weights], ["m"], name="p"),
        helper.make_node("Add", ["m", bias], ["y"], name="sum"),
    ]


def model_of(
    nodes: list[onnx.NodeProto], constants: dict[str, NDArray[np.generic]], operator: str
) -> onnx.ModelProto:
    shape: list[str | int | None] = ["n", 4, 3, 3] if operator == "Conv" else ["n", 4]
    graph = helper.make_graph(
        nodes,
        "one product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def mean_output(model: onnx.ModelProto, x: NDArray[np.float32]) -> NDArray[np.float64]:
    from onnx.reference import ReferenceEvaluator

    (y, *_) = map(np.asarray, ReferenceEvaluator(model).run(None, {"x": x}))
    others = tuple(i for i in range(y.ndim) if i != 1)
    mean: NDArray[np.float64] = y.mean(axis=others, dtype=np.float64)
    return mean


@pytest.mark.parametrize("integer_bias", [False, True], ids=["float bias", "integer bias"])
@pytest.mark.parametrize("case", CASES)
def test_the_mean_output_becomes_that_of_the_float_model(case: str, integer_bias: bool) -> None:
    exact, rounded = models(case, integer_bias=integer_bias)
    shape = (50, 4, 3, 3) if "conv" in case else (50, 4)
    x = np.random.default_rng(1).normal(2.0, 1.0, shape).astype(np.float32)
    mean = x.mean(axis=tuple(i for i in range(x.ndim) if i != 1), dtype=np.float64)
    wanted, spatial = mean_output(exact, x), x.shape[2:]
    before = np.abs(mean_output(rounded, x) - wanted).max()
    assert (
        correct_biases(
            rounded, exact, {"p": ChannelMeans(exact=mean, rounded=mean, spatial=spatial)}
        )
        == 1
    )
    after = np.abs(mean_output(rounded, x) - wanted).max()
    assert before > 0.1
    assert after < 1e-3


def test_the_rounding_of_the_input_is_corrected() -> None:
    exact, rounded = models("matmul", integer_bias=False)
    x = np.full((5, 4), 0.49, np.float32)  # rounds to 0 at a step of 1
    means = ChannelMeans(exact=x[0].astype(np.float64), rounded=np.zeros(4))
    correct_biases(rounded, exact, {"p": means})
    wanted = mean_output(exact, x)
    assert np.allclose(mean_output(rounded, np.rint(x)), wanted, atol=1e-5)


def share_bias(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("Gemm", ["x", "wd", "b"], ["y2"], name="twin"))


def remove_bias(model: onnx.ModelProto) -> None:
    del model.graph.node[-1].input[2]


def turn_bias(model: onnx.ModelProto) -> None:
    """Put the bias on another axis than the channels."""
    for tensor in model.graph.initializer:
        if tensor.name == "b":
            tensor.dims[:] = [6, 1]


@pytest.mark.parametrize(
    ("case", "change"), [("gemm", share_bias), ("conv", remove_bias), ("matmul", turn_bias)]
)
def test_a_shared_missing_or_turned_bias_is_not_corrected(
    case: str, change: Callable[[onnx.ModelProto], None]
) -> None:
    exact, rounded = models(case, integer_bias=False)
    change(rounded)
    before = rounded.SerializeToString()
    mean = np.ones(4)
    assert correct_biases(rounded, exact, {"p": ChannelMeans(exact=mean, rounded=mean)}) == 0
    assert rounded.SerializeToString() == before


@pytest.mark.parametrize(("kernel", "size"), [(3, 8), (7, 4), (11, 2)])
def test_padding_counts_as_zeros(kernel: int, size: int) -> None:
    from onnx.reference import ReferenceEvaluator

    draw = np.random.default_rng(0)
    weights = draw.normal(size=(6, 4, kernel, kernel)).astype(np.float32)
    conv = helper.make_node("Conv", ["x", "w"], ["y"], name="p", pads=[kernel // 2] * 4)
    x = np.ones((1, 4, size, size), dtype=np.float32)  # every element is the mean
    (y, *_) = map(np.asarray, ReferenceEvaluator(conv).run(None, {"x": x, "w": weights}))
    found = _mean_output(conv, weights.astype(np.float64), np.ones(4), (size, size))
    assert found is not None
    assert np.allclose(found, y.mean(axis=(0, 2, 3)), rtol=1e-3, atol=1e-3)
