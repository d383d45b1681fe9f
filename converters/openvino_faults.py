"""Access to the graph of an OpenVINO IR for planting faults in a copy of it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from ..core.contract import Array
from ..core.signature import Signature
from ..core.target_extensions import FaultKind, PlantedFault
from .openvino_precision import signature_name
from .openvino_reader import read_openvino
from .openvino_rewrites import node_bodies
from .planted_faults import (
    FACTOR,
    EditableAttribute,
    EditableConstant,
    SizeFault,
    SwappableInputs,
    plant_in_graph,
)

if TYPE_CHECKING:
    import openvino

_ORDERED = {  # inputs that do not commute
    "Subtract": (0, 1), "Divide": (0, 1), "Power": (0, 1), "FloorMod": (0, 1), "Mod": (0, 1),
    "Less": (0, 1), "Greater": (0, 1), "LessEqual": (0, 1), "GreaterEqual": (0, 1),
    "Select": (1, 2),
}  # fmt: skip
_ATTRIBUTES = {
    "Elu": "alpha", "LRN": "alpha", "AvgPool": "exclude-pad", "CumSum": "exclusive",
    "GridSample": "align_corners", "Gelu": "approximation_mode", "DepthToSpace": "mode",
    "Interpolate": "coordinate_transformation_mode",
}  # fmt: skip
_PADDED = ("Convolution", "GroupConvolution", "MaxPool", "AvgPool")
_NORMALIZATIONS = ("MVN", "NormalizeL2", "BatchNormInference")
_FLOATS = ("f32", "f16", "f64")


def plant_fault(
    path: Path, kind: FaultKind, random: Random, signature: Signature, folder: Path
) -> PlantedFault | None:
    """Write a copy with one fault of this kind.

    Raises:
        RunnerError: the file cannot be read.
    """
    graph = _OpenVinoGraph(read_openvino(path), signature)
    return plant_in_graph(graph, kind, random, signature, folder / path.name)


class _OpenVinoGraph:
    """An IR in memory; faults are planted outside the bodies of its nodes."""

    def __init__(self, model: openvino.Model, signature: Signature) -> None:
        self._model = model
        self._nodes = model.get_ordered_ops()
        self._signature = signature

    def has_open_loop(self) -> bool:
        """Return whether a loop's end is computed in its body."""
        return any(map(_is_open_loop, self._nodes))

    def constants(self, *, scalar: bool) -> list[EditableConstant]:
        """Return constants, which are replaced for all their readers."""
        kinds = _FLOATS if scalar else (*_FLOATS, "i8", "u8")
        return [
            EditableConstant(
                name=str(node.get_friendly_name()),
                read=partial(getattr, node, "data"),
                write=partial(_replace_constant, node),
            )
            for node in self._nodes
            if node.get_type_name() == "Constant"
            and node.get_element_type().get_type_name() in kinds
            and (node.data.size == 1) == scalar
        ]

    def swappable_inputs(self) -> list[SwappableInputs]:
        """Return pairs of float inputs."""
        return [
            SwappableInputs(node=_label(node), places=places, swap=partial(_swap, node, places))
            for node in self._nodes
            if (places := _ORDERED.get(node.get_type_name())) and _can_swap(node, places)
        ]

    def attributes(self) -> list[EditableAttribute]:
        """Return paddings, and the attributes of the table."""
        found = []
        for node in self._nodes:
            kind, attributes = node.get_type_name(), node.get_attributes()
            explicit = attributes.get("auto_pad", "explicit") in ("explicit", "EXPLICIT")
            if kind in _PADDED and explicit and any(list(attributes["pads_begin"])[:1]):
                value = list(attributes["pads_begin"]), list(attributes["pads_end"])
                found.append(_editable(node, "pads", value))
            elif kind in _ATTRIBUTES:
                found.append(_editable(node, _ATTRIBUTES[kind], attributes[_ATTRIBUTES[kind]]))
        return found

    def epsilons(self) -> list[EditableAttribute]:
        """Return the epsilons of normalizations."""
        return [
            _editable(node, name, node.get_attributes()[name])
            for node in self._nodes
            if node.get_type_name() in _NORMALIZATIONS
            for name in ("epsilon", "eps")
            if name in node.get_attributes()
        ]

    def float_outputs(self) -> list[Any]:
        """Return the results that hold floats."""
        results = self._model.get_results()
        return [
            result for result in results
            if result.input(0).get_element_type().get_type_name() in _FLOATS
        ]  # fmt: skip

    def multiply_output(self, output: Any, fault: SizeFault) -> str | None:
        """Multiply an output at one size of an input."""
        import numpy as np
        from openvino import opset13 as ops

        names = tuple(spec.name for spec in self._signature.inputs)
        ports = [one for one in self._model.inputs if signature_name(one, names) == fault.input]
        if not ports:
            return None
        source = output.input(0).get_source_output()
        dtype = source.get_element_type().to_dtype()
        found = ops.gather(ops.shape_of(ports[0].get_node()), np.int64(fault.axis), np.int64(0))
        compare = ops.greater_equal if fault.onward else ops.equal
        hit = compare(found, np.int64(fault.size))
        times = ops.select(hit, np.asarray(FACTOR, dtype), np.asarray(1, dtype))
        wrong = ops.multiply(source, times)
        kept = source.get_names()
        source.set_names(set())
        wrong.output(0).set_names(kept)
        output.input(0).replace_source_output(wrong.output(0))
        return signature_name(output.output(0), self._signature.outputs)

    def save(self, copy: Path) -> None:
        """Write the IR."""
        import openvino

        self._model.validate_nodes_and_infer_types()
        openvino.save_model(self._model, str(copy), compress_to_fp16=False)


def _is_open_loop(node: Any) -> bool:
    """Return whether a node, or one in its bodies, is a loop whose end is computed in its body."""
    if node.get_type_name() == "Loop":
        _, place = node.get_special_body_ports()
        condition = node.get_function().get_results()[place].input(0).get_source_output()
        if condition.get_node().get_type_name() != "Constant":
            return True
    return any(_is_open_loop(one) for body in node_bodies(node) for one in body.get_ordered_ops())


def _label(node: Any) -> str:
    return f"{node.get_type_name()} {node.get_friendly_name()}"


def _replace_constant(constant: Any, array: Array) -> None:
    import numpy as np
    import openvino

    other = openvino.op.Constant(np.asarray(array))
    other.set_friendly_name(constant.get_friendly_name())
    constant.output(0).replace(other.output(0))


def _can_swap(node: Any, places: tuple[int, int]) -> bool:
    ports = [node.input(place) for place in places]
    sources = [port.get_source_output() for port in ports]
    names = {(one.get_node().get_friendly_name(), one.get_index()) for one in sources}
    return len(names) > 1 and all(p.get_element_type().get_type_name() in _FLOATS for p in ports)


def _swap(node: Any, places: tuple[int, int]) -> None:
    first, second = (node.input(place) for place in places)
    sources = first.get_source_output(), second.get_source_output()
    first.replace_source_output(sources[1])
    second.replace_source_output(sources[0])


def _editable(node: Any, name: str, value: Any) -> EditableAttribute:
    def write(new: Any) -> None:
        if isinstance(new, tuple):
            node.set_attribute("pads_begin", new[0])
            node.set_attribute("pads_end", new[1])
        else:
            node.set_attribute(name, new)

    return EditableAttribute(node=_label(node), name=name, value=value, write=write)
