"""Access to the graph of an ONNX model for planting faults in a copy of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from functools import partial
from math import prod
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from ..core.contract import Array
from ..core.signature import Signature
from ..core.target_extensions import FaultKind, PlantedFault
from .onnx_guard import all_tensors, read_graph
from .onnx_topology import all_graphs, all_nodes, constant_values, rename_tensors
from .planted_faults import (
    FACTOR,
    EditableAttribute,
    EditableConstant,
    SizeFault,
    SwappableInputs,
    plant_in_graph,
)

if TYPE_CHECKING:
    import onnx

_FLOATS = frozenset({1, 10, 11})  # onnx.TensorProto: FLOAT, FLOAT16, DOUBLE
_SCALARS = frozenset({1, 10, 16})  # FLOAT, FLOAT16, BFLOAT16
_BYTES = frozenset({2, 3})  # UINT8, INT8
_ORDERED = {  # inputs that do not commute
    "Sub": (0, 1), "Div": (0, 1), "Pow": (0, 1), "Mod": (0, 1), "Less": (0, 1), "Greater": (0, 1),
    "LessOrEqual": (0, 1), "GreaterOrEqual": (0, 1), "Where": (1, 2),
}  # fmt: skip
_ATTRIBUTES: dict[str, tuple[str, float | str | None]] = {  # with their defaults
    "LeakyRelu": ("alpha", 0.01), "Elu": ("alpha", 1.0), "Celu": ("alpha", 1.0),
    "HardSigmoid": ("alpha", 0.2), "Selu": ("gamma", 1.0507), "ThresholdedRelu": ("alpha", 1.0),
    "Gemm": ("alpha", 1.0), "LRN": ("alpha", 1e-4), "Attention": ("scale", None),
    "AveragePool": ("count_include_pad", 0), "CumSum": ("exclusive", 0), "TopK": ("largest", 1),
    "ArgMax": ("select_last_index", 0), "ArgMin": ("select_last_index", 0),
    "GridSample": ("align_corners", 0),
    "Gelu": ("approximate", "none"), "DepthToSpace": ("mode", "DCR"),
    "Resize": ("coordinate_transformation_mode", "half_pixel"),
}  # fmt: skip
_PADDED = ("Conv", "MaxPool", "AveragePool")
_EPSILON = 1e-5  # the default of every operator with an epsilon
_PREFIX = "modelc_fault_"


def plant_fault(
    path: Path, kind: FaultKind, random: Random, signature: Signature, folder: Path
) -> PlantedFault | None:
    """Write a copy with one fault of this kind; external weights are linked.

    Raises:
        RunnerError: the file cannot be read.
    """
    return plant_in_graph(_OnnxGraph(path), kind, random, signature, folder / path.name)


class _OnnxGraph:
    """An ONNX model in memory, with its nodes also those of bodies."""

    def __init__(self, path: Path) -> None:
        self._model = read_graph(path)
        self._folder = path.parent
        self._nodes = list(all_nodes(self._model.graph))

    def has_open_loop(self) -> bool:
        """Return whether a loop's end is computed in its body."""
        loops = [node for node in self._nodes if node.op_type == "Loop"]
        return any(_computes_its_end(_attribute(node, "body")) for node in loops)

    def constants(self, *, scalar: bool) -> list[EditableConstant]:
        """Return initializers and the values of Constant nodes."""
        kinds = _SCALARS if scalar else _FLOATS | _SCALARS | _BYTES
        return [
            EditableConstant(
                name=name,
                read=partial(_read_values, tensor, self._folder),
                write=partial(_write_values, tensor),
            )
            for name, tensor in _constant_tensors(self._model.graph)
            if tensor.data_type in kinds
            and (prod(tensor.dims) == 1 if scalar else prod(tensor.dims) > 1)
        ]

    def swappable_inputs(self) -> list[SwappableInputs]:
        """Return pairs of inputs that the model declares as floats."""
        graph = self._model.graph
        known = [*graph.input, *graph.output, *graph.value_info]
        floats = {one.name for one in known if one.type.tensor_type.elem_type in _FLOATS}
        floats |= {n for n, tensor in _constant_tensors(graph) if tensor.data_type in _FLOATS}
        return [
            SwappableInputs(node=_label(node), places=places, swap=partial(_swap, node, places))
            for node in self._nodes
            if (places := _ORDERED.get(node.op_type))
            and (pair := {node.input[place] for place in places}) <= floats
            and len(pair) > 1
        ]

    def attributes(self) -> list[EditableAttribute]:
        """Return paddings, and the attributes of the table with their defaults."""
        found = []
        for node in self._nodes:
            pads = list(_attribute(node, "pads") or ()) if node.op_type in _PADDED else []
            half = len(pads) // 2
            if any(pads[:1]):
                value: Any = pads[:half], pads[half:]
                found.append(_editable(node, "pads", value))
            elif node.op_type in _ATTRIBUTES:
                name, default = _ATTRIBUTES[node.op_type]
                value = _attribute(node, name, default)
                found += [_editable(node, name, value)] if value is not None else []
        return found

    def epsilons(self) -> list[EditableAttribute]:
        """Return the epsilons of normalizations."""
        return [
            _editable(node, "epsilon", _attribute(node, "epsilon", _EPSILON))
            for node in self._nodes
            if "Normalization" in node.op_type
        ]

    def float_outputs(self) -> list[onnx.ValueInfoProto]:
        """Return the computed outputs that hold floats."""
        graph = self._model.graph
        made = {name for node in graph.node for name in node.output}
        return [
            one for one in graph.output
            if one.type.tensor_type.elem_type in _FLOATS and one.name in made
        ]  # fmt: skip

    def multiply_output(self, output: onnx.ValueInfoProto, fault: SizeFault) -> str | None:
        """Multiply an output at one size of an input."""
        import numpy as np
        from onnx import helper, numpy_helper

        graph = self._model.graph
        if fault.input not in {value.name for value in graph.input}:
            return None
        held, shape, found, hit, times = (
            _PREFIX + one for one in ("held", "shape", "found", "hit", "times")
        )
        rename_tensors(graph, {output.name: held})
        dtype = helper.tensor_dtype_to_np_dtype(output.type.tensor_type.elem_type)
        numbers = {"axis": np.int64(fault.axis), "size": np.int64(fault.size)}
        numbers |= {"factor": dtype.type(FACTOR), "one": dtype.type(1)}
        for name, value in numbers.items():
            graph.initializer.append(numpy_helper.from_array(np.asarray(value), _PREFIX + name))
        axis, size, factor, one = (_PREFIX + name for name in numbers)
        graph.node.extend(
            helper.make_node(operator, inputs, [result])
            for operator, inputs, result in (
                ("Shape", [fault.input], shape),
                ("Gather", [shape, axis], found),
                ("GreaterOrEqual" if fault.onward else "Equal", [found, size], hit),
                ("Where", [hit, factor, one], times),
                ("Mul", [held, times], output.name),
            )
        )
        return str(output.name)

    def save(self, copy: Path) -> None:
        """Write the model; its external weights are linked, or copied if the disk cannot link."""
        import onnx

        entries = [one for tensor in all_tensors(self._model) for one in tensor.external_data]
        for name in {entry.value for entry in entries if entry.key == "location"}:
            try:
                os.link(self._folder / name, copy.parent / name)
            except OSError:
                shutil.copyfile(self._folder / name, copy.parent / name)
        onnx.save(self._model, str(copy))


