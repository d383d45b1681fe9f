"""Transforms to and from half spectra, written in ONNX that runtimes load.

The exporter writes `irfft` as a DFT that is one-sided and inverse at once, which ONNX defines from
opset 27 on only. The other half of the spectrum of a real signal is the conjugate of the first,
in reverse: with both halves the transform is an ordinary one.

It gives `rfft` the length of the signal, though that is the signal's own. Where it is dynamic,
ONNX's inference of shapes then takes half a spectrum for as long as the signal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir

_BETWEEN = frozenset({"Div", "Mul", "Slice"})  # the factor of `norm`, and the real part
_PARTS = frozenset({"Gather", "Squeeze"})  # how the exporter takes a size of a shape


def complete_spectra(model: onnx_ir.Model) -> None:
    """Give each inverse transform of half a spectrum the whole of it; no other needs a length."""
    for node in list(model.graph):
        if node.op_type == "DFT" and _has_flag(node, "onesided"):
            if _has_flag(node, "inverse"):
                _complete_spectrum(model.graph, node)
            elif _has_own_length(node):
                node.replace_input_with(1, None)
                _drop_shapes(node)


def _has_flag(node: onnx_ir.Node, name: str) -> bool:
    attribute = node.attributes.get(name)
    return attribute is not None and bool(attribute.as_int())


def _has_own_length(node: onnx_ir.Node) -> bool:
    """Whether the length given is a part of the shape of what is transformed."""
    length = node.inputs[1]
    part = None if length is None else length.producer()
    while part is not None and part.op_type in _PARTS:
        shape = part.inputs[0]
        part = None if shape is None else shape.producer()
    return part is not None and part.op_type == "Shape" and part.inputs[0] is node.inputs[0]


def _transform_axis(node: onnx_ir.Node) -> int | None:
    """The axis that is transformed: an input from opset 20 on, an attribute before."""
    if "axis" in node.attributes:
        return node.attributes["axis"].as_int()
    given = node.inputs[2] if len(node.inputs) > 2 else None  # noqa: PLR2004 - input, length, axis
    if given is None or given.const_value is None:
        return None
    return int(given.const_value.numpy().reshape(-1)[0])


def _complete_spectrum(graph: onnx_ir.Graph, node: onnx_ir.Node) -> None:
    """Put the conjugate of what the spectrum lacks behind it, in reverse."""
    import numpy as np
    import onnx_ir

    half, length, axis = node.inputs[0], node.inputs[1], _transform_axis(node)
    if half is None or length is None or axis is None or half.dtype is None:
        return
    made: list[onnx_ir.Node] = []

    def write(kind: str, *inputs: onnx_ir.Value, **attributes: int) -> onnx_ir.Value:
        made.append(onnx_ir.node(kind, list(inputs), attributes=attributes))
        made[-1].outputs[0].name = f"{node.outputs[0].name}::{len(made)}"
        return made[-1].outputs[0]

    def constant(values: list[int], dtype: np.dtype[np.generic]) -> onnx_ir.Value:
        tensor = onnx_ir.tensor(np.array(values, dtype))
        made.append(onnx_ir.node("Constant", [], attributes={"value": tensor}))
        made[-1].outputs[0].name = f"{node.outputs[0].name}::{len(made)}"
        return made[-1].outputs[0]

    whole = np.dtype(np.int64)
    axes = constant([axis], whole)
    size = write("Gather", write("Shape", half), axes, axis=0)
    total = write("Reshape", length, constant([1], whole))
    lacking = write("Sub", total, size)
    rest = write("Slice", half, lacking, constant([0], whole), axes, constant([-1], whole))
    conjugate = write("Mul", rest, constant([1, -1], half.dtype.numpy()))
    full = write("Concat", half, conjugate, axis=axis)
    graph.insert_before(node, made)
    node.replace_input_with(0, full)
    node.attributes["onesided"] = onnx_ir.AttrInt64("onesided", 0)
    _drop_shapes(node)


def _drop_shapes(node: onnx_ir.Node) -> None:
    """Drop the exporter's shapes up to the part that is taken: they have the wrong length.

    ONNX Runtime believes them, and gives two values of one shape the same memory.
    """
    value = node.outputs[0]
    value.shape = None
    for user in value.consumers():
        if user.op_type in _BETWEEN:
            _drop_shapes(user)
