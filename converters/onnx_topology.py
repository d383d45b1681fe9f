"""Walk and index ONNX graphs: nodes, bodies, constants, the producer and readers of a tensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ..capture.framework_errors import call_framework

if TYPE_CHECKING:
    import onnx

    from ..core.contract import Array

    Node: TypeAlias = onnx.NodeProto
else:
    Node: TypeAlias = Any  # onnx is imported only where it is used

_FLOAT = 1  # onnx.TensorProto.FLOAT
FLOAT_TYPES = frozenset({_FLOAT, 11})  # and DOUBLE: the types that are converted to half precision


def load_model(path: Path) -> onnx.ModelProto:
    """Read a model without its external weights.

    Raises:
        ConversionError: it cannot be read.
    """
    import onnx

    return call_framework("onnx", lambda: onnx.load(str(path), load_external_data=False))


def node_bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs inside a node, such as the branches of an If."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def all_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield the graph and the graphs inside its nodes, innermost last."""
    yield graph
    for node in graph.node:
        for body in node_bodies(node):
            yield from all_graphs(body)


def all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a graph, each followed by the nodes inside it."""
    for node in graph.node:
        yield node
        for body in node_bodies(node):
            yield from all_nodes(body)


def model_graphs(model: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs of a model, including those inside nodes of its functions."""
    yield from all_graphs(model.graph)
    for node in (node for function in model.functions for node in function.node):
        for body in node_bodies(node):
            yield from all_graphs(body)


def model_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a model, including those of its functions."""
    for part in (*model_graphs(model), *model.functions):
        yield from part.node


def rename_tensors(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Rename tensors in a graph and the bodies inside it, except its inputs and outputs."""
    for part in all_graphs(graph):
        for node in part.node:
            node.input[:] = [names.get(name, name) for name in node.input]
            node.output[:] = [names.get(name, name) for name in node.output]
        if part is not graph:
            for value in part.output:
                value.name = names.get(value.name, value.name)


def cast_end(graph: onnx.GraphProto, value: onnx.ValueInfoProto, outer: int) -> None:
    """Give an input or output of a graph the type `outer`, by a Cast after or before it."""
    code, inner = value.type.tensor_type.elem_type, f"{value.name}::within"
    rename_tensors(graph, {value.name: inner})
    if any(value.name == one.name for one in graph.input):
        graph.node.insert(0, cast_node(value.name, inner, code))
    else:
        graph.node.append(cast_node(inner, value.name, outer))
    value.type.tensor_type.elem_type = outer


def cast_node(source: str, result: str, code: int) -> onnx.NodeProto:
    """Return a Cast of a tensor to a type, named after both tensors."""
    import onnx

    name = f"{source}::cast::{result}"
    return onnx.helper.make_node("Cast", [source], [result], name=name, to=code)


def name_nodes(graph: onnx.GraphProto) -> None:
    """Name each node that has no name, or the name of an earlier node."""
    used: set[str] = set()
    for index, node in enumerate(all_nodes(graph)):
        if not node.name or node.name in used:
            node.name = f"{node.op_type}_{node.output[0] if node.output else index}"
        while node.name in used:
            node.name = f"{node.name}_{index}"
        used.add(node.name)


def float_constants(graph: onnx.GraphProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    """Return the float32 and float64 constants of a graph, without bodies, by tensor name.

    They are initializers, or values of Constant and ConstantOfShape nodes.
    """
    for tensor in graph.initializer:
        if tensor.data_type in FLOAT_TYPES:
            yield tensor.name, tensor
    for node in graph.node:
        if node.op_type not in ("Constant", "ConstantOfShape"):
            continue
        for attribute in node.attribute:
            if attribute.name == "value" and attribute.t.data_type in FLOAT_TYPES:
                yield node.output[0], attribute.t


def constant_values(tensor: onnx.TensorProto, folder: Path = Path()) -> Array:
    """Return the values of a constant, which may lie in a file in `folder`."""
    from onnx import numpy_helper

    array: Array = numpy_helper.to_array(tensor, base_dir=str(folder))
    return array


# operators that profit from 8-bit weights and activations: nearly all the work is theirs
PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
WITH_ZERO = 3  # number of inputs of a node with a zero point


class GraphWiring:
    """A graph indexed by tensor name when it was read; graphs inside nodes are left out.

    `constants` are the initializers, which have no producer. `captured` are the tensors that graphs
    inside nodes read.
    """

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.constants = {tensor.name: tensor for tensor in graph.initializer}
        self.outputs = frozenset(value.name for value in graph.output)
        self.producers: dict[str, onnx.NodeProto] = {}
        self.readers: dict[str, list[onnx.NodeProto]] = {}
        for node in graph.node:
            self.producers.update((name, node) for name in node.output if name)
            for name in node.input:
                self.readers.setdefault(name, []).append(node)
        bodies = [body for node in graph.node for body in node_bodies(node)]
        inside = (node for body in bodies for node in all_nodes(body))
        self.captured = frozenset(name for node in inside for name in node.input)

    def activations(self, node: onnx.NodeProto) -> list[str]:
        """Return the inputs of a node that are computed or fed, not constant."""
        return [name for name in node.input if name and name not in self.constants]

    def producer_if(self, name: str, operator: str) -> onnx.NodeProto | None:
        """Return the producer of a tensor if it is that operator."""
        node = self.producers.get(name)
        return node if node is not None and node.op_type == operator else None

    def before(self, name: str) -> str | None:
        """Return the tensor before a Q/DQ pair; None if no pair produces `name`."""
        dequantize = self.producer_if(name, DEQUANTIZE)
        given = self.producer_if(dequantize.input[0], QUANTIZE) if dequantize is not None else None
        return str(given.input[0]) if given is not None else None


def int_attribute(node: onnx.NodeProto, name: str, default: int) -> int:
    """Return an integer attribute of a node."""
    return next((int(a.i) for a in node.attribute if a.name == name), default)


def sort_nodes(graph: onnx.GraphProto) -> None:
    """Sort nodes topologically, counting what the graphs inside them read.

    ONNX Runtime's quantizer re-sorts nodes without looking into If or Loop.
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
    except CycleError:  # no valid order: the checker reports it
        return
    nodes = type(graph)(node=[graph.node[at] for at in order])
    graph.ClearField("node")
    graph.node.extend(nodes.node)


def _node_reads(node: onnx.NodeProto) -> set[str]:
    """Return what a node reads, including outer values read by the graphs inside it."""
    names = set(node.input)
    for body in node_bodies(node):
        own = {one.name for one in (*body.input, *body.initializer)}
        for inner in body.node:
            names |= _node_reads(inner) - own
    return names
