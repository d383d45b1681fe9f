"""What a model file or checkpoint contains, without running it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ..checkpoints.weight_sets import WeightSetSummary, describe_weight_sets, weights_kind
from ..converters.registry import target_for
from ..core.contract import Inspection, Program, Target
from ..core.errors import ErrorCode, Hint, ModelcError, Option, RunnerError, UsageError
from ..core.model_meta import ModelMeta
from ..core.segments import Segmented, SegmentOptions, SegmentPlan
from .model_metadata import META_KEY, decode_meta
from .parts.joined_manifest import read_results_of
from .recorded_run import check_program_trust, record_beside


def inspect_checkpoint(path: str | Path) -> CheckpointContents:
    """What a checkpoint of weights holds: its sets of weights, their sizes and distances.

    Raises:
        UsageError: the file is not a weights file.
        CheckpointError: it cannot be read, or is a pickle of objects.
    """
    place = Path(path)
    kind = weights_kind(place)
    if not kind:
        raise UsageError(
            f"{place} is not a weights file",
            hint="give a file that torch.save or safetensors wrote",
            code=ErrorCode.NOT_A_CHECKPOINT,
        )
    return CheckpointContents(
        kind=kind, size=place.stat().st_size, sets=describe_weight_sets(place)
    )


def inspect(
    path: str | Path, *, trust: bool = False, segments: SegmentOptions | None = None
) -> InspectedFile:
    """What a converted model contains, and what the manifest beside it records.

    Args:
        path: a model file.
        trust: open one that is a program, though no manifest beside it records it.
        segments: plan the segments that torch-tensorrt would make of an exported program, or ONNX
            Runtime of an ONNX model.

    Raises:
        ModelcError: the file is not an artifact, or cannot be read.
    """
    place = Path(path)
    _refuse_folder(place, segments)
    target = target_for(place)
    if segments is not None and not isinstance(target, Segmented):
        raise UsageError(
            f"--segments needs a program or an ONNX, and {place} is of the format {target.NAME}",
            hint=Hint("export it with ", Option("to", "pt2"), " or ", Option("to", "onnx")),
            option="segments",
            code=ErrorCode.UNSUPPORTED,
        )
    if isinstance(target, Program) and target.INSPECT_OPENS:
        check_program_trust(place, target, trust=trust)
    beside = record_beside(place)
    size = place.stat().st_size
    lineage: tuple[tuple[str, str], ...] = ()
    if beside is not None:
        manifest, artifact = beside
        verdict = manifest.verdict_of(artifact.name)
        size = artifact.size
        lineage = (
            ("made from", f"{artifact.made_from} sha256 {artifact.parent[:12]}…"),
            ("checkpoint file", manifest.checkpoint.path),
            ("verdict", "not judged" if verdict is None else str(verdict.state)),
        )
    inspection, meta = _separate_meta(_inspect_model(place, target))
    plan = None
    if segments is not None and isinstance(target, Segmented):
        plan = target.plan_path(place, segments)
    return InspectedFile(
        inspection=inspection, size=size, lineage=lineage, segments=plan, meta=meta
    )


def _separate_meta(inspection: Inspection) -> tuple[Inspection, ModelMeta | None]:
    """Return the description without the text of the metadata, and the metadata, if it is valid."""
    rest = dict(inspection.metadata)
    text = rest.pop(META_KEY, rest.pop(f"modelc.{META_KEY}", ""))
    try:
        meta = decode_meta(text)
    except RunnerError as error:
        facts = {**inspection.facts, META_KEY: error.message}
        return replace(inspection, metadata=rest, facts=facts), None
    return replace(inspection, metadata=rest), meta if text else None


def _inspect_model(place: Path, target: Target) -> Inspection:
    """Inspect the model; as nothing is logged, a hint must not name a log."""
    try:
        return target.inspect(place)
    except ModelcError as error:
        if not error.advice.names_log:
            raise
        hint = Hint("export it again: it is damaged, or of another version of its library")
        raise error.at(error.place, hint=hint) from error


def _refuse_folder(place: Path, segments: SegmentOptions | None) -> None:
    """Raise a UsageError for an output folder; its hint names an artifact that can be inspected."""
    manifest = read_results_of(place) if place.is_dir() else None
    files = [place / one.files[0].name for one in (() if manifest is None else manifest.artifacts)]
    files = [file for file in files if file.exists()]
    hint = f"; of all of them: modelc report {place}"
    if segments is not None:
        planned = [file for file in files if isinstance(target_for(file), Segmented)]
        files, hint = planned or files, " --segments"
    if files:
        raise UsageError(
            f"{place} is an output folder, not one artifact",
            hint=f"modelc inspect {files[0]}{hint}",
            code=ErrorCode.NOT_AN_ARTIFACT,
        )


@dataclass(frozen=True, kw_only=True)
class InspectedFile:
    """What `inspect` found: the file's content, its bytes, and its lineage from the manifest.

    `segments` is the plan for TensorRT, if it was asked for. `meta` is the metadata in the file.
    """

    inspection: Inspection
    size: int
    lineage: tuple[tuple[str, str], ...]
    segments: SegmentPlan | None = None
    meta: ModelMeta | None = None


@dataclass(frozen=True, kw_only=True)
class CheckpointContents:
    """What `inspect` found in a checkpoint of weights: its kind, its bytes, its sets of weights."""

    kind: str
    size: int
    sets: tuple[WeightSetSummary, ...]
