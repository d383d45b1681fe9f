"""From a model file to its Localisation: finds the eager side, looks, records."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from ...converters.registry import target_of
from ...core.contract import Target
from ...core.errors import UsageError
from ...core.events import Tell, silence
from ...core.findings import Localisation
from ...core.manifest import Manifest
from ...core.precision import Precision
from ...core.probe import Probed
from ...core.records import Artifact
from ...validators.judge import Reference
from ..beyond import beyond_of
from ..folder import REJECTED, opened
from ..held_out import loose_feeds, refer, stored
from ..manifest_file import read_manifest, write_manifest
from ..order import Judging, Source
from ..recorded import Moved, as_recorded, changed_file, check_same, recorded_source
from ..stage import Stage
from ..subject import Subject, open_subject, read_checkpoint
from .localise import MEMORY, Suspect, locate


@dataclass(frozen=True, kw_only=True)
class Looking:
    """How to look: `feed` is a feed's name (None: the artifact's worst), `memory` in bytes.

    `out` is where the reproducer goes; None is the folder of the manifest, else none is written.
    """

    feed: str | None = None
    memory: int = MEMORY
    out: Path | None = None


@dataclass(frozen=True, kw_only=True)
class _Record:
    """What a manifest says of a file; `folder` is the manifest's."""

    folder: Path
    manifest: Manifest
    artifact: Artifact


def localise_file(  # noqa: PLR0913 - the options of `modelc debug`, all but one optional
    path: Path,
    source: Source | None = None,
    tell: Tell = silence,
    *,
    looking: Looking | None = None,
    judging: Judging | None = None,
    precision: Precision | None = None,
    moved: Moved | None = None,
) -> Localisation:
    """Name the layer of one model file that first leaves eager.

    Where a manifest knows the file, also as one that it rejected, the result is written there.

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
    looking, judging = looking or Looking(), judging or Judging()
    target = _probed(path)
    record = _record_of(path)
    out = looking.out or (None if record is None else record.folder)
    with tempfile.TemporaryDirectory(prefix="modelc-") as logs:
        stage = Stage(tell=tell, logs=Path(logs))
        subject, held_out = _subject(path, source, record, judging, moved or Moved(), stage)
        low = precision or _precision(path, target, record)
        loose = loose_feeds(subject, held_out) | beyond_of(subject.references, low)
        subject = replace(subject, references=(*subject.references, *held_out))
        suspect = Suspect(
            name=path.name if record is None else record.artifact.name,
            path=path,
            target=target,
            precision=low,
            device=judging.device or "cpu",
            loose=loose,
        )
        result = locate(suspect, subject, stage, feed=looking.feed, memory=looking.memory, out=out)
    if record is not None:
        result = _kept(result, record, path, out)
    return result


def _probed(path: Path) -> Probed:
    """The file's format, if its artifacts can be looked into.

    Raises:
        UsageError: they cannot.
    """
    target: Target = target_of(path)
    if isinstance(target, Probed):
        return target
    origin = next(iter(target.MADE_FROM.values()))
    raise UsageError(
        f"the layers of {path.name} cannot be looked into: {target.NAME} keeps no names of them",
        hint=f"debug what it was made from ({origin}), which modelc export --to makes",
    )


def _record_of(path: Path) -> _Record | None:
    """What the manifest beside the file, or above `rejected/`, says of it."""
    for folder in (path.parent, path.parent.parent):
        if folder != path.parent and path.parent.name != REJECTED:
            continue
        manifest = read_manifest(folder)
        if manifest is None:
            continue
        for artifact in manifest.artifacts:
            if (folder / artifact.files[0].name).resolve() == path.resolve():
                return _Record(folder=folder, manifest=manifest, artifact=artifact)
    return None


def _precision(path: Path, target: Probed, record: _Record | None) -> Precision:
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


def _subject(  # noqa: PLR0913, PLR0917 - what is asked, what is recorded, where it is told
    path: Path,
    source: Source | None,
    record: _Record | None,
    judging: Judging,
    moved: Moved,
    stage: Stage,
) -> tuple[Subject, tuple[Reference, ...]]:
    """Eager on its feeds, as recorded where that is to be used, and on held-out samples."""
    if source is not None and record is not None and not (source.inputs or source.samples):
        moved = replace(moved, checkpoint=source.checkpoint, allow_pickle=source.allow_pickle)
        source = None
    if source is not None:
        return open_subject(source, read_checkpoint(source, stage), judging, stage), ()
    if record is None:
        raise UsageError(
            f"no manifest beside {path} knows it, so there is nothing to compare it with",
            hint="name the eager reference: --against CHECKPOINT --model PKG.MOD:FACTORY --input …",
        )
    found = recorded_source(record.manifest, record.folder, moved)
    checkpoint = read_checkpoint(found, stage)
    check_same(checkpoint, record.manifest, found)
    changed = changed_file(record.artifact, record.folder)
    if changed:
        stage.note(changed, warning=True)
    judging = as_recorded(judging, record.manifest)
    subject = open_subject(found, checkpoint, judging, stage, record.manifest.signature)
    held_out = stored(record.artifact, record.folder)
    return subject, refer(held_out, subject, stage) if held_out else ()


def _kept(result: Localisation, record: _Record, path: Path, out: Path | None) -> Localisation:
    """The result, written into the manifest: one for each artifact.

    A file that was changed after it was recorded is not the artifact any more: nothing is written.
    """
    if out is not None and result.reproducer and out.resolve() != record.folder.resolve():
        result = replace(result, reproducer=str((out / result.reproducer).resolve()))
    if changed_file(record.artifact, record.folder):
        return replace(result, artifact=path.name)
    with opened(record.folder):
        manifest = read_manifest(record.folder) or record.manifest
        others = tuple(one for one in manifest.localisations if one.artifact != result.artifact)
        write_manifest(replace(manifest, localisations=(*others, result)), record.folder)
    return result
