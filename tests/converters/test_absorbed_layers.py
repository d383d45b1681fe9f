"""Activations that a quantizer removed from a graph."""

from __future__ import annotations

import pytest

from modelc.converters.onnx_origins import NodeOrigin, assign_absorbed_layers
from modelc.core.target_extensions import ProbeNode

ORIGINS = {
    "add": NodeOrigin(module="block", operator="Add"),
    "relu": NodeOrigin(module="block.relu", cls="nn.ReLU", operator="Relu", after="add"),
}


def chain(*operators: str) -> list[ProbeNode]:
    """`add`, then these, each reading the one before."""
    found = []
    for place, operator in enumerate(["Add", *operators]):
        found.append(
            ProbeNode(
                name="add" if not place else f"{operator}_{place}", operator=operator,
                inputs=(f"t{place}",), outputs=(f"t{place + 1}",), attributes={},
                module="" if place else "block",
            )
        )  # fmt: skip
    return found


@pytest.mark.parametrize(
    ("operators", "end"),
    [
        (("QuantizeLinear", "DequantizeLinear", "Conv"), "DequantizeLinear_2"),
        (("FakeQuantize", "Multiply"), "FakeQuantize_1"),  # a multiplication of the model's own
        (("FakeQuantize", "Convert", "Convert", "Subtract", "Multiply", "Add"), "Multiply_5"),
    ],
)
def test_the_end_of_the_quantizer_belongs_to_the_activation(
    operators: tuple[str, ...], end: str
) -> None:
    named = {
        node.name: node
        for node in assign_absorbed_layers(chain(*operators), ORIGINS)
        if node.module
    }
    assert {name: node.module for name, node in named.items()} == {
        "add": "block",
        end: "block.relu",
    }
    assert named[end].kind == "nn.ReLU"


def test_an_activation_in_the_graph_keeps_its_module() -> None:
    nodes = chain("QuantizeLinear", "DequantizeLinear")
    relu = ProbeNode(name="relu", operator="Relu", inputs=("t3",), outputs=("r",), attributes={})
    assert assign_absorbed_layers([*nodes, relu], ORIGINS) == (*nodes, relu)
