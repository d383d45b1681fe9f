"""Single-layer faults for debug.py, planted into nodes of an ONNX model whose module is known."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from modelc.converters.onnx_origins import Origin
from modelc.core.contract import Array

Plant = Callable[["Graph", onnx.NodeProto], bool]


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A model with one fault: its kind, the node, and the modules that it may be named by."""

    kind: str
    node: str
    modules: tuple[str, ...]
    model: onnx.ModelProto


class Graph:
    """A copy of a model in which a fault is planted."""

    def __init__(self, model: onnx.ModelProto, draw: random.Random) -> None:
        self.model = onnx.ModelProto()
        self.model.CopyFrom(model)
        self.draw = draw
        self.weights = {tensor.name: tensor for tensor in self.model.graph.initializer}

    def weight(self, node: onnx.NodeProto, place: int) -> tuple[str, Array] | None:
        """The constant that a node takes at a place."""
        if len(node.input) <= place or node.input[place] not in self.weights:
            return None
        name = node.input[place]
        return name, numpy_helper.to_array(self.weights[name]).copy()

    def put(self, node: onnx.NodeProto, place: int, array: Array) -> bool:
        """Give the node another constant of its own; other nodes keep theirs."""
        name = f"{node.input[place]}_planted"
        self.model.graph.initializer.append(
            numpy_helper.from_array(np.ascontiguousarray(array), name)
        )
        node.input[place] = name
        return True

    def after(
        self, node: onnx.NodeProto, kinds: list[tuple[str, list[Array], dict[str, Any]]]
    ) -> bool:
        """Put nodes between a node and whoever reads its first output."""
        inner = previous = f"{node.output[0]}_planted"
        index = next(i for i, one in enumerate(self.model.graph.node) if one.name == node.name)
        output, node.output[0] = node.output[0], inner
        for step, (kind, constants, attributes) in enumerate(kinds):
            names = []
            for number, array in enumerate(constants):
                names.append(f"{output}_constant_{step}_{number}")
                self.model.graph.initializer.append(numpy_helper.from_array(array, names[-1]))
            last = output if step == len(kinds) - 1 else f"{output}_planted_{step}"
            made = helper.make_node(
                kind, [previous, *names], [last], name=f"planted_{step}_{node.name}", **attributes
            )
            self.model.graph.node.insert(index + 1 + step, made)
            previous = last
        return True


def planted(
    model: onnx.ModelProto, origins: Mapping[str, Origin], *, seed: int, each: int = 1
) -> Iterator[Planted]:
    """`each` faults of every kind that the model has a place for, at places drawn from the seed."""
    draw = random.Random(seed)  # places, not secrets
    for kind, (operators, plant) in KINDS.items():
        names = [
            node.name
            for node in model.graph.node
            if node.op_type in operators and node.name in origins
        ]
        done = 0
        for name in draw.sample(names, len(names)):
            graph = Graph(model, draw)
            node = next(one for one in graph.model.graph.node if one.name == name)
            if done == each:
                break
            if plant(graph, node):
                done += 1
                origin = origins[name]
                modules = [origin.module, *([origin.weights] if origin.weights else [])]
                if kind == _BETWEEN:  # it belongs to whoever reads as much as to whoever made
                    modules += _readers(model, name, origins)
                yield Planted(kind=kind, node=name, modules=tuple(modules), model=graph.model)


def _readers(model: onnx.ModelProto, name: str, origins: Mapping[str, Origin]) -> list[str]:
    made = next(set(node.output) for node in model.graph.node if node.name == name)
    return [
        origins[node.name].module
        for node in model.graph.node
        if node.name in origins and made.intersection(node.input)
    ]


def _element(factor: float) -> Plant:
    def plant(graph: Graph, node: onnx.NodeProto) -> bool:
        found = graph.weight(node, 1)
        if found is None or found[1].ndim < _MATRIX or found[1].dtype != np.float32:
            return False
        array = found[1]
        array.flat[int(np.abs(array).argmax())] *= factor
        return graph.put(node, 1, array)

    return plant


