"""FP16 and BF16 ONNX, around what must stay in FP32.

That is what the forecast on the validation feeds finds out of range (`onnx_ranges.py`), and what
the user keeps. All the rest is cast, by ModelOpt's AutoCast.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.contract import Job
from ..core.errors import ConversionError, Hint, Option
from ..core.precision import Precision
from .guarded import call_framework
from .installed import package_versions
from .onnx_autocast import AutocastDraft, merge_equal_weights, run_autocast, write_draft
from .onnx_files import check_model, copy_sidecar, save_model, set_metadata
from .onnx_masks import HALF_LIMITS, clamp_masks
from .onnx_origins import NodeOrigin, all_nodes, match_nodes, module_or_node, read_origins
from .onnx_ranges import HalfOverflow, find_overflows, read_with_names
from .onnx_rounding import HALF_IO

if TYPE_CHECKING:
    import onnx

_DRAFT = "autocast"


@dataclass(frozen=True, kw_only=True)
class HalfResult:
    """A half-precision ONNX that was written: its files, and what stayed in FP32 and why."""

    files: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    options: Mapping[str, str]
    versions: Mapping[str, str]
    kept: tuple[str, ...]  # names of the nodes


@dataclass(frozen=True, kw_only=True)
class _HalfInput:
    """What AutoCast is given, and what there is to say of it."""

    draft: AutocastDraft
    keep: tuple[str, ...]
    notes: tuple[str, ...]


def convert_to_half(job: Job, parent: Path, out: Path) -> HalfResult:
    """Write `parent` in the job's half precision to `out`, its sidecar beside it.

    Inputs and outputs stay FP32 unless the job says otherwise. Nodes keep their names.

    Args:
        job: precision, feeds, `keep` and `half_io` are heeded, and its metadata is written.
        parent: an FP32 ONNX, its external data and debug sidecar beside it.
        out: a path in the job's folder.

    Raises:
        ConversionError: AutoCast refused the model, or an output that is to be half overflows.
        UsageError: a `keep` pattern matches nothing.
    """
    prepared = _prepare_input(job, parent)  # lets go of the parent, which may be gigabytes
    half = run_autocast(prepared.draft, job, prepared.keep)
    return HalfResult(
        files=_write_half(half, job, parent, out),
        notes=prepared.notes,
        options=_half_options(half, job, len(prepared.keep)),
        versions=package_versions("nvidia-modelopt", "onnx", "onnxruntime-gpu", "onnxruntime"),
        kept=prepared.keep,
    )


def _prepare_input(job: Job, parent: Path) -> _HalfInput:
    """Look at the parent, and write it as AutoCast is to read it."""
    asked = match_nodes(parent, job.keep)
    feeds = job.feeds or (job.example,)
    model = read_with_names(parent)
    masks = clamp_masks(model, parent.parent, feeds, job.precision)
    found = find_overflows(model, parent, feeds, job.precision)
    if job.half_io:
        _check_outputs(model, found)
    origins = read_origins(parent)
    return _HalfInput(
        draft=write_draft(model, parent, job.folder / _DRAFT),
        keep=tuple(dict.fromkeys([*asked, *(name for one in found for name in one.keep)])),
        notes=(
            *_forecast_notes(model, found, origins),
            *_keep_note(model, asked, origins),
            *_mask_note(masks, job.precision),
            *_io_note(job),
        ),
    )


def _check_outputs(model: onnx.ModelProto, found: Iterable[HalfOverflow]) -> None:
    """An output that is half cannot be kept in FP32."""
    ends = {value.name for value in (*model.graph.input, *model.graph.output)}
    for one in found:
        if one.tensor in ends:
            raise ConversionError(
                f"{one.tensor!r} cannot be half: {one}",
                hint=Hint("leave out ", Option("half-io")),
                option="half-io",
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


def _half_options(half: onnx.ModelProto, job: Job, kept: int) -> dict[str, str]:
    opset = next(entry.version for entry in half.opset_import if entry.domain in ("", "ai.onnx"))
    return {
        "by": "ModelOpt AutoCast",
        "opset": str(opset),
        "io": str(job.precision if job.half_io else Precision.FP32),
        **({"keep": ", ".join(job.keep)} if job.keep else {}),
        **({"kept in fp32": f"{kept} nodes"} if kept else {}),
    }


def _forecast_notes(
    model: onnx.ModelProto, found: Sequence[HalfOverflow], origins: Mapping[str, NodeOrigin]
) -> tuple[str, ...]:
    """One line for each module that the forecast keeps in FP32, with the worst reason."""
    nodes = {node.name: node for node in all_nodes(model.graph)}
    lines: dict[str, str] = {}
    for one in sorted(found, key=lambda one: -one.value):
        for name in one.keep:
            place = module_or_node(nodes[name], origins)
            lines.setdefault(place, f"kept in FP32: {place} ({one.reason})")
    return tuple(lines.values())


def _keep_note(
    model: onnx.ModelProto, asked: Sequence[str], origins: Mapping[str, NodeOrigin]
) -> tuple[str, ...]:
    if not asked:
        return ()
    wanted = set(asked)
    nodes = [node for node in all_nodes(model.graph) if node.name in wanted]
    places = dict.fromkeys(module_or_node(node, origins) for node in nodes)
    return (f"kept in FP32 as asked, {len(asked)} nodes: {', '.join(places)}",)


def _mask_note(masks: Sequence[str], low: Precision) -> tuple[str, ...]:
    if not masks:
        return ()
    limit = f"{HALF_LIMITS[low]:g}"
    return (f"mask fills beyond {limit} were brought into range: {', '.join(masks)}",)


def _io_note(job: Job) -> tuple[str, ...]:
    if not job.half_io:
        return ()
    return (f"inputs and outputs are {job.precision}; validation casts from and to float32",)
