"""Who makes and who reads each tensor of an ONNX graph, and what its constants hold."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

    from ...core.contract import Array

# Operators whose weights and activations take 8 bits with profit: nearly all the work is theirs.
PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
WITH_ZERO = 3  # inputs of such a node that has a zero point


class GraphWiring:
    """A graph by tensor name, as it was when read; graphs inside nodes are left out.

    `constants` are the initializers, which have no producer.
    """

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.constants = {tensor.name: tensor for tensor in graph.initializer}
        self.producers: dict[str, onnx.NodeProto] = {}
        self.readers: dict[str, list[onnx.NodeProto]] = {}
        for node in graph.node:
            self.producers.update((name, node) for name in node.output if name)
            for name in node.input:
                self.readers.setdefault(name, []).append(node)

    def activations(self, node: onnx.NodeProto) -> list[str]:
        """The inputs of a node that are computed or fed, not constant."""
        return [name for name in node.input if name and name not in self.constants]

    def producer_if(self, name: str, operator: str) -> onnx.NodeProto | None:
        """The producer of a tensor, where it is that operator."""
        node = self.producers.get(name)
        return node if node is not None and node.op_type == operator else None

    def before(self, name: str) -> str | None:
        """The tensor that a Q/DQ pair stands for; None where no such pair makes `name`."""
        taken = self.producer_if(name, DEQUANTIZE)
        given = self.producer_if(taken.input[0], QUANTIZE) if taken is not None else None
        return str(given.input[0]) if given is not None else None


def tensor_values(tensor: onnx.TensorProto) -> Array:
    """The numbers of a constant whose data is in memory."""
    from onnx import numpy_helper

    return numpy_helper.to_array(tensor)


def int_attribute(node: onnx.NodeProto, name: str, default: int) -> int:
    """An integer attribute of a node."""
    return next((int(a.i) for a in node.attribute if a.name == name), default)


def sort_nodes(graph: onnx.GraphProto) -> None:
    """Have every node stand after those that make what it reads, the graphs inside it included.

    ONNX Runtime's quantizer sorts nodes anew, and does not look into an If or a Loop.
    """
    makers = {name: at for at, node in enumerate(graph.node) for name in node.output if name}
    before = {
        at: {makers[name] for name in _node_reads(node) if name in makers}
        for at, node in enumerate(graph.node)
    }
    if all(first < at for at, firsts in before.items() for first in firsts):
        return
    try:
        order = list(TopologicalSorter(before).static_order())
    except CycleError:  # no order is right: the checker says what is wrong
        return
    nodes = type(graph)(node=[graph.node[at] for at in order])
    graph.ClearField("node")
    graph.node.extend(nodes.node)


def _node_reads(node: onnx.NodeProto) -> set[str]:
    """What a node reads, and the graphs inside it of what is around them."""
    names = set(node.input)
    for attribute in node.attribute:
        for body in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
            own = {one.name for one in (*body.input, *body.initializer)}
            for inner in body.node:
                names |= _node_reads(inner) - own
                own.update(inner.output)
    return names
