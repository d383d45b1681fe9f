"""Nodes stand after what they read, also where a graph inside a node reads it."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, helper

from modelc.converters.onnx_topology import sort_nodes


def graph(*names: str) -> onnx.GraphProto:
    """An If whose arms read `h`, made by a Relu of `x`; the nodes in that order."""
    arms = {
        f"{arm}_branch": helper.make_graph(
            [helper.make_node(kind, ["h"], [f"{arm}_out"])], arm, [],
            [helper.make_tensor_value_info(f"{arm}_out", TensorProto.FLOAT, [2])],
        )
        for arm, kind in (("then", "Neg"), ("else", "Abs"))
    }  # fmt: skip
    nodes = {
        "if": helper.make_node("If", ["flag"], ["y"], **arms),
        "h": helper.make_node("Relu", ["x"], ["h"]),
        "last": helper.make_node("Neg", ["y"], ["z"]),
    }
    return helper.make_graph(
        [nodes[name] for name in names], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2]),
         helper.make_tensor_value_info("flag", TensorProto.BOOL, [])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, [2])],
    )  # fmt: skip


@pytest.mark.parametrize("names", [("if", "last", "h"), ("last", "if", "h"), ("if", "h", "last")])
def test_a_node_comes_after_what_its_inner_graphs_read(names: tuple[str, ...]) -> None:
    made = graph(*names)
    with pytest.raises(onnx.checker.ValidationError, match="topologically sorted"):
        onnx.checker.check_model(helper.make_model(made))
    sort_nodes(made)
    onnx.checker.check_model(helper.make_model(made))
    assert [node.op_type for node in made.node] == ["Relu", "If", "Neg"]


def test_what_is_in_order_stays_as_it_is() -> None:
    made = graph("h", "if", "last")
    before = made.SerializeToString()
    sort_nodes(made)
    assert made.SerializeToString() == before


def test_a_name_inside_a_body_may_be_one_outside() -> None:
    """An arm's own `y` is not the `y` that the If gives: there is no circle."""
    arm = [
        helper.make_node("Neg", ["h"], ["y"]),
        helper.make_node("Abs", ["y"], ["arm_out"]),
    ]
    out = [helper.make_tensor_value_info("arm_out", TensorProto.FLOAT, [2])]
    arms = {f"{name}_branch": helper.make_graph(arm, name, [], out) for name in ("then", "else")}
    made = graph("h", "if", "last")
    made.node[1].CopyFrom(helper.make_node("If", ["flag"], ["y"], **arms))
    before = made.SerializeToString()
    sort_nodes(made)
    assert made.SerializeToString() == before


def test_a_circle_is_left_to_the_checker() -> None:
    made = graph("h", "if", "last")
    made.node[0].input[0] = "z"
    sort_nodes(made)
    assert [node.op_type for node in made.node] == ["Relu", "If", "Neg"]
