"""Small ONNX models for the real parser and builder, typed as modelc prepares them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

TYPES = {
    "fp32": TensorProto.FLOAT,
    "fp16": TensorProto.FLOAT16,
    "bf16": TensorProto.BFLOAT16,
    "int8": TensorProto.FLOAT,
}
ATTENTION_OPSET = 23
WIDTH, HEADS, LENGTH = 32, 2, 8


class Net:
    """Nodes and weights of one model; in int8 the operands of products get Q/DQ."""

    def __init__(self, precision: str, opset: int) -> None:
        self.type, self.quantized, self.opset = TYPES[precision], precision == "int8", opset
        self.nodes: list[NodeProto] = []
        self.weights: list[TensorProto] = []
        self.random = np.random.default_rng(0)

    def add(self, kind: str, *inputs: str, **attributes: object) -> str:
        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        return name

    def weight(self, *shape: int) -> str:
        values = self.random.standard_normal(shape).astype(np.float32) / 8
        return self.constant(values, self.type)

    def constant(self, values: np.ndarray, kind: int) -> str:
        name = f"w{len(self.weights)}"
        made = helper.make_tensor(name, kind, values.shape, values.ravel().tolist())
        self.weights.append(made)
        return name

    def operand(self, name: str) -> str:
        if not self.quantized:
            return name
        scale = self.constant(np.array(0.03, np.float32), TensorProto.FLOAT)
        zero = self.constant(np.array(0, np.int8), TensorProto.INT8)
        return self.add(
            "DequantizeLinear", self.add("QuantizeLinear", name, scale, zero), scale, zero
        )

    def sizes(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64), TensorProto.INT64)

    def model(self, shape: list[int | str], output: str, rank: int) -> onnx.ModelProto:
        given = helper.make_tensor_value_info("x", self.type, shape)
        made = helper.make_tensor_value_info(output, self.type, [None] * rank)
        graph = helper.make_graph(self.nodes, "net", [given], [made], self.weights)
        opsets = [helper.make_opsetid("", self.opset)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def cnn(precision: str, opset: int, batch: int | str) -> onnx.ModelProto:
    """Two convolutions and a classifier on images of 3 x 16 x 16."""
    net = Net(precision, opset)
    last = "x"
    for channels, out in ((3, 16), (16, 16)):
        weight = net.operand(net.weight(out, channels, 3, 3))
        last = net.add("Relu", net.add("Conv", net.operand(last), weight, pads=[1, 1, 1, 1]))
    flat = net.add("Flatten", net.add("GlobalAveragePool", last))
    output = net.add("MatMul", net.operand(flat), net.operand(net.weight(16, 10)))
    return net.model([batch, 3, 16, 16], output, 2)


def transformer(precision: str, opset: int, batch: int | str) -> onnx.ModelProto:
    """One attention block; from opset 23 on with ONNX's own Attention."""
    net = Net(precision, opset)
    norm = net.add("LayerNormalization", "x", net.weight(WIDTH), net.weight(WIDTH))
    heads = []
    for _ in range(3):
        whole = net.add("MatMul", net.operand(norm), net.operand(net.weight(WIDTH, WIDTH)))
        split = net.add("Reshape", whole, net.sizes(0, LENGTH, HEADS, WIDTH // HEADS))
        heads.append(net.add("Transpose", split, perm=[0, 2, 1, 3]))
    joined = _attention(net, *heads)
    back = net.add("Transpose", joined, perm=[0, 2, 1, 3])
    whole = net.add("Reshape", back, net.sizes(0, LENGTH, WIDTH))
    return net.model([batch, LENGTH, WIDTH], net.add("Add", "x", whole), 3)


def _attention(net: Net, query: str, key: str, value: str) -> str:
    if net.opset >= ATTENTION_OPSET:
        return net.add("Attention", query, key, value)
    turned = net.add("Transpose", key, perm=[0, 1, 3, 2])
    scores = net.add("Softmax", net.add("MatMul", query, turned), axis=-1)
    return net.add("MatMul", scores, value)


def top_k() -> onnx.ModelProto:
    """The k greatest of 16 values, with k as an input."""
    kinds = [("x", TensorProto.FLOAT, [2, 16]), ("k", TensorProto.INT64, [])]
    outputs = [("y", TensorProto.FLOAT, [2, None]), ("i", TensorProto.INT64, [2, None])]
    nodes = [
        helper.make_node("Reshape", ["k", "one"], ["k1"], name="reshape"),
        helper.make_node("TopK", ["x", "k1"], ["y", "i"], name="top"),
    ]
    one = numpy_helper.from_array(np.array([1], np.int64), "one")
    return plain(nodes, kinds, outputs, [one])


def one_node(
    kind: str, element: int = TensorProto.FLOAT, domain: str = "", **attributes: object
) -> onnx.ModelProto:
    """`y = kind(x)` of a 4 x 4 tensor."""
    node = helper.make_node(kind, ["x"], ["y"], name="node_of_it", domain=domain, **attributes)
    return plain([node], [("x", element, [4, 4])], [("y", element, None)], [])


Declared = list[tuple[str, int, list[int | None] | None]]


def plain(
    nodes: list[NodeProto], inputs: Declared, outputs: Declared, weights: list[TensorProto]
) -> onnx.ModelProto:
    """A model of these nodes."""
    infos = [[helper.make_tensor_value_info(*one) for one in side] for side in (inputs, outputs)]
    graph = helper.make_graph(nodes, "net", *infos, weights)
    domains = {"": 18, **{node.domain: 1 for node in nodes if node.domain}}
    opsets = [helper.make_opsetid(*one) for one in domains.items()]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def saved(model: onnx.ModelProto, path: Path, *, external: bool = False) -> Path:
    """Write it, on demand with its weights in a file beside it."""
    if not external:
        onnx.save_model(model, str(path))
        return path
    for weight in model.graph.initializer:  # only raw data can be external
        weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight), weight.name))
    onnx.save_model(
        model,
        str(path),
        save_as_external_data=True,
        location=f"{path.name}.data",
        size_threshold=0,
    )
    return path
