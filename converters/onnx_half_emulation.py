"""Emulate half precision in a float32 copy of an ONNX model that rounds where the model does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from typing import TYPE_CHECKING

from ..capture.framework_errors import call_framework
from .onnx_topology import all_graphs, cast_end, cast_node, load_model, rename_tensors

if TYPE_CHECKING:
    from pathlib import Path

    import onnx

HALF_IO = "half_io"  # metadata key of a model whose inputs and outputs are half, unlike eager's
_FLOAT, _NAMES = 1, {10: "float16", 16: "bfloat16"}  # onnx.TensorProto.FLOAT, FLOAT16, BFLOAT16
_HALVES, _BFLOAT16 = tuple(_NAMES), 16
_TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype")
# operators that only move, select or compare values: their results are already rounded
_EXACT = frozenset({
    "Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "GatherND",
    "Identity", "If", "Loop", "MaxPool", "Neg", "Relu", "Reshape", "ScatterElements", "ScatterND",
    "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "TopK", "Transpose", "Trilu", "Unsqueeze",
    "Where", "Abs", "Max", "Min", "Constant", "ConstantOfShape", "GlobalMaxPool",
})  # fmt: skip


def has_half(model: onnx.ModelProto) -> bool:
    """Return whether any tensor of the model can be float16 or bfloat16."""
    return bool(half_types(model.graph))


def computes_in_half(model: onnx.ModelProto) -> bool:
    """Return whether any operator except Cast reads or returns float16 or bfloat16.

    A pair of casts only rounds, which ONNX Runtime does faithfully on any device.
    """
    graphs = list(all_graphs(model.graph))
    halves = {name for graph in graphs for name, _ in _half_tensors(graph)}
    for graph in graphs:
        halves.update(one.name for one in graph.initializer if one.data_type in _HALVES)
    nodes = [node for graph in graphs for node in graph.node]
    for node in nodes:
        if any(_names_half(attribute) for attribute in node.attribute):
            halves.update(node.output)
    return any(
        node.op_type != "Cast" and not halves.isdisjoint((*node.input, *node.output))
        for node in nodes
    )


def half_types(graph: onnx.GraphProto) -> tuple[str, ...]:
    """Return numpy's names of the half types in a graph and the bodies inside it."""
    graphs = list(all_graphs(graph))
    found = {one.data_type for part in graphs for one in part.initializer}
    found |= {code for part in graphs for _, code in _half_tensors(part)}
    for attribute in (one for part in graphs for node in part.node for one in node.attribute):
        found |= {attribute.t.data_type, attribute.i if attribute.name in _TYPE_ATTRIBUTES else 0}
    return tuple(name for code, name in _NAMES.items() if code in found)


def _names_half(attribute: onnx.AttributeProto) -> bool:
    """Return whether an attribute is a half constant or a half result type."""
    if attribute.t.data_type in _HALVES:
        return True
    return attribute.name in _TYPE_ATTRIBUTES and attribute.i in _HALVES


