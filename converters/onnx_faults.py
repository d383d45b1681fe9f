"""Plant faults in copies of ONNX models, to measure what a verdict on the model detects."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from math import prod
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from ..core.contract import Array
from ..core.signature import Signature
from ..core.target_extensions import FaultKind, PlantedFault
from .onnx_guard import all_tensors, read_graph
from .onnx_topology import all_graphs, all_nodes
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
    link_or_copy,
    scale_constant,
    swap_rows,
)

if TYPE_CHECKING:
    import onnx

# operators whose first two inputs (for Where the last two) do not commute
_ORDERED_OPS: Mapping[str, tuple[int, int]] = {
    "Sub": (0, 1), "Div": (0, 1), "Pow": (0, 1), "Mod": (0, 1), "Less": (0, 1), "Greater": (0, 1),
    "LessOrEqual": (0, 1), "GreaterOrEqual": (0, 1), "Where": (1, 2),
}  # fmt: skip
_EPSILON = 1e-5  # ONNX's default for every operator with an epsilon
_SCALABLE: Mapping[str, tuple[str, float]] = {  # numeric attributes with their defaults
    "LeakyRelu": ("alpha", 0.01), "Elu": ("alpha", 1.0), "Celu": ("alpha", 1.0),
    "HardSigmoid": ("alpha", 0.2), "Selu": ("gamma", 1.0507), "ThresholdedRelu": ("alpha", 1.0),
    "Gemm": ("alpha", 1.0), "LRN": ("alpha", 1e-4), "Attention": ("scale", 0.0),
}  # fmt: skip
_FLIPPABLE: Mapping[str, tuple[str, int]] = {  # attributes of 0 or 1, with their defaults
    "AveragePool": ("count_include_pad", 0), "CumSum": ("exclusive", 0), "TopK": ("largest", 1),
    "ArgMax": ("select_last_index", 0), "ArgMin": ("select_last_index", 0),
    "GridSample": ("align_corners", 0),
}  # fmt: skip
_CHOICES: Mapping[str, tuple[str, Mapping[str, str]]] = {  # attributes of type string
    "Gelu": ("approximate", {"none": "tanh", "tanh": "none"}),
    "DepthToSpace": ("mode", {"DCR": "CRD", "CRD": "DCR"}),
    "Resize": (
        "coordinate_transformation_mode",
        {"half_pixel": "asymmetric", "pytorch_half_pixel": "asymmetric",
         "align_corners": "half_pixel", "asymmetric": "half_pixel"},
    ),
}  # fmt: skip
_DEFAULT_TEXTS = {"Gelu": "none", "DepthToSpace": "DCR", "Resize": "half_pixel"}  # their defaults
_PREFIX = "modelc_fault"


def plant_fault(
    path: Path, kind: FaultKind, random: Random, signature: Signature, folder: Path
) -> PlantedFault | None:
    """Write a copy with one fault of this kind; external weights are linked.

    Returns None for a model with a conditional loop, which a fault might keep from ending.

    Raises:
        RunnerError: the file cannot be read.
    """
    import onnx

    model = read_graph(path)
    if _has_open_loop(model.graph):
        return None
    at_size = draw_size(signature, random) if kind is FaultKind.SIZE else None
    if at_size is not None:
        done = _alter_at_size(model, at_size, random)
    else:
        done = _FAULTS[kind](model, path.parent, random)
    if done is None:
        return None
    for name in {entry.value for tensor in all_tensors(model) for entry in tensor.external_data
                 if entry.key == "location"}:  # fmt: skip
        link_or_copy(path.parent / name, folder)
    copy = folder / path.name
    onnx.save(model, str(copy))
    return fault_record(copy, done, at_size)


def _has_open_loop(graph: onnx.GraphProto) -> bool:
    """Return whether a loop's end is computed in its body: a fault might keep it from ending."""
    bodies = (_attribute_value(one, "body") for one in all_nodes(graph) if one.op_type == "Loop")
    return any(map(_computes_its_end, bodies))


def _computes_its_end(body: onnx.GraphProto) -> bool:
    """Return whether the loop condition may change: it is neither constant nor passed through."""
    makers = {name: node for node in body.node for name in node.output}
    condition = body.output[0].name
    while condition in makers and makers[condition].op_type == "Identity":
        condition = makers[condition].input[0]
    if condition in makers:
        return str(makers[condition].op_type) != "Constant"
    return condition in {value.name for value in body.input[2:]}  # carried between iterations


