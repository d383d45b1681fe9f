"""ModelOpt's AutoCast, told what stays in FP32, and the mending of what it does besides.

AutoCast by itself would choose what stays by a run on random data, which has limits on dynamic
inputs and on size. Here the choice is given to it, and its run is left out. It makes a copy of a
weight for each reader, clamps infinities, drops metadata and renames the layer norms that it
fuses: all of that is undone.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.contract import Array, Job
from .guarded import call_framework
from .model_files import copy_external_weights
from .onnx_links import constant_values, float_constants, index_links
from .onnx_origins import all_nodes

if TYPE_CHECKING:
    import onnx
    import onnx_ir

# AutoCast leaves their bodies in FP32, but would cast what goes in and what comes out.
_BODIES = ("If", "Loop", "Scan")


@dataclass(frozen=True, kw_only=True)
class AutocastDraft:
    """A model as AutoCast reads it, and what must be known of it afterwards."""

    path: Path
    infinite: Mapping[str, Array]  # the constants that hold infinities
    makers: Mapping[str, str]  # node by tensor
    metadata: Mapping[str, str]


def write_draft(model: onnx.ModelProto, parent: Path, folder: Path) -> AutocastDraft:
    """Write the model to a folder of its own: AutoCast may write beside what it reads.

    Args:
        model: with every node named.
        parent: its external weights lie beside this file.
        folder: is made.
    """
    import onnx

    folder.mkdir()
    _separate_body_weights(model.graph)
    copy_external_weights(model, parent, folder)
    path = folder / "model.onnx"
    onnx.save_model(model, str(path))
    return AutocastDraft(
        path=path,
        infinite=_find_infinities(model, folder),
        makers={name: node.name for node in model.graph.node for name in node.output},
        metadata={entry.key: entry.value for entry in model.metadata_props},
    )


def _separate_body_weights(graph: onnx.GraphProto) -> None:
    """Another name for weights that a body shares with the main graph.

    AutoCast gives the body a copy of the same name, and then one name has two types.
    """
    links = index_links(graph)
    shared = [
        tensor
        for tensor in graph.initializer
        if tensor.name in links.captured and tensor.name in links.readers
    ]
    names = {tensor.name: f"{tensor.name}::body" for tensor in shared}
    copies = [_clone_tensor(tensor, names[tensor.name]) for tensor in shared]
    graph.initializer.extend(copies)
    outer = {id(node) for node in graph.node}
    for node in all_nodes(graph):
        if id(node) not in outer:
            node.input[:] = [names.get(name, name) for name in node.input]


def _clone_tensor(tensor: onnx.TensorProto, name: str) -> onnx.TensorProto:
    import onnx

    clone = onnx.TensorProto()
    clone.CopyFrom(tensor)
    clone.name = name
    return clone


def run_autocast(draft: AutocastDraft, job: Job, keep: Sequence[str]) -> onnx.ModelProto:
    """The draft in the job's half precision, but for the nodes to keep; the draft is removed.

    Raises:
        ConversionError: AutoCast refused the model.
    """
    import onnx

    half = call_framework("ModelOpt AutoCast", lambda: _call_autocast(draft.path, job, keep))
    shutil.rmtree(draft.path.parent)
    _restore_infinities(half, draft.infinite)
    _restore_names(half, draft.makers)
    _drop_unknown_dims(half.graph, job.signature.dynamic_dims)
    onnx.helper.set_model_props(half, dict(draft.metadata))
    return half


def _call_autocast(path: Path, job: Job, keep: Sequence[str]) -> onnx.ModelProto:
    """AutoCast itself; a range of `inf` switches its own rules off."""
    from modelopt.onnx.autocast import convert_to_mixed_precision

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
    """The constants that hold infinities, which AutoCast would make the largest finite number."""
    import numpy as np

    return {
        name: values
        for name, tensor in float_constants(model.graph)
        if np.isinf(values := constant_values(tensor, folder)).any()
    }


def _restore_infinities(half: onnx.ModelProto, infinite: Mapping[str, Array]) -> None:
    """Put them back: half precision has them, and -inf hides more than -65504.

    AutoCast calls a copy `name_1`, and what it casts for some of the readers `name_fp16`.
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
        mended = np.where(np.isinf(wanted), wanted, values).astype(np.float16)
        tensor.CopyFrom(numpy_helper.from_array(mended, tensor.name))


def _restore_names(half: onnx.ModelProto, makers: Mapping[str, str]) -> None:
    """A layer norm that AutoCast fused is called as the node that ended it, as the sidecar does."""
    known = set(makers.values())
    for node in half.graph.node:
        made = makers.get(node.output[0].removesuffix("_pre_cast"))
        if node.name not in known and node.op_type != "Cast" and made is not None:
            node.name = made


def _drop_unknown_dims(graph: onnx.GraphProto, known: Collection[str]) -> None:
    """Take away the names of dims that are none of the inputs' own.

    AutoCast calls every dim that it does not know `unk`. One name says one size: ONNX Runtime would
    use the memory of one tensor for another of the same names, and refuse to run.
    """
    for value in graph.value_info:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param and dim.dim_param not in known:
                dim.ClearField("dim_param")


def merge_equal_weights(graph: onnx_ir.Graph) -> None:
    """One weight for those that are the same: AutoCast makes a copy for each reader."""
    known: dict[tuple[object, ...], onnx_ir.Value] = {}
    for name, value in list(graph.initializers.items()):
        tensor = value.const_value
        if tensor is None or value.is_graph_output() or value.is_graph_input():
            continue
        content = sha256(tensor.tobytes()).digest()
        first = known.setdefault((tensor.dtype, tuple(tensor.shape), content), value)
        if first is not value:
            value.replace_all_uses_with(first)
            del graph.initializers[name]
