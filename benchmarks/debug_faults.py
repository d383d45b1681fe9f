"""Single-layer faults for debug.py, planted into nodes of an ONNX model whose module is known."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from modelc.converters.onnx_origins import NodeOrigin
from modelc.core.contract import Array

Plant = Callable[["Graph", onnx.NodeProto], bool]


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A model with one fault: its kind, the node, and the modules that it may be named by.

    `near` are the modules of the nodes before and behind.
    """

    kind: str
    node: str
    modules: tuple[str, ...]
    near: tuple[str, ...] = ()
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
        name = f"{node.input[place]}_planted_{node.name}"
        self.model.graph.initializer.append(
            numpy_helper.from_array(np.asarray(array, order="C"), name)
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


def plant_faults(
    model: onnx.ModelProto,
    origins: Mapping[str, NodeOrigin],
    *,
    seed: int,
    each: int = 1,
    kinds: Mapping[str, tuple[tuple[str, ...], Plant]] | None = None,
) -> Iterator[Planted]:
    """`each` faults of every kind that the model has a place for, at places drawn from the seed."""
    draw = random.Random(seed)  # places, not secrets
    for kind, (operators, plant) in (KINDS if kinds is None else kinds).items():
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
                if kind in _BETWEEN:  # it belongs to whoever reads as much as to whoever made
                    modules += _readers(model, name, origins)
                near = (*_readers(model, name, origins), *_makers(model, name, origins))
                yield Planted(
                    kind=kind, node=name, modules=tuple(modules), near=near, model=graph.model
                )


def _makers(model: onnx.ModelProto, name: str, origins: Mapping[str, NodeOrigin]) -> list[str]:
    read = next(set(node.input) for node in model.graph.node if node.name == name)
    return [
        origins[node.name].module
        for node in model.graph.node
        if node.name in origins and read.intersection(node.output)
    ]


def _readers(model: onnx.ModelProto, name: str, origins: Mapping[str, NodeOrigin]) -> list[str]:
    """The modules that read what a node makes, behind quantizers as well."""
    made = set(next(node.output for node in model.graph.node if node.name == name))
    found = []
    for node in model.graph.node:
        if made.isdisjoint(node.input):
            continue
        if node.name in origins:
            found.append(origins[node.name].module)
        else:
            made.update(node.output)
    return found


def _element(factor: float) -> Plant:
    def plant(graph: Graph, node: onnx.NodeProto) -> bool:
        found = graph.weight(node, 1)
        if found is None or found[1].ndim < _MATRIX or found[1].dtype != np.float32:
            return False
        array = found[1]
        array.flat[int(np.abs(array).argmax())] *= factor
        return graph.put(node, 1, array)

    return plant


def _scale(graph: Graph, node: onnx.NodeProto) -> bool:
    found = graph.weight(node, 1)
    if found is None or found[1].ndim < _MATRIX or found[1].dtype != np.float32:
        return False
    return graph.put(node, 1, found[1] * np.float32(1.02))


def _transpose(graph: Graph, node: onnx.NodeProto) -> bool:
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


def _swap_inputs(graph: Graph, node: onnx.NodeProto) -> bool:
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


def _saturate(graph: Graph, node: onnx.NodeProto) -> bool:
    scale, zero = np.array(0.002, np.float32), np.array(0, np.int8)
    return graph.after(
        node, [("QuantizeLinear", [scale, zero], {}), ("DequantizeLinear", [scale, zero], {})]
    )


def _downsample(graph: Graph, node: onnx.NodeProto) -> bool:
    """The convolution beside a residual block."""
    found = graph.weight(node, 1)
    if found is None or not any(one in node.input[1] for one in ("downsample", "shortcut")):
        return False
    return graph.put(node, 1, found[1] * np.float32(1.05))


def _norm_scale(graph: Graph, node: onnx.NodeProto) -> bool:
    found = graph.weight(node, 1)
    return found is not None and graph.put(node, 1, found[1] * np.float32(1.05))


def _remove(graph: Graph, node: onnx.NodeProto) -> bool:  # noqa: ARG001 - of the form
    node.op_type = "Identity"
    del node.attribute[:], node.input[1:]
    return True


def _join_with_itself(graph: Graph, node: onnx.NodeProto) -> bool:
    if any(name in graph.weights for name in node.input) or node.input[0] == node.input[1]:
        return False
    node.input[1] = node.input[0]
    return True


def _as_difference(graph: Graph, node: onnx.NodeProto) -> bool:
    if any(name in graph.weights for name in node.input):
        return False
    node.op_type = "Sub"
    return True


def _pads_moved(graph: Graph, node: onnx.NodeProto) -> bool:  # noqa: ARG001 - of the form
    """Up and to the left: the shape stays."""
    found = next((one for one in node.attribute if one.name == "pads" and any(one.ints)), None)
    if found is None or len(found.ints) != _PADS:
        return False
    top, left, bottom, right = found.ints
    found.ints[:] = [0, 0, top + bottom, left + right]
    return True


def _bias_off(graph: Graph, node: onnx.NodeProto) -> bool:
    found = graph.weight(node, 2)
    if found is None or found[1].dtype != np.float32:
        return False
    array = found[1]
    array[int(np.abs(array).argmax())] += np.float32(0.2)
    return graph.put(node, 2, array)


def _in_constant(change: Callable[[Array], Array], place: int) -> Plant:
    """In a quantized layer: a constant of the dequantizer of its weights or its bias."""

    def plant(graph: Graph, node: onnx.NodeProto) -> bool:
        if len(node.input) <= place:
            return False
        made = (one for one in graph.model.graph.node if one.output[0] == node.input[place])
        maker = next(made, None)
        if maker is None or maker.op_type != "DequantizeLinear":
            return False
        index = 1 if place == 1 else 0
        found = graph.weight(maker, index)
        return found is not None and graph.put(maker, index, change(found[1]))

    return plant


def _narrow(graph: Graph, node: onnx.NodeProto) -> bool:
    """The quantizer of what a layer gives, and its dequantizer, with a quarter of the range."""
    chain = [one for one in graph.model.graph.node if node.output[0] in one.input]
    if len(chain) != 1 or chain[0].op_type != "QuantizeLinear":
        return False
    chain += [one for one in graph.model.graph.node if chain[0].output[0] in one.input]
    found = graph.weight(chain[0], 1)
    return found is not None and all(graph.put(one, 1, found[1] / np.float32(4)) for one in chain)


_PADS = 4
_FORMER = -2
_MATRIX = 2  # dims
_SATURATING, _NARROW = "saturating quantizer", "quarter of the range"
_BETWEEN = (_SATURATING, _NARROW)
_LAYERS = ("MatMul", "Gemm", "Conv")
KINDS: Mapping[str, tuple[tuple[str, ...], Plant]] = {
    "one weight off by 10 %": (_LAYERS, _element(1.1)),
    "one weight off by 1 %": (_LAYERS, _element(1.01)),
    "weights 2 % too large": (_LAYERS, _scale),
    "transposed square weight": (("MatMul", "Gemm"), _transpose),
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
    "swapped operands": (("Sub", "Div", "MatMul"), _swap_inputs),
    "float16 in one layer": ((*_LAYERS, "Add", "Mul", "LayerNormalization", "Gelu"), _half),
    _SATURATING: ((*_LAYERS, "LayerNormalization", "Relu", "Gelu"), _saturate),
    "leaky slope": (("LeakyRelu",), _attribute("alpha", lambda _: 0.2)),
    "interpolation mode": (
        ("Resize",),
        _attribute(
            "mode", lambda one: "linear" if one is None or one.s == b"nearest" else "nearest"
        ),
    ),
}
RESIDUAL_KINDS: Mapping[str, tuple[tuple[str, ...], Plant]] = {
    "downsample 5 % too large": (("Conv",), _downsample),
    "one weight off by 10 %": KINDS["one weight off by 10 %"],
    "weights 2 % too large": KINDS["weights 2 % too large"],
    "bias off in one element": (("Conv", "Gemm"), _bias_off),
    "bias zeroed": KINDS["bias zeroed"],
    "norm 5 % too large": (("BatchNormalization", "LayerNormalization"), _norm_scale),
    "another epsilon": KINDS["another epsilon"],
    "activation removed": (("Relu", "Clip"), _remove),
    "added to itself": (("Add",), _join_with_itself),
    "subtracted": (("Add",), _as_difference),
    "padding moved": (("Conv", "MaxPool"), _pads_moved),
    "float16 in one layer": KINDS["float16 in one layer"],
}
INT8_KINDS: Mapping[str, tuple[tuple[str, ...], Plant]] = {
    "scale of weights 1.5 times": (
        ("Conv", "Gemm"),
        _in_constant(lambda a: a * np.float32(1.5), 1),
    ),
    "bias zeroed": (("Conv", "Gemm"), _in_constant(np.zeros_like, 2)),
    "bias negated": (("Conv", "Gemm"), _in_constant(np.negative, 2)),
    _NARROW: (("Conv", "Add"), _narrow),
    "added to itself": (("Add",), _join_with_itself),
    "subtracted": (("Add",), _as_difference),
    "padding moved": (("Conv", "MaxPool"), _pads_moved),
}