def _constant_tensors(graph: onnx.GraphProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    """Return the constant tensors of a graph and of the bodies of its nodes, by value name."""
    for part in all_graphs(graph):
        for tensor in part.initializer:
            yield tensor.name, tensor
        for node in part.node:
            for attribute in node.attribute:
                if attribute.HasField("t") and node.op_type == "Constant":
                    yield node.output[0], attribute.t


def _constants(model: onnx.ModelProto, folder: Path, *, scalar: bool) -> list[EditableConstant]:
    """Return constants of floats with one element, or of floats and 8-bit integers with several."""
    from onnx import TensorProto

    kinds = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16}
    if not scalar:
        kinds |= {TensorProto.DOUBLE, TensorProto.INT8, TensorProto.UINT8}
    return [
        EditableConstant(
            name=name,
            read=functools.partial(_read_values, tensor, folder),
            write=functools.partial(_write_values, tensor),
        )
        for name, tensor in _constant_tensors(model.graph)
        if tensor.data_type in kinds
        and (prod(tensor.dims) == 1 if scalar else prod(tensor.dims) > 1)
    ]


def _read_values(tensor: onnx.TensorProto, folder: Path) -> Array:
    """Return the values; onnx keeps external data in the message that it reads them for."""
    import onnx
    from onnx import numpy_helper

    copy = onnx.TensorProto()
    copy.CopyFrom(tensor)
    return numpy_helper.to_array(copy, base_dir=str(folder))


def _write_values(tensor: onnx.TensorProto, array: Array) -> None:
    from onnx import numpy_helper

    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _swap_inputs(model: onnx.ModelProto, folder: Path, random: Random) -> FaultChange | None:
    """Swap two float inputs of an operator, or two rows of a weight.

    Leaves integers alone: they may be indices, which not every runtime checks.
    """
    floats = _float_values(model.graph)
    nodes = [node for node in all_nodes(model.graph) if _can_swap(node, floats)]
    if nodes and random.random() < 1 / 2:
        node = random.choice(nodes)
        one, other = _ORDERED_OPS[node.op_type]
        node.input[one], node.input[other] = node.input[other], node.input[one]
        return _node_label(node), f"inputs {one} and {other} swapped"
    return alter_constant(_constants(model, folder, scalar=False), swap_rows, random)


def _float_values(graph: onnx.GraphProto) -> set[str]:
    """Return the names of values that the model declares as floats."""
    from onnx import TensorProto

    kinds = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)
    known = [*graph.input, *graph.output, *graph.value_info]
    found = {one.name for one in known if one.type.tensor_type.elem_type in kinds}
    return found | {name for name, tensor in _constant_tensors(graph) if tensor.data_type in kinds}


def _can_swap(node: onnx.NodeProto, floats: set[str]) -> bool:
    places = _ORDERED_OPS.get(node.op_type)
    if places is None:
        return False
    one, other = node.input[places[0]], node.input[places[1]]
    return one != other and {one, other} <= floats


def _change_number(model: onnx.ModelProto, folder: Path, random: Random) -> FaultChange | None:
    """Change an attribute, or a scalar that an operator reads."""
    nodes = [node for node in all_nodes(model.graph) if _has_attribute(node)]
    scaled = None
    if not nodes or random.random() < 1 / 2:
        scaled = scale_constant(_constants(model, folder, scalar=True), random, small=False)
    if scaled is None and nodes:
        node = random.choice(nodes)
        return _node_label(node), _alter_attribute(node)
    return scaled


def _has_attribute(node: onnx.NodeProto) -> bool:
    if node.op_type == "Attention":
        return _attribute_value(node, "scale") is not None
    return node.op_type in {**_SCALABLE, **_FLIPPABLE, **_CHOICES} or _can_shift_padding(node)


def _can_shift_padding(node: onnx.NodeProto) -> bool:
    """Return whether it is a convolution or pooling whose padding can move to one side."""
    if node.op_type not in ("Conv", "MaxPool", "AveragePool"):
        return False
    return any((_attribute_value(node, "pads") or [0])[:1])


def _attribute_value(node: onnx.NodeProto, name: str) -> Any:
    from onnx import helper

    found = next((one for one in node.attribute if one.name == name), None)
    return None if found is None else helper.get_attribute_value(found)


def _set_attribute(node: onnx.NodeProto, name: str, value: Any) -> None:
    from onnx import helper

    others = [one for one in node.attribute if one.name != name]
    del node.attribute[:]
    node.attribute.extend([*others, helper.make_attribute(name, value)])


