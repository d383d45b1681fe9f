"""From a model file to its Localisation: finds the eager side, looks, records."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ...converters.registry import TARGETS, target_for
from ...core.contract import EAGER, Target
from ...core.errors import UsageError
from ...core.events import Tell, silence
from ...core.findings import Localisation
from ...core.manifest import Manifest
from ...core.precision import Precision
from ...core.probe import Probed
from ...core.records import REJECTED, Artifact
from ..folder import open_folder
from ..manifest_file import read_manifest, write_manifest
from ..order import Judging, Source
from ..recorded import Moved, describe_changed_file
from ..stage import Progress, temporary_logs
from ..trust import check_program_trust
from .localise import DEFAULT_MEMORY, SuspectArtifact, locate_layer
from .opening import LocaliseRequest, RecordedArtifact, open_for_localising


@dataclass(frozen=True, kw_only=True)
class DebugOptions:
    """How to look: `feed` is a feed's name (None: the artifact's worst), `memory` in bytes.

    `out` is where the reproducer goes; None is the folder of the manifest, else none is written.
    """

    feed: str | None = None
    memory: int = DEFAULT_MEMORY
    out: Path | None = None


def localise_file(  # noqa: PLR0913 - the options of `modelc debug`, all but one optional
    path: Path,
    source: Source | None = None,
    tell: Tell = silence,
    *,
    looking: DebugOptions | None = None,
    judging: Judging | None = None,
    precision: Precision | None = None,
    moved: Moved | None = None,
) -> Localisation:
    """Name the layer of one model file that first leaves eager.

    Where a manifest knows the file, also as one that it rejected, the result is written there,
    unless another eager side or precision than the recorded one is given.

    Args:
        path: the model file.
        source: the eager side; None takes the one that a manifest records.
        tell: listens to progress.
        looking: feed, memory and the folder of the reproducer.
        judging: how many feeds, from which seed, on which device the worst is looked for.
        precision: what the file computes in; None is as recorded, else as the file says.
        moved: where a recorded checkpoint and samples are now.

    Raises:
        ModelcError: the file or the checkpoint cannot be used.
    """
    looking, judging = looking or DebugOptions(), judging or Judging()
    target = _probe_target(path)
    trusted = (moved is not None and moved.trust) or (source is not None and source.trust)
    check_program_trust(path, target, trust=trusted)
    record = _find_record(path)
    other = source is not None or precision is not None  # than the verdict on record is about
    out = looking.out or (None if record is None else record.folder)
    with temporary_logs() as logs:
        stage = Progress(tell=tell, logs=logs)
        suspect = SuspectArtifact(
            name=path.name if record is None else record.artifact.name,
            path=path,
            target=target,
            precision=precision or _guess_precision(path, target, record),
            device=judging.device or "cpu",
            passed=None if other else _read_recorded_verdict(record),
        )
        asked = LocaliseRequest(
            suspect=suspect, feed=looking.feed, record=record, judging=judging, stage=stage
        )
        subject, feed = open_for_localising(asked, source, moved or Moved())
        written = {} if record is None else _read_custom_ops(record.manifest)
        result = locate_layer(
            suspect, subject, stage, feed=feed, memory=looking.memory, out=out, written=written
        )
    if record is not None:
        result = _note_frozen_branches(result, record.artifact)
        result = result if other else _record_localisation(result, record, path, out)
    return result


def _read_recorded_verdict(record: RecordedArtifact | None) -> bool | None:
    """The recorded verdict on a file; None where there is none, or the file was changed since."""
    if record is None or describe_changed_file(record.artifact, record.folder):
        return None
    verdict = record.manifest.verdict_of(record.artifact.name)
    return None if verdict is None else verdict.passed


def _note_frozen_branches(found: Localisation, artifact: Artifact) -> Localisation:
    """With a note on the branches that the capture froze: no layer is to blame for these."""
    if not artifact.frozen:
        return found
    note = (
        f"its capture froze the branch at {', '.join(artifact.frozen)}: "
        "on a feed that takes another arm that is what is wrong, not a layer"
    )
    return replace(found, notes=(note, *found.notes))


def _read_custom_ops(manifest: Manifest) -> dict[str, str]:
    """The functions that wrote operators, as the order has them: `NS::OP=PKG.MOD:FN ...`."""
    given = manifest.order.get("custom_op", "").split()
    return {one.partition("=")[0]: one.partition("=")[2] for one in given}


def _probe_target(path: Path) -> Probed:
    """The file's format, if its artifacts can be looked into.

    Raises:
        UsageError: they cannot.
    """
    target: Target = target_for(path)
    if isinstance(target, Probed):
        return target
    origin = next(iter(target.MADE_FROM.values()))
    mend = f"debug what it was made from: modelc export --to {origin}"
    if origin == EAGER:
        able = [one.NAME for one in TARGETS if isinstance(one, Probed)]
        mend = f"debug the same model in another format: modelc export --to {' or '.join(able)}"
    raise UsageError(
        f"the layers of {path.name} cannot be looked into: {target.NAME} keeps no names of them",
        hint=mend,
    )


def _find_record(path: Path) -> RecordedArtifact | None:
    """What the manifest beside the file, or above `rejected/`, says of it."""
    for folder in (path.parent, path.parent.parent):
        if folder != path.parent and path.parent.name != REJECTED:
            continue
        manifest = read_manifest(folder)
        if manifest is None:
            continue
        for artifact in manifest.artifacts:
            if (folder / artifact.files[0].name).resolve() == path.resolve():
                return RecordedArtifact(folder=folder, manifest=manifest, artifact=artifact)
    return None


def _guess_precision(path: Path, target: Probed, record: RecordedArtifact | None) -> Precision:
    """As recorded; else 8-bit layers make it INT8, and half weights FP16 or BF16."""
    if record is not None:
        return record.artifact.precision
    inspection = target.inspect(path)
    if inspection.quantized or any("Quantize" in name for name in inspection.operators):
        return Precision.INT8
    weights = inspection.weights
    most = max(weights, key=lambda dtype: weights[dtype], default="float32")
    halves = {
        "float16": Precision.FP16, "f16": Precision.FP16,
        "bfloat16": Precision.BF16, "bf16": Precision.BF16,
    }  # fmt: skip
    return halves.get(most, Precision.FP32)


def _record_localisation(
    result: Localisation, record: RecordedArtifact, path: Path, out: Path | None
) -> Localisation:
    """The result, written into the manifest: one for each artifact.

    A file that was changed after it was recorded is not the artifact any more: nothing is written.
    """
    if out is not None and result.reproducer and out.resolve() != record.folder.resolve():
        result = replace(result, reproducer=str((out / result.reproducer).resolve()))
    if describe_changed_file(record.artifact, record.folder):
        return replace(result, artifact=path.name)
    with open_folder(record.folder):
        manifest = read_manifest(record.folder) or record.manifest
        others = tuple(one for one in manifest.localisations if one.artifact != result.artifact)
        write_manifest(replace(manifest, localisations=(*others, result)), record.folder)
    return result
