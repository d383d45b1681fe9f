"""The table of operators that TensorRT's parser supports, and their restrictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from modelc.converters.trt import parser_support
from modelc.converters.trt.parser_support import (
    DATA_DEPENDENT,
    DATA_INPUTS,
    SUPPORTED,
    SUPPORTED_TYPES,
    UNSUPPORTED,
    find_violations,
)


def test_no_operator_is_both_supported_and_unsupported() -> None:
    assert not set(SUPPORTED) & UNSUPPORTED


def test_every_operator_of_the_table_is_onnxs_or_one_that_onnx_had() -> None:
    known = {
        schema.name for schema in onnx.defs.get_all_schemas_with_history() if not schema.domain
    }
    own = {"ImageScaler", "ParametricSoftplus", "ScaledTanh"}  # ONNX's before its first opset
    assert set(SUPPORTED) | UNSUPPORTED <= known | own


def test_every_type_in_the_table_is_one_of_onnxs() -> None:
    listed = {name for types in SUPPORTED.values() for name in types}
    assert listed <= SUPPORTED_TYPES
    assert set(onnx_ir.DataType.__members__) >= SUPPORTED_TYPES


def test_the_operators_with_rules_of_their_own_are_in_the_table() -> None:
    assert set(SUPPORTED) >= DATA_DEPENDENT | set(DATA_INPUTS) | parser_support.BODIES


def test_the_table_has_a_version_and_a_source() -> None:
    assert parser_support.TABLE_VERSION in parser_support.TABLE_SOURCE
    assert "operators.md" in parser_support.TABLE_SOURCE


def node_of(
    operator: str,
    *inputs: object,
    outputs: int = 1,
    shape: Sequence[str | int] | None = None,
    **attributes: Any,
) -> onnx_ir.Node:
    """A node; an input that is an array is a constant, one that is a name is computed."""
    names, weights = [], []
    for index, given in enumerate(inputs):
        name = given if isinstance(given, str) else f"c{index}"
        names.append(name)
        if not isinstance(given, str):
            weights.append(numpy_helper.from_array(np.asarray(given), name))
    made = [f"y{index}" for index in range(outputs)]
    graph = helper.make_graph(
        [helper.make_node(operator, names, made, name="n", **attributes)],
        "g",
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name in dict.fromkeys(names)
            if name and name not in {weight.name for weight in weights}
        ],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in made],
        weights,
    )
    model = onnx_ir.from_proto(helper.make_model(graph, ir_version=10))
    return next(iter(model.graph))


def violations(node: onnx_ir.Node) -> list[str]:
    return [one.text for one in find_violations(node)]


AXES = np.array([1], dtype=np.int64)


@pytest.mark.parametrize(
    ("good", "bad", "word"),
    [
        (node_of("ReduceSum", "x", AXES), node_of("ReduceSum", "x", "axes"), "axes"),
        (node_of("CumSum", "x", AXES), node_of("CumSum", "x", "axis"), "axis"),
        (node_of("Unsqueeze", "x", AXES), node_of("Unsqueeze", "x", "axes"), "axes"),
        (
            node_of("MaxPool", "x", kernel_shape=[2, 2], shape=["n", 3, 8, 8]),
            node_of("MaxPool", "x", kernel_shape=[2, 2], shape=["n", 3, 8, 8], outputs=2),
            "indices",
        ),
        (
            node_of("MaxPool", "x", kernel_shape=[2, 2], dilations=[1, 1]),
            node_of("MaxPool", "x", kernel_shape=[2, 2], dilations=[2, 2]),
            "dilations",
        ),
        (
            node_of("AveragePool", "x", kernel_shape=[2, 2], shape=["n", 3, 8, 8]),
            node_of("AveragePool", "x", kernel_shape=[2], shape=["n", 3, 8]),
            "pooling",
        ),
        (node_of("LSTM", "x", "w", "r"), node_of("LSTM", "x", "w", "r", layout=1), "layout"),
        (node_of("LSTM", "x", "w", "r"), node_of("LSTM", "x", "w", "r", input_forget=1), "gates"),
        (
            node_of("RNN", "x", "w", "r", direction="bidirectional", activations=["Tanh", "Tanh"]),
            node_of("RNN", "x", "w", "r", direction="bidirectional", activations=["Tanh", "Relu"]),
            "activations",
        ),
        (
            node_of("LayerNormalization", "x", "s"),
            node_of("LayerNormalization", "x", "s", outputs=2),
            "mean",
        ),
        (node_of("Resize", "x", mode="linear"), node_of("Resize", "x", mode="cubic"), "mode"),
        (node_of("Resize", "x"), node_of("Resize", "x", antialias=1), "antialiased"),
        (
            node_of("Resize", "x", coordinate_transformation_mode="asymmetric"),
            node_of("Resize", "x", coordinate_transformation_mode="tf_crop_and_resize"),
            "coordinate",
        ),
        (
            node_of("ScatterND", "x", "i", "u"),
            node_of("ScatterND", "x", "i", "u", reduction="add"),
            "reduces",
        ),
        (node_of("TopK", "x", [10]), node_of("TopK", "x", [4000]), "3840"),
        (node_of("OneHot", "x", [5], "v"), node_of("OneHot", "x", "d", "v"), "depth"),
        (
            node_of("GridSample", "x", "grid", shape=["n", 3, 8, 8]),
            node_of("GridSample", "x", "grid", shape=["n", 3, 8]),
            "4D",
        ),
        (
            node_of("BatchNormalization", *"xsbmv"),
            node_of("BatchNormalization", *"xsbmv", training_mode=1),
            "training",
        ),
        (
            node_of("Dropout", "x", np.float32(0.5), np.bool_(False)),
            node_of("Dropout", "x", np.float32(0.5), np.bool_(True)),
            "training",
        ),
        (node_of("EyeLike", "x", shape=[3, 3]), node_of("EyeLike", "x", shape=["n", 3]), "dynamic"),
        (
            node_of("Attention", *"qkv", shape=[1, 2, 3, 4]),
            node_of("Attention", *"qkv", shape=[1, 2]),
            "4D",
        ),
        (node_of("Attention", *"qkv"), node_of("Attention", *"qkvm", "past"), "past"),
        (node_of("LpNormalization", "x", p=2), node_of("LpNormalization", "x", p=3), "norm"),
        (node_of("Constant", value_float=1.0), node_of("Constant", value_string="a"), "text"),
        (node_of("STFT", "x", AXES), node_of("STFT", "x", "step"), "step"),
    ],
    ids=lambda value: value.op_type if isinstance(value, onnx_ir.Node) else "",
)
def test_only_the_node_that_violates_a_restriction_is_found(
    good: onnx_ir.Node, bad: onnx_ir.Node, word: str
) -> None:
    assert violations(good) == []
    assert [word in text for text in violations(bad)] == [True]


def branch(rank: int, name: str) -> onnx.GraphProto:
    out = helper.make_tensor_value_info(name, TensorProto.FLOAT, [1] * rank)
    value = helper.make_tensor(name, TensorProto.FLOAT, [1] * rank, [1.0])
    return helper.make_graph(
        [helper.make_node("Constant", [], [name], value=value)], name, [], [out]
    )


def test_branches_of_different_rank_are_found() -> None:
    same = node_of("If", "c", then_branch=branch(2, "a"), else_branch=branch(2, "b"))
    other = node_of("If", "c", then_branch=branch(2, "a"), else_branch=branch(3, "b"))
    assert violations(same) == []
    assert ["ranks" in text for text in violations(other)] == [True]
    assert [one.sure for one in find_violations(other)] == [True]
    shape = onnx_ir.Node("", "Shape", [onnx_ir.val("x")])
    other.replace_input_with(
        0, onnx_ir.Node("", "Equal", [*shape.outputs, *shape.outputs]).outputs[0]
    )
    assert [one.sure for one in find_violations(other)] == [False]  # the parser may fold it


def loop(*inputs: object, collects: bool) -> onnx_ir.Node:
    info = [
        helper.make_tensor_value_info("i", TensorProto.INT64, []),
        helper.make_tensor_value_info("go", TensorProto.BOOL, []),
        helper.make_tensor_value_info("s", TensorProto.FLOAT, [1]),
    ]
    outputs = [
        helper.make_tensor_value_info("more", TensorProto.BOOL, []),
        helper.make_tensor_value_info("t", TensorProto.FLOAT, [1]),
    ]
    nodes = [
        helper.make_node("Identity", ["go"], ["more"]),
        helper.make_node("Identity", ["s"], ["t"]),
    ]
    if collects:
        outputs.append(helper.make_tensor_value_info("u", TensorProto.FLOAT, [1]))
        nodes.append(helper.make_node("Identity", ["s"], ["u"]))
    body = helper.make_graph(nodes, "body", info, outputs)
    return node_of("Loop", *inputs, outputs=1 + collects, body=body)


def test_a_loop_that_collects_over_a_data_dependent_trip_count_is_found() -> None:
    assert violations(loop(np.int64(3), np.True_, "x", collects=True)) == []
    assert violations(loop("n", np.True_, "x", collects=False)) == []
    (text,) = violations(loop("n", np.True_, "x", collects=True))
    assert "iterations" in text