def _alter_attribute(node: onnx.NodeProto) -> str:
    """Change an attribute of the node; return a description."""
    if _can_shift_padding(node):
        pads = list(_attribute_value(node, "pads"))
        half = len(pads) // 2
        pads[0], pads[half] = pads[0] - 1, pads[half] + 1
        _set_attribute(node, "pads", pads)
        return "padding moved by one"
    if node.op_type in _SCALABLE:
        name, usual = _SCALABLE[node.op_type]
        found = _attribute_value(node, name)
        value = usual if found is None else found
        _set_attribute(node, name, value * FACTOR)
        return f"{name} {value:.4g} -> {value * FACTOR:.4g}"
    if node.op_type in _FLIPPABLE:
        name, default = _FLIPPABLE[node.op_type]
        found = _attribute_value(node, name)
        flag = default if found is None else found
        _set_attribute(node, name, 1 - flag)
        return f"{name} {flag} -> {1 - flag}"
    name, words = _CHOICES[node.op_type]
    word = (_attribute_value(node, name) or _DEFAULT_TEXTS[node.op_type].encode()).decode()
    other = words.get(word, "half_pixel")
    _set_attribute(node, name, other)
    return f"{name} {word} -> {other}"


def _scale_epsilon(model: onnx.ModelProto, folder: Path, random: Random) -> FaultChange | None:
    """Scale an epsilon by 1000."""
    nodes = [node for node in all_nodes(model.graph) if "Normalization" in node.op_type]
    if not nodes:
        return scale_constant(_constants(model, folder, scalar=True), random, small=True)
    node = random.choice(nodes)
    found = _attribute_value(node, "epsilon")
    value = _EPSILON if found is None else found
    _set_attribute(node, "epsilon", value * EPSILON_FACTOR)
    return _node_label(node), f"epsilon {value:.3g} -> {value * EPSILON_FACTOR:.3g}"


def _node_label(node: onnx.NodeProto) -> str:
    return f"{node.op_type} {node.name or node.output[0]}"


def _alter_at_size(model: onnx.ModelProto, fault: SizeFault, random: Random) -> FaultChange | None:
    """Multiply an output at one size of an input; None if no output holds floats."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    graph = model.graph
    made = {one for node in graph.node for one in node.output}
    types = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)
    outputs = [
        one for one in graph.output
        if one.type.tensor_type.elem_type in types and one.name in made
    ]  # fmt: skip
    if not outputs or fault.input not in {value.name for value in graph.input}:
        return None
    output = random.choice(outputs)
    held, kind = f"{_PREFIX}_held", output.type.tensor_type.elem_type
    _rename_value(graph, output.name, held)
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    constants = {
        "axis": np.array(fault.axis, np.int64), "size": np.array(fault.size, np.int64),
        "factor": np.array(FACTOR, dtype), "one": np.array(1, dtype),
    }  # fmt: skip
    for key, value in constants.items():
        graph.initializer.append(numpy_helper.from_array(value, f"{_PREFIX}_{key}"))
    steps = (
        ("Shape", [fault.input], "shape"),
        ("Gather", ["shape", "axis"], "found"),
        ("GreaterOrEqual" if fault.onward else "Equal", ["found", "size"], "hit"),
        ("Where", ["hit", "factor", "one"], "times"),
        ("Mul", [held, "times"], output.name),
    )
    own = {*constants, "shape", "found", "hit", "times"}
    for operator, taken, given in steps:
        inputs = [f"{_PREFIX}_{one}" if one in own else one for one in taken]
        result = f"{_PREFIX}_{given}" if given in own else given
        graph.node.append(helper.make_node(operator, inputs, [result]))
    return f"output {output.name}", FACTOR_TEXT


def _rename_value(graph: onnx.GraphProto, before: str, after: str) -> None:
    """Rename a value wherever it is produced or read."""
    for node in all_nodes(graph):
        for names in (node.input, node.output):
            for place, name in enumerate(names):
                if name == before:
                    names[place] = after


_FAULTS: Mapping[FaultKind, Callable[[onnx.ModelProto, Path, Random], FaultChange | None]] = {
    FaultKind.WEIGHT: lambda model, folder, random: alter_constant(
        _constants(model, folder, scalar=False), alter_element, random
    ),
    FaultKind.SWAP: _swap_inputs,
    FaultKind.ATTRIBUTE: _change_number,
    FaultKind.EPSILON: _scale_epsilon,
    FaultKind.SIZE: lambda *_: None,
}
