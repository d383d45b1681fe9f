"""Who makes and who reads each tensor of an ONNX graph, and the constants in it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from .onnx_origins import all_nodes

if TYPE_CHECKING:
    import onnx

    from ..core.contract import Array

    Node: TypeAlias = onnx.NodeProto
else:
    Node: TypeAlias = Any  # the type is onnx's, which is only imported where it is used

_FLOAT = 1  # onnx.TensorProto.FLOAT


@dataclass(frozen=True, kw_only=True)
class GraphLinks:
    """The edges of a graph; `captured` are the tensors that bodies of its nodes read."""

    makers: dict[str, Node] = field(default_factory=dict)
    readers: dict[str, list[Node]] = field(default_factory=lambda: defaultdict(list))
    captured: frozenset[str] = frozenset()
    outputs: frozenset[str] = frozenset()

    def neighbours(self, tensor: str) -> tuple[Node, ...]:
        """The maker of a tensor, where a node made it, and its readers."""
        maker = self.makers.get(tensor)
        return (*([maker] if maker is not None else ()), *self.readers.get(tensor, ()))


def index_links(graph: onnx.GraphProto) -> GraphLinks:
    """Walk the graph once."""
    top = {id(node) for node in graph.node}
    inside = [node for node in all_nodes(graph) if id(node) not in top]
    links = GraphLinks(
        captured=frozenset(name for node in inside for name in node.input),
        outputs=frozenset(value.name for value in graph.output),
    )
    for node in graph.node:
        for name in node.output:
            links.makers[name] = node
        for name in dict.fromkeys(node.input):
            links.readers[name].append(node)
    return links


def name_nodes(graph: onnx.GraphProto) -> None:
    """Give a name to each node that has none, or one that an earlier node has."""
    taken: set[str] = set()
    for index, node in enumerate(all_nodes(graph)):
        if not node.name or node.name in taken:
            node.name = f"{node.op_type}_{node.output[0] if node.output else index}"
        while node.name in taken:
            node.name = f"{node.name}_{index}"
        taken.add(node.name)


def float_constants(graph: onnx.GraphProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    """The float32 constants of a graph, bodies apart, by the name of the tensor that they are.

    They are initializers, or values of Constant and ConstantOfShape nodes.
    """
    for tensor in graph.initializer:
        if tensor.data_type == _FLOAT:
            yield tensor.name, tensor
    for node in graph.node:
        if node.op_type not in ("Constant", "ConstantOfShape"):
            continue
        for attribute in node.attribute:
            if attribute.name == "value" and attribute.t.data_type == _FLOAT:
                yield node.output[0], attribute.t


def constant_values(tensor: onnx.TensorProto, folder: Path) -> Array:
    """The values of a constant, which may lie in a file in `folder`."""
    from onnx import numpy_helper

    array: Array = numpy_helper.to_array(tensor, base_dir=str(folder))
    return array