def _computes_its_end(body: onnx.GraphProto) -> bool:
    """Return whether the loop condition may change: it is neither constant nor passed through."""
    makers = {name: node for node in body.node for name in node.output}
    condition = body.output[0].name
    while condition in makers and makers[condition].op_type == "Identity":
        condition = makers[condition].input[0]
    if condition in makers:
        return str(makers[condition].op_type) != "Constant"
    return condition in {value.name for value in body.input[2:]}  # a state of the iterations


def _constant_tensors(graph: onnx.GraphProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    """Return the constant tensors of a graph and of the bodies of its nodes, by value name."""
    for part in all_graphs(graph):
        for tensor in part.initializer:
            yield tensor.name, tensor
        for node in part.node:
            for attribute in node.attribute:
                if attribute.HasField("t") and node.op_type == "Constant":
                    yield node.output[0], attribute.t


def _read_values(tensor: onnx.TensorProto, folder: Path) -> Array:
    """Return the values; onnx keeps external data in the message that it reads them for."""
    import onnx

    copy = onnx.TensorProto()
    copy.CopyFrom(tensor)
    return constant_values(copy, folder)


def _write_values(tensor: onnx.TensorProto, array: Array) -> None:
    from onnx import numpy_helper

    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _label(node: onnx.NodeProto) -> str:
    return f"{node.op_type} {node.name or node.output[0]}"


def _swap(node: onnx.NodeProto, places: tuple[int, int]) -> None:
    one, other = places
    node.input[one], node.input[other] = node.input[other], node.input[one]


def _attribute(node: onnx.NodeProto, name: str, default: Any = None) -> Any:
    from onnx import helper

    found = next((one for one in node.attribute if one.name == name), None)
    value = default if found is None else helper.get_attribute_value(found)
    return value.decode() if isinstance(value, bytes) else value


def _editable(node: onnx.NodeProto, name: str, value: Any) -> EditableAttribute:
    from onnx import helper

    def write(new: Any) -> None:
        others = [one for one in node.attribute if one.name != name]
        del node.attribute[:]
        joined = new[0] + new[1] if isinstance(new, tuple) else new
        node.attribute.extend([*others, helper.make_attribute(name, joined)])

    return EditableAttribute(node=_label(node), name=name, value=value, write=write)
