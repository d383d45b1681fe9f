"""One call of ModelOpt's AutoCast: what it cannot read is set apart before, and restored after."""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..capture.framework_errors import call_framework
from ..capture.rewrite import swap_attribute
from ..core.contract import Array, Job
from .onnx_guard import copy_external_weights
from .onnx_topology import (
    GraphWiring,
    all_nodes,
    cast_end,
    constant_values,
    float_constants,
    rename_tensors,
)

if TYPE_CHECKING:
    import onnx

# AutoCast leaves their bodies in FP32, but would cast their inputs and outputs
_BODIES = ("If", "Loop", "Scan")


@dataclass(frozen=True, kw_only=True)
class AutocastDraft:
    """A model as AutoCast reads it, and what has to be restored afterwards."""

    path: Path
    copies: tuple[str, ...]  # nodes that copy an output, in its own type
    doubles: frozenset[str]  # inputs and outputs of float64, which AutoCast makes float32
    infinite: Mapping[str, Array]  # names of constants with infinities
    makers: Mapping[str, str]  # producing node by tensor
    metadata: Mapping[str, str]


def write_draft(model: onnx.ModelProto, parent: Path, folder: Path) -> AutocastDraft:
    """Write the model to a folder of its own: AutoCast may write beside its input.

    Args:
        model: with every node named.
        parent: its external weights lie beside this file.
        folder: is created.
    """
    import onnx

    folder.mkdir()
    _separate_body_weights(model.graph)
    copies = _separate_outputs(model.graph)
    doubles = _declare_float32(model.graph)
    copy_external_weights(model, parent, folder)
    path = folder / "model.onnx"
    onnx.save_model(model, str(path))
    return AutocastDraft(
        path=path,
        copies=copies,
        doubles=doubles,
        infinite=_find_infinities(model, folder),
        makers={name: node.name for node in model.graph.node for name in node.output},
        metadata={entry.key: entry.value for entry in model.metadata_props},
    )


def _separate_body_weights(graph: onnx.GraphProto) -> None:
    """Rename weights that a body shares with the main graph; constants that it reads are weights.

    AutoCast gives the body a copy of the same name, and then one name has two types. It takes outer
    Constant nodes for half, also integers and booleans.
    """
    captured = GraphWiring(graph).captured
    constants = [
        one for one in graph.node if one.op_type == "Constant" and one.output[0] in captured
    ]
    for node in constants:
        tensor = next((one.t for one in node.attribute if one.name == "value"), None)
        if tensor is not None:
            graph.initializer.append(tensor)
            graph.initializer[-1].name = node.output[0]
            graph.node.remove(node)
    wiring = GraphWiring(graph)
    shared = [
        tensor
        for tensor in graph.initializer
        if tensor.name in wiring.captured and tensor.name in wiring.readers
    ]
    names = {tensor.name: f"{tensor.name}::body" for tensor in shared}
    for tensor in shared:
        copy = deepcopy(tensor)
        copy.name = names[tensor.name]
        graph.initializer.append(copy)
    outer = {id(node) for node in graph.node}
    for node in all_nodes(graph):
        if id(node) not in outer:
            node.input[:] = [names.get(name, name) for name in node.input]


def _separate_outputs(graph: onnx.GraphProto) -> tuple[str, ...]:
    """Give each output that is constant or that nodes read a node of its own; return their names.

    AutoCast 0.47 fails on an output whose readers have another type, and would cast a constant.
    """
    import onnx

    wiring = GraphWiring(graph)
    shared = wiring.readers.keys() | wiring.constants.keys()
    copies = []
    for name in [one.name for one in graph.output if one.name in shared]:
        inner = f"{name}::shared"
        rename_tensors(graph, {name: inner})
        if name in wiring.constants:
            wiring.constants[name].name = inner
        copies.append(onnx.helper.make_node("Identity", [inner], [name], name=f"{name}::output"))
    graph.node.extend(copies)
    return tuple(copy.name for copy in copies)


def _declare_float32(graph: onnx.GraphProto) -> frozenset[str]:
    """Declare inputs and outputs of float64 as float32; return their names.

    AutoCast computes all float64 in float32, and then rejects ends whose type changed.
    """
    from onnx import TensorProto

    ends = (*graph.input, *graph.output)
    found = [one for one in ends if one.type.tensor_type.elem_type == TensorProto.DOUBLE]
    for one in found:
        one.type.tensor_type.elem_type = TensorProto.FLOAT
    return frozenset(one.name for one in found)


