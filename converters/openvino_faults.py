"""Plant faults in copies of an OpenVINO IR, to measure what a verdict on it detects."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from ..core.contract import Array
from ..core.signature import Signature
from ..core.target_extensions import FaultKind, PlantedFault
from .openvino_precision import signature_name
from .openvino_reader import read_openvino
from .planted_faults import (
    EPSILON_FACTOR,
    FACTOR,
    FACTOR_TEXT,
    EditableConstant,
    FaultChange,
    SizeFault,
    alter_constant,
    alter_element,
    draw_size,
    fault_record,
    scale_constant,
    swap_rows,
)

if TYPE_CHECKING:
    import openvino

_ORDERED = {  # operators, by the position of their inputs, that do not commute
    "Subtract": (0, 1), "Divide": (0, 1), "Power": (0, 1), "FloorMod": (0, 1), "Mod": (0, 1),
    "Less": (0, 1), "Greater": (0, 1), "LessEqual": (0, 1), "GreaterEqual": (0, 1),
    "Select": (1, 2),
}  # fmt: skip
_SCALED = {"Elu": "alpha", "LRN": "alpha"}  # operators with a numeric attribute
_FLIPPED = {"AvgPool": "exclude-pad", "CumSum": "exclusive", "GridSample": "align_corners"}
_NAMED: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "Gelu": ("approximation_mode", {"ERF": "TANH", "TANH": "ERF"}),
    "DepthToSpace": ("mode", {"blocks_first": "depth_first", "depth_first": "blocks_first"}),
    "Interpolate": (
        "coordinate_transformation_mode",
        {"half_pixel": "asymmetric", "pytorch_half_pixel": "asymmetric",
         "align_corners": "half_pixel", "asymmetric": "half_pixel"},
    ),
}  # fmt: skip
_PADDED = ("Convolution", "GroupConvolution", "MaxPool", "AvgPool")
_FLOATS = ("f32", "f16", "f64")


def plant_fault(
    path: Path, kind: FaultKind, random: Random, signature: Signature, folder: Path
) -> PlantedFault | None:
    """Write a copy with one fault of this kind; None for a model with a conditional loop.

    Raises:
        RunnerError: the file cannot be read.
    """
    import openvino

    model = read_openvino(path)
    if _has_open_loop(model):
        return None
    fault = draw_size(signature, random) if kind is FaultKind.SIZE else None
    if fault is not None:
        done = _alter_at_size(model, signature, fault, random)
    else:
        done = _FAULTS[kind](model, random)
    if done is None:
        return None
    model.validate_nodes_and_infer_types()
    copy = folder / path.name
    openvino.save_model(model, str(copy), compress_to_fp16=False)
    return fault_record(copy, done, fault)


def _has_open_loop(model: openvino.Model) -> bool:
    """Return whether a loop's end is computed in its body: a fault might keep it from ending."""
    for node in model.get_ordered_ops():
        kind = node.get_type_name()
        if kind == "Loop":
            _, place = node.get_special_body_ports()
            condition = node.get_function().get_results()[place].input(0).get_source_output()
            if condition.get_node().get_type_name() != "Constant":
                return True
        bodies = [node.get_function()] if kind in ("Loop", "TensorIterator") else []
        if kind == "If":
            bodies = [node.get_then_body(), node.get_else_body()]
        if any(map(_has_open_loop, bodies)):
            return True
    return False


def _nodes_of_types(model: openvino.Model, *kinds: str) -> list[Any]:
    """Return the nodes of these types; all without types."""
    return [node for node in model.get_ordered_ops() if not kinds or node.get_type_name() in kinds]


def _node_label(node: Any) -> str:
    return f"{node.get_type_name()} {node.get_friendly_name()}"


def _replace_constant(constant: Any, array: Array) -> None:
    """Replace a constant for all its readers."""
    import numpy as np
    import openvino

    readers = constant.output(0).get_target_inputs()
    other = openvino.op.Constant(np.asarray(array))
    other.set_friendly_name(constant.get_friendly_name())
    for reader in readers:
        reader.replace_source_output(other.output(0))


def _constants(model: openvino.Model, *, scalar: bool) -> list[EditableConstant]:
    """Return constants of floats with one element, or of floats and 8-bit integers with several."""
    kinds = _FLOATS if scalar else (*_FLOATS, "i8", "u8")
    return [
        EditableConstant(
            name=str(node.get_friendly_name()),
            read=functools.partial(getattr, node, "data"),
            write=functools.partial(_replace_constant, node),
        )
        for node in _nodes_of_types(model, "Constant")
        if node.get_element_type().get_type_name() in kinds and (node.data.size == 1) == scalar
    ]


def _swap_inputs(model: openvino.Model, random: Random) -> FaultChange | None:
    """Swap two float inputs of an operator, or two rows of a weight.

    Leaves integers alone: they may be indices, which OpenVINO does not always check.
    """
    nodes = [node for node in _nodes_of_types(model, *_ORDERED) if _can_swap(node)]
    if nodes and random.random() < 1 / 2:
        node = random.choice(nodes)
        one, other = _ORDERED[node.get_type_name()]
        sources = [node.input(place).get_source_output() for place in (one, other)]
        node.input(one).replace_source_output(sources[1])
        node.input(other).replace_source_output(sources[0])
        return _node_label(node), f"inputs {one} and {other} swapped"
    return alter_constant(_constants(model, scalar=False), swap_rows, random)


