"""Convert FP32 ONNX to FP16 or BF16 with ModelOpt's AutoCast, except what must stay FP32."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from ..capture.framework_errors import call_framework
from ..core.contract import Converted, Job
from ..core.errors import ConversionError, ErrorCode, Hint, Option
from ..core.kinds import Precision
from .installed_packages import package_versions
from .onnx_autocast import AutocastDraft, run_autocast, write_draft
from .onnx_compatibility import lower_model, opset_of
from .onnx_files import check_model, copy_sidecar, save_model, set_metadata
from .onnx_half_emulation import HALF_IO
from .onnx_half_ranges import HALF_LIMITS, HalfOverflow, find_overflows, read_with_names
from .onnx_mask_fills import clamp_masks
from .onnx_origins import NodeOrigin, match_nodes, module_or_node, read_origins
from .onnx_topology import all_nodes

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
    if job.precision is Precision.FP16:
        separate_transposes(half.graph)
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
    return (f"kept in FP32, {len(matched)} nodes: {', '.join(places)}",)


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
