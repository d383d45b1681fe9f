"""The Q/DQ rules: each fault planted in a small correct network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from modelc.converters.onnx_origins import NodeOrigin
from modelc.converters.trt.qdq_rules import check_qdq
from modelc.converters.trt.trt_findings import TrtFault, TrtFinding, TrtSeverity, describe_findings

ORIGINS = {"conv": NodeOrigin(module="stem.conv"), "fc": NodeOrigin(module="head.fc")}


@dataclass
class Net:
    """A network that grows node by node; tensors are known by name."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=lambda: ["y"])

    def const(self, name: str, value: object, dtype: object = np.float32) -> str:
        self.weights[name] = np.asarray(value, dtype=dtype)  # type: ignore[call-overload]  # any dtype
        return name

    def node(self, operator: str, inputs: list[str], output: str, **attributes: Any) -> str:
        name = attributes.pop("name", f"{operator}_{output}")
        self.nodes.append(helper.make_node(operator, inputs, [output], name=name, **attributes))
        return output

    def pair(
        self,
        data: str,
        *,
        scale: object = 0.1,
        zero: object = 0,
        dtype: object = np.int8,
        **axis: int,
    ) -> str:
        """Q and DQ on a tensor, with the same scale and zero point."""
        shared = [self.const(f"{data}_s", scale), self.const(f"{data}_z", zero, dtype)]
        self.node("QuantizeLinear", [data, *shared], f"{data}_q", **axis)
        return self.node("DequantizeLinear", [f"{data}_q", *shared], f"{data}_dq", **axis)

    def weight(self, name: str, shape: tuple[int, ...], *, axis: int, scales: int = 0) -> str:
        """An int8 weight with a DQ of one scale a channel."""
        count = scales or shape[axis]
        data = self.const(name, np.ones(shape), np.int8)
        shared = [
            self.const(f"{name}_s", [0.1] * count),
            self.const(f"{name}_z", [0] * count, np.int8),
        ]
        return self.node("DequantizeLinear", [data, *shared], f"{name}_dq", axis=axis)

    def model(self) -> onnx_ir.Model:
        graph = helper.make_graph(
            self.nodes,
            "net",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 8, 8])],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in self.outputs],
            [numpy_helper.from_array(value, name) for name, value in self.weights.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
        return onnx_ir.from_proto(model)


def conv(net: Net, data: str, weight: str, output: str = "y", name: str = "conv") -> str:
    bias = net.const(f"{output}_b", [0.5] * 4)
    return net.node("Conv", [data, weight, bias], output, name=name, pads=[1, 1, 1, 1])


def quantized(**pair: Any) -> Net:
    """One convolution in int8 that TensorRT supports."""
    net = Net()
    conv(net, net.pair("x", **pair), net.weight("w", (4, 3, 3, 3), axis=0))
    return net


def found(net: Net, *, required: bool = True) -> tuple[TrtFinding, ...]:
    return check_qdq(net.model(), ORIGINS, required=required)


def errors(net: Net) -> list[TrtFault]:
    return [one.fault for one in found(net) if one.severity is TrtSeverity.ERROR]


def warnings(net: Net) -> list[TrtFault]:
    return [one.fault for one in found(net) if one.severity is TrtSeverity.WARNING]


def test_a_symmetric_int8_convolution_has_no_fault() -> None:
    assert found(quantized()) == ()


def test_a_nonzero_zero_point_is_an_error_with_its_value() -> None:
    first = found(quantized(zero=3))[0]
    assert first.fault is TrtFault.ASYMMETRIC
    assert first.detail == "3"


@pytest.mark.parametrize("dtype", [np.uint8, np.int16], ids=["uint8", "int16"])
def test_another_type_than_int8_is_an_error(dtype: object) -> None:
    both = [one for one in found(quantized(dtype=dtype)) if one.fault is TrtFault.QUANTIZED_TYPE]
    assert [one.detail for one in both] == [np.dtype(dtype).name] * 2  # type: ignore[call-overload]  # any dtype


def test_without_a_zero_point_the_type_is_uint8_unless_output_dtype_is_set() -> None:
    net = quantized()
    for node in net.nodes[:2]:
        del node.input[2]
    assert {one.detail for one in found(net)} == {"uint8"}
    net.nodes[0].attribute.append(helper.make_attribute("output_dtype", TensorProto.INT8))
    assert found(net) == ()


@pytest.mark.parametrize(
    ("scale", "fault"),
    [
        (0.0, TrtFault.NEGATIVE_SCALE),
        (-0.5, TrtFault.NEGATIVE_SCALE),
        (np.inf, TrtFault.INFINITE_SCALE),
        (np.nan, TrtFault.INFINITE_SCALE),
    ],
)
def test_a_scale_is_positive_and_finite(scale: float, fault: TrtFault) -> None:
    assert errors(quantized(scale=scale)) == [fault, fault]


def test_one_bad_scale_among_the_channels_is_found() -> None:
    net = quantized()
    net.weights["w_s"][2] = np.inf
    assert [one.detail for one in found(net)] == ["inf"]


def test_a_scale_that_is_computed_is_an_error() -> None:
    net = quantized()
    net.nodes.insert(0, helper.make_node("ReduceMax", ["x"], ["s"], keepdims=0))
    for node in net.nodes[1:3]:
        node.input[1] = "s"
    assert errors(net) == [TrtFault.COMPUTED_SCALE] * 2


def test_an_int32_bias_behind_a_dq_is_an_error() -> None:
    net = quantized()
    bias = [net.const("b", [1, 2, 3, 4], np.int32), net.const("b_s", [0.1] * 4)]
    net.node("DequantizeLinear", [*bias, net.const("b_z", [0] * 4, np.int32)], "b_dq", axis=0)
    net.nodes.insert(0, net.nodes.pop())
    net.nodes[-1].input[2] = "b_dq"
    (only,) = found(net)
    assert only.fault is TrtFault.INT32_BIAS
    assert only.place == "stem.conv (DequantizeLinear DequantizeLinear_b_dq)"


@pytest.mark.parametrize(
    ("operator", "inputs", "domain", "fault"),
    [
        ("QuantizeLinear", ["x", "x_s", "x_z"], "", TrtFault.UNREAD_QUANTIZE),
        ("QuantizeLinear", ["x", "x_s", "x_z"], "com.microsoft", TrtFault.FOREIGN_QDQ),
        ("Transpose", ["x_q"], "", TrtFault.QUANTIZE_READER),
        ("QLinearConv", ["x"], "", TrtFault.INTEGER_OPERATOR),
        ("MatMulInteger", ["x"], "", TrtFault.INTEGER_OPERATOR),
        ("DynamicQuantizeLinear", ["x"], "", TrtFault.INTEGER_OPERATOR),
    ],
)
def test_a_node_that_tensorrt_rejects_is_an_error(
    operator: str, inputs: list[str], domain: str, fault: TrtFault
) -> None:
    net = quantized()
    net.node(operator, inputs, "z", domain=domain)
    (only,) = found(net)
    assert (only.fault, only.severity) == (fault, TrtSeverity.ERROR)
    assert operator in str(only)


def test_a_dq_of_a_computed_tensor_is_an_error() -> None:
    net = quantized()
    cast = helper.make_node("Cast", ["x"], ["x_q"], to=TensorProto.INT8)
    net.nodes[0] = cast  # in place of the Q
    dangling = found(net)[0]
    assert dangling.fault is TrtFault.DEQUANTIZE_SOURCE
    assert dangling.detail == "Cast"


def test_a_model_without_q_and_dq_is_not_quantized() -> None:
    net = Net()
    conv(net, "x", net.const("w", np.ones((4, 3, 3, 3))))
    assert errors(net) == [TrtFault.NOT_QUANTIZED]
    assert found(net, required=False) == ()


def test_a_pair_before_no_layer_quantizes_nothing() -> None:
    net = Net()
    net.node("Relu", [net.pair("x")], "r")
    conv(net, "r", net.const("w", np.ones((4, 3, 3, 3))))
    assert errors(net) == [TrtFault.NOT_QUANTIZED]


def test_a_layer_with_a_float_weight_is_found() -> None:
    net = quantized()
    conv(net, net.pair("x"), net.const("w2", np.ones((4, 3, 3, 3))), "z", name="fc")
    net.nodes = net.nodes[:4] + net.nodes[-1:]
    (only,) = found(net)
    assert (only.fault, only.severity) == (TrtFault.FLOAT_OPERAND, TrtSeverity.WARNING)
    assert only.place == "head.fc (Conv fc)"
    assert "data" in only.detail


def test_scales_on_another_axis_of_a_convs_weight_are_an_error() -> None:
    net = Net()
    conv(net, net.pair("x"), net.weight("w", (4, 3, 3, 3), axis=1))
    (only,) = found(net)
    assert only.fault is TrtFault.CHANNEL_AXIS
    assert only.detail == "axis 1, not 0"


@pytest.mark.parametrize(("operator", "axis"), [("Gemm", 1), ("MatMul", 1), ("ConvTranspose", 1)])
def test_output_channels_lie_on_the_operators_own_axis(operator: str, axis: int) -> None:
    def net(on: int) -> Net:
        made = Net()
        shape = (3, 4, 3, 3) if operator == "ConvTranspose" else (8, 5)
        made.node(operator, [made.pair("x"), made.weight("w", shape, axis=on)], "y", name="fc")
        return made

    assert found(net(axis)) == ()
    assert errors(net(0)) == [TrtFault.CHANNEL_AXIS]


def test_a_gemm_with_a_transposed_weight_has_output_channels_on_axis_0() -> None:
    net = Net()
    net.node("Gemm", [net.pair("x"), net.weight("w", (5, 8), axis=0)], "y", transB=1)
    assert found(net) == ()


def test_a_transpose_between_weight_and_layer_is_followed() -> None:
    net = Net()
    turned = net.node("Transpose", [net.weight("w", (5, 8), axis=0)], "w_t", perm=[1, 0])
    net.node("MatMul", [net.pair("x"), turned], "y")
    assert found(net) == ()


def test_each_channel_requires_a_scale() -> None:
    net = Net()
    conv(net, net.pair("x"), net.weight("w", (4, 3, 3, 3), axis=0, scales=5))
    (only,) = [one for one in found(net) if one.fault is TrtFault.SCALE_COUNT]
    assert only.detail == "5 for 4 on axis 0"


def test_each_scale_requires_a_zero_point() -> None:
    net = quantized()
    net.weights["w_z"] = np.zeros(1, np.int8)
    (only,) = found(net)
    assert (only.fault, only.detail) == (TrtFault.ZERO_POINT_COUNT, "1 and 4")


def test_scales_by_channel_on_activations_are_an_error() -> None:
    net = Net()
    data = net.pair("x", scale=[0.1] * 3, zero=[0] * 3, axis=1)
    conv(net, data, net.weight("w", (4, 3, 3, 3), axis=0))
    assert errors(net) == [TrtFault.CHANNEL_SCALES] * 2


def test_a_float_weight_behind_its_own_q_is_a_weight() -> None:
    net = Net()
    net.const("w", np.ones((4, 3, 3, 3)))
    weight = net.pair("w", scale=[0.1] * 4, zero=[0] * 4, axis=0)
    conv(net, net.pair("x"), weight)
    assert found(net) == ()


def residual(skip: Callable[[Net], str], *, behind: bool = False) -> Net:
    """conv(x) + skip, Relu, and the Q of the next layer; `behind` puts a pair on the conv too."""
    net = quantized()
    net.nodes[-1].output[0] = "c"
    branch = net.pair("c") if behind else "c"
    net.node("Add", [branch, skip(net)], "sum", name="add")
    net.node("Relu", ["sum"], "r")
    conv(net, net.pair("r"), net.weight("w2", (4, 4, 3, 3), axis=0), name="fc")
    return net


def other(net: Net) -> str:
    return net.node("MaxPool", ["x"], "skip", kernel_shape=[1, 1])


def quantized_skip(net: Net) -> str:
    return net.pair(other(net))


def conv_skip(net: Net) -> str:
    return conv(net, "x_dq", net.weight("w3", (4, 3, 3, 3), axis=0), "skip", name="shortcut")


@pytest.mark.parametrize(
    ("skip", "behind", "faults"),
    [
        (quantized_skip, False, []),
        (other, False, [TrtFault.FLOAT_SKIP]),
        (other, True, [TrtFault.FLOAT_SKIP]),
        (conv_skip, False, [TrtFault.FLOAT_SKIP]),
        (quantized_skip, True, [TrtFault.UNFUSED_SUM]),
    ],
)
def test_a_residual_sum_has_q_and_dq_on_its_skip_input_alone(
    skip: Callable[[Net], str], behind: bool, faults: list[TrtFault]
) -> None:
    net = residual(skip, behind=behind)
    assert warnings(net) == faults
    assert errors(net) == []


def test_a_layer_includes_the_sum_of_its_bias() -> None:
    net = Net()
    product = net.node("MatMul", [net.pair("x"), net.weight("w", (8, 8), axis=1)], "p", name="fc")
    biased = net.node("Add", [product, net.const("b", [0.5] * 8)], "biased")
    net.node("Add", [biased, other(net)], "sum", name="add")
    net.node("MatMul", [net.pair("sum"), net.weight("w2", (8, 8), axis=1)], "y")
    assert warnings(net) == [TrtFault.FLOAT_SKIP]


def test_a_sum_in_floating_point_is_not_checked() -> None:
    net = quantized()
    net.nodes[-1].output[0] = "c"
    net.node("Add", ["c", other(net)], "y", name="add")
    assert found(net) == ()


def test_repeated_faults_are_one_line_with_their_count() -> None:
    first, second = both = found(quantized(zero=3))
    (line,) = describe_findings(both, TrtSeverity.ERROR)
    assert first.what == second.what
    assert line.startswith(f"2 × {first.what}, ")  # noqa: RUF001 - a count
    assert line.endswith(" stem.conv (QuantizeLinear QuantizeLinear_x_q) (3)")


def test_faults_inside_the_branches_of_an_if_are_found() -> None:
    inner = quantized(zero=3)
    body = helper.make_graph(
        [*inner.nodes], "then", [], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    )
    net = Net(weights=dict(inner.weights), outputs=["out"])
    net.const("flag", value=True, dtype=np.bool_)
    net.node("If", ["flag"], "out", then_branch=body, else_branch=body)
    assert TrtFault.ASYMMETRIC in errors(net)
