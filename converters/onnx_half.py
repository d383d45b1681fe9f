"""Convert FP32 ONNX to FP16 or BF16 with ModelOpt's AutoCast, except what must stay FP32."""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from ..capture.framework_errors import call_framework
from ..core.contract import Array, Converted, Job
from ..core.errors import ConversionError, ErrorCode, Hint, Option
from ..core.kinds import Precision
from .installed_packages import package_versions
from .onnx_compatibility import lower_model, opset_of
from .onnx_files import check_model, copy_sidecar, save_model, set_metadata
from .onnx_guard import copy_external_weights
from .onnx_half_emulation import HALF_IO
from .onnx_half_ranges import (
    HALF_LIMITS,
    HalfOverflow,
    clamp_masks,
    find_overflows,
    read_with_names,
)
from .onnx_origins import NodeOrigin, match_nodes, module_or_node, read_origins
from .onnx_topology import GraphWiring, all_nodes, constant_values, float_constants

if TYPE_CHECKING:
    import onnx
    import onnx_ir

_DRAFT = "autocast"


@dataclass(frozen=True, kw_only=True)
class _HalfInput:
    """The input of AutoCast, and the notes on it."""

    draft: AutocastDraft
    keep: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class QuantizedLayers:
    """The nodes of quantized layers: those of a group have one type; those in `keep` stay FP32."""

    groups: tuple[frozenset[str], ...] = ()
    keep: tuple[str, ...] = ()

    def complete(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the names and those in `keep`, with the whole group of each."""
        found = dict.fromkeys((*names, *self.keep))
        for group in self.groups:
            if not group.isdisjoint(found):
                found.update(dict.fromkeys(sorted(group)))
        return tuple(found)


def convert_to_half(
    job: Job, parent: Path, out: Path, layers: QuantizedLayers | None = None
) -> Converted:
    """Write `parent` in the job's half precision to `out`, with its sidecar.

    Inputs and outputs stay FP32 unless `half_io` is set. Nodes keep their names.

    Args:
        job: uses its precision, feeds, `keep`, `half_io` and metadata.
        parent: an FP32 ONNX, its external data and debug sidecar beside it.
        out: a path in the job's folder.
        layers: the quantized layers, if there are any.

    Raises:
        ConversionError: AutoCast rejected the model, or a half output overflows.
        UsageError: a `keep` pattern matches nothing.
    """
    prepared = _prepare_input(
        job, parent, layers or QuantizedLayers()
    )  # frees the parent, which may take gigabytes
    half = run_autocast(prepared.draft, job, prepared.keep)
    options = _half_options(half, job, len(prepared.keep))
    return Converted(
        files=_write_half(half, job, parent, out),
        options=options | lower_model(out, job.runtimes),
        notes=prepared.notes,
        versions=package_versions("nvidia-modelopt", "onnx", "onnxruntime-gpu", "onnxruntime"),
    )


def _prepare_input(job: Job, parent: Path, layers: QuantizedLayers) -> _HalfInput:
    """Inspect the parent, and write it for AutoCast."""
    matched = match_nodes(parent, job.keep)
    feeds = job.feeds or (job.example,)
    model = read_with_names(parent)
    masks = clamp_masks(model, parent.parent, feeds, job.precision)
    found = find_overflows(model, parent, feeds, job.precision)
    if job.half_io:
        _check_outputs(model, found)
    origins = read_origins(parent)
    notes = [*_forecast_notes(model, found, origins), *_keep_note(model, matched, origins)]
    if masks:
        limit = f"{HALF_LIMITS[job.precision]:g}"
        notes.append(f"mask fills beyond {limit} were clamped: {', '.join(masks)}")
    if job.half_io:
        notes.append(
            f"inputs and outputs are {job.precision}; validation casts from and to float32"
        )
    return _HalfInput(
        draft=write_draft(model, parent, job.folder / _DRAFT),
        keep=layers.complete([*matched, *(name for one in found for name in one.keep)]),
        notes=tuple(notes),
    )


def _check_outputs(model: onnx.ModelProto, found: Iterable[HalfOverflow]) -> None:
    """Reject half outputs that would have to stay FP32."""
    ends = {value.name for value in (*model.graph.input, *model.graph.output)}
    for one in found:
        if one.tensor in ends:
            raise ConversionError(
                f"{one.tensor!r} cannot be half: {one}",
                hint=Hint("leave out ", Option("half-io")),
                option="half-io",
                code=ErrorCode.UNSUPPORTED,
            )


def _write_half(
    half: onnx.ModelProto, job: Job, parent: Path, out: Path
) -> tuple[tuple[str, str], ...]:
    import onnx_ir

    model = call_framework("onnx_ir", lambda: onnx_ir.from_proto(half))
    metadata = {**job.metadata, **({HALF_IO: "true"} if job.half_io else {})}
    set_metadata(model, metadata)
    merge_equal_weights(model.graph)
    files = save_model(model, out, external_data=job.external_data)
    check_model(out)
    return (*files, *copy_sidecar(parent, out))


def _half_options(half: onnx.ModelProto, job: Job, count: int) -> dict[str, str]:
    return {
        "by": "ModelOpt AutoCast",
        "opset": str(opset_of(half)),
        "io": str(job.precision if job.half_io else Precision.FP32),
        **({"keep": ", ".join(job.keep)} if job.keep else {}),
        **({"kept in fp32": f"{count} nodes"} if count else {}),
    }


def _forecast_notes(
    model: onnx.ModelProto, found: Sequence[HalfOverflow], origins: Mapping[str, NodeOrigin]
) -> tuple[str, ...]:
    """Return one note per module that the forecast keeps in FP32, with the worst reason."""
    nodes = {node.name: node for node in all_nodes(model.graph)}
    lines: dict[str, str] = {}
    for one in sorted(found, key=lambda one: -one.value):
        for name in one.keep:
            place = module_or_node(nodes[name], origins)
            lines.setdefault(place, f"kept in FP32: {place} ({one.reason})")
    return tuple(lines.values())


def _keep_note(
    model: onnx.ModelProto, matched: Sequence[str], origins: Mapping[str, NodeOrigin]
) -> tuple[str, ...]:
    if not matched:
        return ()
    names = set(matched)
    nodes = [node for node in all_nodes(model.graph) if node.name in names]
    places = dict.fromkeys(module_or_node(node, origins) for node in nodes)
    return (f"kept in FP32 by --keep-fp, {len(matched)} nodes: {', '.join(places)}",)


# AutoCast leaves their bodies in FP32, but would cast their inputs and outputs
_BODIES = ("If", "Loop", "Scan")


@dataclass(frozen=True, kw_only=True)
class AutocastDraft:
    """A model as AutoCast reads it, and what has to be restored afterwards."""

    path: Path
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
    """Rename weights that a body shares with the main graph.

    AutoCast gives the body a copy of the same name, and then one name has two types.
    """
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


def run_autocast(draft: AutocastDraft, job: Job, keep: Sequence[str]) -> onnx.ModelProto:
    """Convert the draft to half precision except for the nodes to keep, and delete the draft.

    Raises:
        ConversionError: AutoCast rejected the model.
    """
    import onnx

    half = call_framework("ModelOpt AutoCast", lambda: _call_autocast(draft.path, job, keep))
    shutil.rmtree(draft.path.parent)
    _restore_infinities(half, draft.infinite)
    _restore_names(half, draft.makers)
    if job.precision is Precision.FP16:
        separate_transposes(half.graph)
    _drop_unknown_dims(half.graph, job.signature.dynamic_dims)
    onnx.helper.set_model_props(half, dict(draft.metadata))
    return half


def _call_autocast(path: Path, job: Job, keep: Sequence[str]) -> onnx.ModelProto:
    """Call AutoCast; a range of `inf` disables its own rules."""
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


def separate_transposes(graph: onnx.GraphProto) -> int:
    """Insert a Reshape between batch transposes and MatMuls with constants; return how many.

    ONNX Runtime's MatmulTransposeFusion fuses the two. Where both are float16, version 1.24 then
    segfaults on the CPU while it loads the model at its default optimization level. A Reshape to
    the same shape keeps them apart and computes nothing. Bodies of If and Loop stay in FP32.

    Args:
        graph: in half precision; it is changed in place. Its nodes keep their names.
    """
    import numpy as np
    from onnx import helper, numpy_helper

    constants = {tensor.name for tensor in graph.initializer}
    constants |= {node.output[0] for node in graph.node if node.op_type == "Constant"}
    by_output = {name: node for node in graph.node for name in node.output}
    shapes: dict[int, str] = {}
    count = 0
    for at, node in enumerate(list(graph.node)):
        source = by_output.get(node.input[0]) if node.op_type == "MatMul" else None
        rank = _batch_transposed_rank(source)
        if rank and node.input[1] in constants:
            shape = shapes.setdefault(rank, f"modelc::same_shape_{rank}")
            tensor = f"{node.input[0]}::same_shape_{count + 1}"
            made = helper.make_node("Reshape", [node.input[0], shape], [tensor], name=tensor)
            graph.node.insert(at + count, made)
            node.input[0] = tensor
            count += 1
    graph.initializer.extend(
        numpy_helper.from_array(np.zeros(rank, np.int64), name) for rank, name in shapes.items()
    )
    return count


def _batch_transposed_rank(node: onnx.NodeProto | None) -> int:
    """The rank of a Transpose that moves the first dim beside or behind the last; else 0."""
    if node is None or node.op_type != "Transpose":
        return 0
    perm = next((list(one.ints) for one in node.attribute if one.name == "perm"), [])
    rank = len(perm)
    kept = [*range(1, rank - 1)]
    is_batch = bool(kept) and perm in ([*kept, 0, rank - 1], [*kept, rank - 1, 0])
    return rank if is_batch else 0


def merge_equal_weights(graph: onnx_ir.Graph) -> None:
    """Merge equal weights: AutoCast makes a copy for each reader."""
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
