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
from .guarded import guarded
from .installed import versions
from .onnx_autocast import Draft, autocast, draft_of, merge_weights
from .onnx_files import check_model, copy_sidecar, save_model, set_metadata
from .onnx_masks import LIMITS, clamp_masks
from .onnx_origins import Origin, all_nodes, matching, origins_of, place_of
from .onnx_ranges import Overflow, overflows, read_named
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
class _Prepared:
    """What AutoCast is given, and what there is to say of it."""

    draft: Draft
    keep: tuple[str, ...]
    notes: tuple[str, ...]


def to_half(job: Job, parent: Path, out: Path) -> HalfResult:
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
    prepared = _prepare(job, parent)  # lets go of the parent, which may be gigabytes
    half = autocast(prepared.draft, job, prepared.keep)
    return HalfResult(
        files=_write(half, job, parent, out),
        notes=prepared.notes,
        options=_options(half, job, len(prepared.keep)),
        versions=versions("nvidia-modelopt", "onnx", "onnxruntime-gpu", "onnxruntime"),
        kept=prepared.keep,
    )


def _prepare(job: Job, parent: Path) -> _Prepared:
    """Look at the parent, and write it as AutoCast is to read it."""
    asked = matching(parent, job.keep)
    feeds = job.feeds or (job.example,)
    model = read_named(parent)
    masks = clamp_masks(model, parent.parent, feeds, job.precision)
    found = overflows(model, parent, feeds, job.precision)
    if job.half_io:
        _refuse_ends(model, found)
    origins = origins_of(parent)
    return _Prepared(
        draft=draft_of(model, parent, job.folder / _DRAFT),
        keep=tuple(dict.fromkeys([*asked, *(name for one in found for name in one.keep)])),
        notes=(
            *_kept_notes(model, found, origins),
            *_asked_note(model, asked, origins),
            *_mask_note(masks, job.precision),
            *_ends_note(job),
        ),
    )


def _refuse_ends(model: onnx.ModelProto, found: Iterable[Overflow]) -> None:
    """An output that is half cannot be kept in FP32."""
    ends = {value.name for value in (*model.graph.input, *model.graph.output)}
    for one in found:
        if one.tensor in ends:
            raise ConversionError(
                f"{one.tensor!r} cannot be half: {one}",
                hint=Hint("leave out ", Option("half-io")),
                option="half-io",
            )


def _write(half: onnx.ModelProto, job: Job, parent: Path, out: Path) -> tuple[tuple[str, str], ...]:
    import onnx_ir

    model = guarded("onnx_ir", lambda: onnx_ir.from_proto(half))
    metadata = {**job.metadata, **({HALF_IO: "true"} if job.half_io else {})}
    set_metadata(model, metadata)
    merge_weights(model.graph)
    files = save_model(model, out, external_data=job.external_data)
    check_model(out)
    return (*files, *copy_sidecar(parent, out))


def _options(half: onnx.ModelProto, job: Job, kept: int) -> dict[str, str]:
    opset = next(entry.version for entry in half.opset_import if entry.domain in ("", "ai.onnx"))
    return {
        "by": "ModelOpt AutoCast",
        "opset": str(opset),
        "io": str(job.precision if job.half_io else Precision.FP32),
        **({"keep": ", ".join(job.keep)} if job.keep else {}),
        **({"kept in fp32": f"{kept} nodes"} if kept else {}),
    }


def _kept_notes(
    model: onnx.ModelProto, found: Sequence[Overflow], origins: Mapping[str, Origin]
) -> tuple[str, ...]:
    """One line for each module that the forecast keeps in FP32, with the worst reason."""
    nodes = {node.name: node for node in all_nodes(model.graph)}
    lines: dict[str, str] = {}
    for one in sorted(found, key=lambda one: -one.value):
        for name in one.keep:
            place = place_of(nodes[name], origins)
            lines.setdefault(place, f"kept in FP32: {place} ({one.reason})")
    return tuple(lines.values())


def _asked_note(
    model: onnx.ModelProto, asked: Sequence[str], origins: Mapping[str, Origin]
) -> tuple[str, ...]:
    if not asked:
        return ()
    wanted = set(asked)
    nodes = [node for node in all_nodes(model.graph) if node.name in wanted]
    places = dict.fromkeys(place_of(node, origins) for node in nodes)
    return (f"kept in FP32 as asked, {len(asked)} nodes: {', '.join(places)}",)


def _mask_note(masks: Sequence[str], low: Precision) -> tuple[str, ...]:
    if not masks:
        return ()
    limit = f"{LIMITS[low]:g}"
    return (f"mask fills beyond {limit} were brought into range: {', '.join(masks)}",)


def _ends_note(job: Job) -> tuple[str, ...]:
    if not job.half_io:
        return ()
    return (f"inputs and outputs are {job.precision}; validation casts from and to float32",)