def _scaled(graph: Graph, node: onnx.NodeProto) -> bool:
    found = graph.weight(node, 1)
    if found is None or found[1].ndim < _MATRIX or found[1].dtype != np.float32:
        return False
    return graph.put(node, 1, found[1] * np.float32(1.02))


def _transposed(graph: Graph, node: onnx.NodeProto) -> bool:
    found = graph.weight(node, 1)
    if found is None or found[1].ndim != _MATRIX or found[1].shape[0] != found[1].shape[1]:
        return False
    return graph.put(node, 1, found[1].T)


def _no_bias(graph: Graph, node: onnx.NodeProto) -> bool:
    for place in (1, 0) if node.op_type == "Add" else (2,):
        found = graph.weight(node, place)
        if found is not None and found[1].ndim == 1 and np.any(found[1]):
            return graph.put(node, place, np.zeros_like(found[1]))
    return False


def _attribute(name: str, value: Callable[[onnx.AttributeProto | None], object]) -> Plant:
    def plant(graph: Graph, node: onnx.NodeProto) -> bool:  # noqa: ARG001 - of the form
        found = next((one for one in node.attribute if one.name == name), None)
        wanted = value(found)
        if wanted is None:
            return False
        if found is not None:
            node.attribute.remove(found)
        node.attribute.append(helper.make_attribute(name, wanted))
        return True

    return plant


def _swapped(graph: Graph, node: onnx.NodeProto) -> bool:
    if len(node.input) != _MATRIX or any(name in graph.weights for name in node.input):
        return False
    node.input[0], node.input[1] = node.input[1], node.input[0]
    return True


def _half(graph: Graph, node: onnx.NodeProto) -> bool:
    return graph.after(
        node, [("Cast", [], {"to": onnx.TensorProto.FLOAT16}), ("Cast", [], {"to": 1})]
    )


def _attention(graph: Graph, node: onnx.NodeProto) -> bool:
    """All of attention's weights a little too large."""
    axis = next((one.i for one in node.attribute if one.name == "axis"), -1)
    if axis not in (-1, 3):
        return False
    return graph.after(node, [("Mul", [np.array(1.05, np.float32)], {})])


def _saturating(graph: Graph, node: onnx.NodeProto) -> bool:
    scale, zero = np.array(0.002, np.float32), np.array(0, np.int8)
    return graph.after(
        node, [("QuantizeLinear", [scale, zero], {}), ("DequantizeLinear", [scale, zero], {})]
    )


_FORMER = -2
_MATRIX = 2  # dims
_BETWEEN = "saturating quantizer"
_LAYERS = ("MatMul", "Gemm", "Conv")
KINDS: Mapping[str, tuple[tuple[str, ...], Plant]] = {
    "one weight off by 10 %": (_LAYERS, _element(1.1)),
    "one weight off by 1 %": (_LAYERS, _element(1.01)),
    "weights 2 % too large": (_LAYERS, _scaled),
    "transposed square weight": (("MatMul", "Gemm"), _transposed),
    "bias zeroed": (("Add", "Gemm", "Conv"), _no_bias),
    "another epsilon": (
        ("LayerNormalization", "InstanceNormalization", "BatchNormalization"),
        _attribute("epsilon", lambda one: None if one is None else max(one.f * 100, 1e-3)),
    ),
    "GELU exact or tanh": (
        ("Gelu",),
        _attribute(
            "approximate",
            lambda one: "none" if one is not None and one.s == b"tanh" else "tanh",
        ),
    ),
    "softmax axis": (
        ("Softmax",),
        _attribute("axis", lambda one: -1 if one is not None and one.i == _FORMER else _FORMER),
    ),
    "attention scaled": (("Softmax",), _attention),
    "swapped operands": (("Sub", "Div", "MatMul"), _swapped),
    "float16 in one layer": ((*_LAYERS, "Add", "Mul", "LayerNormalization", "Gelu"), _half),
    _BETWEEN: ((*_LAYERS, "LayerNormalization", "Relu", "Gelu"), _saturating),
    "leaky slope": (("LeakyRelu",), _attribute("alpha", lambda _: 0.2)),
    "interpolation mode": (
        ("Resize",),
        _attribute(
            "mode", lambda one: "linear" if one is None or one.s == b"nearest" else "nearest"
        ),
    ),
}