def run_autocast(draft: AutocastDraft, job: Job, keep: Sequence[str]) -> onnx.ModelProto:
    """Convert the draft to half precision except for the nodes to keep, and delete the draft.

    Raises:
        ConversionError: AutoCast rejected the model.
    """
    import onnx

    kept = (*keep, *draft.copies)
    half = call_framework("ModelOpt AutoCast", lambda: _call_autocast(draft.path, job, kept))
    shutil.rmtree(draft.path.parent)
    _restore_infinities(half, draft.infinite)
    for value in (*half.graph.input, *half.graph.output):
        if value.name in draft.doubles:
            cast_end(half.graph, value, onnx.TensorProto.DOUBLE)
    _restore_names(half, draft.makers)
    _drop_unknown_dims(half.graph, job.signature.dynamic_dims)
    onnx.helper.set_model_props(half, dict(draft.metadata))
    return half


def _call_autocast(path: Path, job: Job, keep: Sequence[str]) -> onnx.ModelProto:
    """Call AutoCast; a range of `inf` disables its own rules."""
    from modelopt.onnx.autocast import convert_to_mixed_precision
    from modelopt.onnx.autocast.precisionconverter import PrecisionConverter

    convert = PrecisionConverter._convert_subgraph_precision

    def keep_nodes(converter: object, body: onnx.GraphProto, *rest: object) -> None:
        """Keep the nodes' objects: AutoCast 0.47 knows them by `id`, which Python gives again."""
        nodes = list(body.node)
        convert(converter, body, *rest)
        del nodes

    with swap_attribute(PrecisionConverter, "_convert_subgraph_precision", keep_nodes):
        model: onnx.ModelProto = convert_to_mixed_precision(
            str(path),
            low_precision_type=str(job.precision),
            nodes_to_exclude=[f"{re.escape(name)}$" for name in keep],
            op_types_to_exclude=list(_BODIES),
            data_max=float("inf"),
            init_max=float("inf"),
            keep_io_types=not job.half_io,
            providers=["cpu"],
        )
    return model


def _find_infinities(model: onnx.ModelProto, folder: Path) -> dict[str, Array]:
    """Return the constants with infinities, which AutoCast replaces by finite numbers."""
    import numpy as np

    return {
        name: values
        for name, tensor in float_constants(model.graph)
        if np.isinf(values := constant_values(tensor, folder)).any()
    }


def _restore_infinities(half: onnx.ModelProto, infinite: Mapping[str, Array]) -> None:
    """Restore infinities: half precision has them, and a mask of -inf hides more than -65504.

    AutoCast names a copy `name_1`, and a constant cast for some of its readers `name_fp16`.
    """
    import numpy as np
    from onnx import TensorProto, numpy_helper

    for tensor in half.graph.initializer:
        plain = tensor.name.removesuffix("_fp16")
        names = (tensor.name, plain, re.sub(r"_\d+$", "", plain))
        wanted = next((infinite[name] for name in names if name in infinite), None)
        if wanted is None or tensor.data_type != TensorProto.FLOAT16:
            continue
        values = numpy_helper.to_array(tensor)
        restored = np.where(np.isinf(wanted), wanted, values).astype(np.float16)
        tensor.CopyFrom(numpy_helper.from_array(restored, tensor.name))


def _restore_names(half: onnx.ModelProto, makers: Mapping[str, str]) -> None:
    """Name a layer norm that AutoCast fused after its last node, as the sidecar does."""
    known = set(makers.values())
    for node in half.graph.node:
        made = makers.get(node.output[0].removesuffix("_pre_cast"))
        if node.name not in known and node.op_type != "Cast" and made is not None:
            node.name = made


def _drop_unknown_dims(graph: onnx.GraphProto, known: Collection[str]) -> None:
    """Remove the names of dims that no input has.

    AutoCast names every unknown dim `unk`. Equal names mean equal sizes: ONNX Runtime would reuse
    the memory of one tensor for another, and fail.
    """
    for value in graph.value_info:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param and dim.dim_param not in known:
                dim.ClearField("dim_param")
