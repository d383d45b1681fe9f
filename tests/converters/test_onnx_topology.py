"""Topological order of nodes, also by the reads of the graphs inside a node."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, helper

from modelc.converters.onnx_topology import sort_nodes


def graph(*names: str) -> onnx.GraphProto:
    """An If whose branches read `h`, made by a Relu of `x`; the nodes in that order."""
    branches = {
        f"{branch}_branch": helper.make_graph(
            [helper.make_node(kind, ["h"], [f"{branch}_out"])], branch, [],
            [helper.make_tensor_value_info(f"{branch}_out", TensorProto.FLOAT, [2])],
        )
        for branch, kind in (("then", "Neg"), ("else", "Abs"))
    }  # fmt: skip
    nodes = {
        "if": helper.make_node("If", ["flag"], ["y"], **branches),
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
    with pytest.raises(onnx.checker.ValidationError, match="topologically"):
        onnx.checker.check_model(helper.make_model(made))
    sort_nodes(made)
    onnx.checker.check_model(helper.make_model(made))
    assert [node.op_type for node in made.node] == ["Relu", "If", "Neg"]


def test_sorted_nodes_stay() -> None:
    made = graph("h", "if", "last")
    before = made.SerializeToString()
    sort_nodes(made)
    assert made.SerializeToString() == before


def test_a_name_inside_a_body_may_be_one_outside() -> None:
    """A branch's own `y` is not the `y` that the If returns: there is no cycle."""
    branch = [
        helper.make_node("Neg", ["h"], ["y"]),
        helper.make_node("Abs", ["y"], ["branch_out"]),
    ]
    out = [helper.make_tensor_value_info("branch_out", TensorProto.FLOAT, [2])]
    branches = {
        f"{name}_branch": helper.make_graph(branch, name, [], out) for name in ("then", "else")
    }
    made = graph("h", "if", "last")
    made.node[1].CopyFrom(helper.make_node("If", ["flag"], ["y"], **branches))
    before = made.SerializeToString()
    sort_nodes(made)
    assert made.SerializeToString() == before


def test_a_cycle_is_left_to_the_checker() -> None:
    made = graph("h", "if", "last")
    made.node[0].input[0] = "z"
    sort_nodes(made)
    assert [node.op_type for node in made.node] == ["Relu", "If", "Neg"]