def half_ends(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Return the inputs and outputs of half precision."""
    ends = (*model.graph.input, *model.graph.output)
    return [one for one in ends if one.type.tensor_type.elem_type in _HALVES]


def has_half_io(model: onnx.ModelProto) -> bool:
    """Return whether modelc converted the model's float32 inputs and outputs to half."""
    return any(entry.key == f"modelc.{HALF_IO}" for entry in model.metadata_props)


def emulate_half(model: onnx.ModelProto, *, float_io: bool) -> onnx.ModelProto:
    """Return a float32 copy that emulates half precision.

    Args:
        model: with known or inferable types; weights may be external.
        float_io: convert half inputs and outputs to float32, rounded on entry.
    """
    import onnx

    copy = onnx.shape_inference.infer_shapes(model)
    graphs = list(all_graphs(copy.graph))
    types = {name: code for graph in graphs for name, code in _half_tensors(graph)}
    for graph in reversed(graphs):  # bodies first: the nodes that hold them are rewritten next
        weights = [tensor.name for tensor in graph.initializer if tensor.data_type in _HALVES]
        rename_tensors(graph, {name: f"{name}::float" for name in weights})
        for name in weights:  # ONNX Runtime folds the casts
            graph.node.insert(0, cast_node(name, f"{name}::float", _FLOAT))
        held = {tensor.name for tensor in graph.initializer}  # weights stay half
        _widen_values(value for value in graph.value_info if value.name not in held)
        if graph is not graphs[0]:
            _widen_values((*graph.input, *graph.output))
        _round_nodes(graph, types)
    _widen_ends(copy.graph, float_io=float_io)
    return copy


def cast_ends(model: onnx.ModelProto, ends: Iterable[onnx.ValueInfoProto]) -> onnx.ModelProto:
    """Cast those of the given inputs and outputs that are half from and to float32, in place."""
    for value in ends:
        if value.type.tensor_type.elem_type in _HALVES:
            cast_end(model.graph, value, _FLOAT)
    return model


def bfloat16_ends(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Return the inputs and outputs that ONNX Runtime cannot exchange as arrays."""
    ends = (*model.graph.input, *model.graph.output)
    return [one for one in ends if one.type.tensor_type.elem_type == _BFLOAT16]


def _half_tensors(graph: onnx.GraphProto) -> Iterator[tuple[str, int]]:
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type in _HALVES:
            yield value.name, value.type.tensor_type.elem_type


def _widen_values(values: Iterable[onnx.ValueInfoProto]) -> None:
    for value in values:
        if value.type.tensor_type.elem_type in _HALVES:
            value.type.tensor_type.elem_type = _FLOAT


def _round_nodes(graph: onnx.GraphProto, types: Mapping[str, int]) -> None:
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        nodes.append(node)
        rounds = node.op_type not in _EXACT
        half = _widen_attributes(node)
        for index, name in enumerate(node.output):
            if rounds and name in types:
                node.output[index] = wide = f"{name}::wide"
                nodes.append(cast_node(wide, f"{name}::half", half or types[name]))
                nodes.append(cast_node(f"{name}::half", name, _FLOAT))
    copies = [deepcopy(node) for node in nodes]  # the graph is about to drop its own
    del graph.node[:]
    graph.node.extend(copies)


def _widen_attributes(node: onnx.NodeProto) -> int:
    """Change half constants and result types to float32; return the former half type, or 0."""
    from onnx import numpy_helper

    found = 0
    for attribute in node.attribute:
        if attribute.name in _TYPE_ATTRIBUTES and attribute.i in _HALVES:
            found, attribute.i = attribute.i, _FLOAT
        if attribute.t.data_type in _HALVES:
            wide = numpy_helper.to_array(attribute.t).astype("float32")
            attribute.t.CopyFrom(numpy_helper.from_array(wide, attribute.t.name))
    return found


def _widen_ends(graph: onnx.GraphProto, *, float_io: bool) -> None:
    """Insert casts at the model's half inputs and outputs, and rename the inner tensors."""
    inputs = [value for value in graph.input if value.type.tensor_type.elem_type in _HALVES]
    outputs = [value for value in graph.output if value.type.tensor_type.elem_type in _HALVES]
    ends = inputs if float_io else [*inputs, *outputs]
    rename_tensors(graph, {value.name: f"{value.name}::inner" for value in ends})
    for value in inputs:
        inner, half = f"{value.name}::inner", f"{value.name}::half"
        graph.node.insert(0, cast_node(half if float_io else value.name, inner, _FLOAT))
        if float_io:
            graph.node.insert(0, cast_node(value.name, half, value.type.tensor_type.elem_type))
    if float_io:
        _widen_values((*inputs, *outputs))
        return
    for value in outputs:
        code = value.type.tensor_type.elem_type
        graph.node.append(cast_node(f"{value.name}::inner", value.name, code))


def widen_half_regions(path: Path) -> tuple[str, ...]:
    """Rewrite the file if parts of it compute in half precision; return notes.

    External weights stay in their file as half; a Cast widens them to float32.

    Raises:
        ConversionError: the file cannot be read or rewritten.
    """
    import onnx

    model = load_model(path)
    if not computes_in_half(model):
        return ()
    kinds = " and ".join(half_types(model.graph))
    call_framework("onnx", lambda: onnx.save(emulate_half(model, float_io=False), str(path)))
    return (f"{kinds} operators run in float32 and round their results",)