def _can_swap(node: Any) -> bool:
    ports = [node.input(place) for place in _ORDERED[node.get_type_name()]]
    sources = [port.get_source_output() for port in ports]
    names = [(one.get_node().get_friendly_name(), one.get_index()) for one in sources]
    types = [port.get_element_type().get_type_name() for port in ports]
    return names[0] != names[1] and all(one in _FLOATS for one in types)


def _change_number(model: openvino.Model, random: Random) -> FaultChange | None:
    """Change an attribute, or a scalar that an operator reads."""
    nodes = _nodes_of_types(model, *_SCALED, *_FLIPPED, *_NAMED)
    nodes += [node for node in _nodes_of_types(model, *_PADDED) if any(_begin_padding(node))]
    scaled = None
    if not nodes or random.random() >= 1 / 2:
        scaled = scale_constant(_constants(model, scalar=True), random, small=False)
    if scaled is None and nodes:
        node = random.choice(nodes)
        return _node_label(node), _alter_attribute(node)
    return scaled


def _begin_padding(node: Any) -> list[int]:
    """Return the padding before the first spatial axis; empty if automatic."""
    found = node.get_attributes()
    known = found.get("auto_pad", "explicit") in ("explicit", "EXPLICIT")
    return list(found.get("pads_begin", []))[:1] if known else []


def _alter_attribute(node: Any) -> str:
    kind, found = node.get_type_name(), node.get_attributes()
    if any(_begin_padding(node)):
        begin, end = list(found["pads_begin"]), list(found["pads_end"])
        begin[0], end[0] = begin[0] - 1, end[0] + 1
        node.set_attribute("pads_begin", begin)
        node.set_attribute("pads_end", end)
        return "padding moved by one"
    if kind in _SCALED:
        name, value = _SCALED[kind], float(found[_SCALED[kind]])
        node.set_attribute(name, value * FACTOR)
        return f"{name} {value:.4g} -> {value * FACTOR:.4g}"
    if kind in _FLIPPED:
        name, flag = _FLIPPED[kind], bool(found[_FLIPPED[kind]])
        node.set_attribute(name, not flag)
        return f"{name} {flag} -> {not flag}"
    name, words = _NAMED[kind]
    word = str(found[name])
    other = words.get(word, next(iter(words)))
    node.set_attribute(name, other)
    return f"{name} {word} -> {other}"


def _scale_epsilon(model: openvino.Model, random: Random) -> FaultChange | None:
    """Scale an epsilon by 1000."""
    nodes = _nodes_of_types(model, "MVN", "NormalizeL2", "BatchNormInference")
    if not nodes:
        return scale_constant(_constants(model, scalar=True), random, small=True)
    node = random.choice(nodes)
    name = "epsilon" if "epsilon" in node.get_attributes() else "eps"
    value = float(node.get_attributes()[name])
    node.set_attribute(name, value * EPSILON_FACTOR)
    return _node_label(node), f"{name} {value:.3g} -> {value * EPSILON_FACTOR:.3g}"


def _alter_at_size(
    model: openvino.Model, signature: Signature, fault: SizeFault, random: Random
) -> FaultChange | None:
    """Multiply an output at one size of an input; None if no output holds floats."""
    import numpy as np
    from openvino import opset13 as ops

    names = tuple(spec.name for spec in signature.inputs)
    ports = [port for port in model.inputs if signature_name(port, names) == fault.input]
    results = [
        result
        for result in model.get_results()
        if result.input(0).get_element_type().get_type_name() in _FLOATS
    ]
    if not ports or not results:
        return None
    result = random.choice(results)
    source = result.input(0).get_source_output()
    dtype = source.get_element_type().to_dtype()
    found = ops.gather(ops.shape_of(ports[0].get_node()), np.int64(fault.axis), np.int64(0))
    compare = ops.greater_equal if fault.onward else ops.equal
    hit = compare(found, np.int64(fault.size))
    times = ops.select(hit, np.asarray(FACTOR, dtype), np.asarray(1, dtype))
    wrong = ops.multiply(source, times)
    kept = source.get_names()
    source.set_names(set())
    wrong.output(0).set_names(kept)
    result.input(0).replace_source_output(wrong.output(0))
    output = signature_name(result.output(0), signature.outputs)
    return f"output {output}", FACTOR_TEXT


_FAULTS: Mapping[FaultKind, Callable[[openvino.Model, Random], FaultChange | None]] = {
    FaultKind.WEIGHT: lambda model, random: alter_constant(
        _constants(model, scalar=False), alter_element, random
    ),
    FaultKind.SWAP: _swap_inputs,
    FaultKind.ATTRIBUTE: _change_number,
    FaultKind.EPSILON: _scale_epsilon,
    FaultKind.SIZE: lambda *_: None,
}
