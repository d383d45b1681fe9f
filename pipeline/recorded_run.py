"""The eager side of an earlier run, found again from its manifest.

Also consent to open foreign programs, and the request to finish a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from ..checkpoints.checkpoint_files import check_openable
from ..checkpoints.sniff import PT2, TORCHSCRIPT
from ..core.contract import Program, Target
from ..core.errors import CheckpointError, ConsentError, ErrorCode, Hint, Option, UsageError
from ..core.hub_ids import find_hub_id
from ..core.kinds import Capture
from ..core.manifest import Manifest, Pending
from ..core.nested_values import is_loader_spec
from ..core.part_records import PARTS_FILE, PartsManifest
from ..core.records import REJECTED_FOLDER, Artifact, Checkpoint, sha256_of
from ..core.verdict import Tolerance
from .image_samples import digest_samples
from .limit_text import Measuring
from .manifest_file import MANIFEST_FILE, read_manifest
from .order import Judging, Order, ResumeState, Source
from .output_folder import settle_commit

_MAX_NAMED = 3  # models of a project that a hint names


def load_manifest(folder: Path) -> Manifest:
    """The manifest of an output folder.

    Raises:
        UsageError: there is none.
    """
    if not folder.exists():
        raise UsageError(
            f"no such file or folder: {folder}",
            hint="give an output folder of modelc export",
            code=ErrorCode.NOT_FOUND,
        )
    settle_commit(folder)
    manifest = read_manifest(folder)
    if manifest is None:
        models = sorted(str(one.parent) for one in folder.glob(f"*/{MANIFEST_FILE}"))[:_MAX_NAMED]
        hint = "give an output folder of modelc export"
        if models:
            what = "parts" if (folder / PARTS_FILE).is_file() else "models"
            hint = f"it contains the folders of several {what}: give {' or '.join(models)}"
        raise UsageError(
            f"{folder} has no {MANIFEST_FILE}",
            hint=hint,
            code=ErrorCode.NO_MANIFEST,
        )
    return manifest


def drop_keys(manifest: Manifest) -> Manifest:
    """The manifest without cache keys, as artifacts are judged again in another way."""
    return replace(manifest, artifacts=tuple(replace(a, key="") for a in manifest.artifacts))


def record_beside(path: Path) -> tuple[Manifest, Artifact] | None:
    """The manifest in the file's folder and its record of this file; None if it was changed."""
    return _find_record(path.parent, path.name, rejected=False)


def record_of_rejected(path: Path) -> tuple[Manifest, Artifact] | None:
    """As `record_beside`, of a file in `rejected/` by the manifest above it."""
    if path.parent.name != REJECTED_FOLDER:
        return None
    return _find_record(path.parent.parent, f"{REJECTED_FOLDER}/{path.name}", rejected=True)


def _find_record(folder: Path, name: str, *, rejected: bool) -> tuple[Manifest, Artifact] | None:
    manifest = read_manifest(folder)
    if manifest is None:
        return None
    for artifact in manifest.artifacts:
        if artifact.files[0].name == name and artifact.rejected is rejected:
            return None if describe_changed_file(artifact, folder) else (manifest, artifact)
    return None


def check_not_modelcs(path: Path, command: str) -> None:
    """Check that a file without a valid record is another tool's, and no artifact gone wrong.

    The hints of the errors name the `command` that converts the file.

    Raises:
        UsageError: it was rejected, or changed after it was built.
    """
    against = f"name its eager reference: modelc {command} {path} --against CHECKPOINT"
    if record_of_rejected(path) is not None:
        raise UsageError(
            f"{path} was rejected, so it cannot be its own reference",
            hint=against,
            code=ErrorCode.NO_MANIFEST,
        )
    check_unchanged(path, instead=against)


def check_unchanged(path: Path, *, instead: str) -> None:
    """Check that a file without a valid record has none of other content beside it.

    Raises:
        UsageError: it was changed after it was built; the hint offers to do `instead`.
    """
    known = read_manifest(path.parent)
    if known is not None and any(a.files[0].name == path.name for a in known.artifacts):
        raise UsageError(
            f"{path} was changed after it was built: its digest differs",
            hint=f"build it again, or {instead}",
            code=ErrorCode.FILE_CHANGED,
        )


def has_unknown_trace(artifact: Artifact, manifest: Manifest) -> bool:
    """Whether it is a trace, or made from one, whose frozen branches are unknown."""
    seen: set[str] = set()
    one: Artifact | None = artifact
    while one is not None and one.frozen is None and one.name not in seen:
        if one.capture in (Capture.TRACE, Capture.MIXED):
            return True
        seen.add(one.name)
        made_from = one.parent
        one = next((a for a in manifest.artifacts if a.digest == made_from), None)
    return False


def describe_changed_file(artifact: Artifact | Pending, folder: Path) -> str:
    """Describe a missing or changed file of the artifact or step; empty if there is none.

    The debug sidecar may be missing.
    """
    for file in artifact.files:
        path = folder / file.name
        if not path.is_file():
            if file.role == "debug":
                continue
            return f"{file.name} is missing"
        if sha256_of(path) != file.sha256:
            return f"{file.name} changed since it was recorded"
    return ""


@dataclass(frozen=True, kw_only=True)
class Moved:
    """The locations of the files of an earlier run; pickles must be allowed again.

    `trust` allows programs that no manifest records.
    """

    checkpoint: Path | None = None
    samples: Path | None = None
    allow_pickle: bool = False
    trust: bool = False


def source_from_record(manifest: Manifest, folder: Path, moved: Moved) -> Source:
    """The eager side as the manifest in `folder` records it, with its files found again.

    Raises:
        CheckpointError: the checkpoint is not where it was.
        ConsentError: a pickle must be allowed again.
    """
    recorded = manifest.checkpoint
    path = _path_of_record(manifest, folder, moved)
    if not find_hub_id(path) and not path.exists():
        raise CheckpointError(
            f"no such checkpoint: {path}",
            hint=Hint(
                "give its location: ",
                Option("checkpoint", "PATH"),
                " (debug: --against PATH)",
            ),
            option="checkpoint",
            code=ErrorCode.NOT_FOUND,
        )
    if recorded.allow_pickle and not moved.allow_pickle:
        raise ConsentError(
            f"{folder} was made from a full pickle, which can run code when it is read",
            hint=Hint("add ", Option("allow-pickle"), " if you trust its author"),
            option="allow-pickle",
            code=ErrorCode.CONSENT_REQUIRED,
        )
    return source_of_record(manifest, folder, moved)


def source_of_record(manifest: Manifest | PartsManifest, folder: Path, moved: Moved) -> Source:
    """As `source_from_record`, without looking for the files."""
    recorded = manifest.checkpoint
    path = _path_of_record(manifest, folder, moved)
    samples, then = moved.samples, manifest.feeds.samples
    if then is None:
        samples = None
    elif samples is None:
        samples = Path(then) if is_loader_spec(then) else folder / then
    return Source(
        checkpoint=path,
        model=recorded.factory,
        model_args=recorded.factory_args,
        strict=recorded.strict,
        allow_pickle=recorded.allow_pickle,
        method=recorded.method,
        drop_outputs=recorded.drop_outputs,
        weights_key=recorded.weights_key,
        include_preprocess=bool(recorded.preprocess),
        preprocess=recorded.preprocess,
        preprocess_input=recorded.preprocess_input,
        postprocess=recorded.postprocess,
        trust=moved.trust,
        recorded=recorded.digest,
        samples=samples,
        artifact=True,
    )


def _path_of_record(manifest: Manifest | PartsManifest, folder: Path, moved: Moved) -> Path:
    """The checkpoint's new place, the id of its commit on the hub, or its place."""
    recorded = manifest.checkpoint
    return moved.checkpoint or (Path(recorded.hub.id) if recorded.hub else folder / recorded.path)


def apply_recorded_judging(judging: Judging, manifest: Manifest | PartsManifest) -> Judging:
    """The number of feeds and the seed of the record, where none are asked for now."""
    return replace(
        judging,
        feeds=manifest.feeds.count if judging.feeds is None else judging.feeds,
        seed=manifest.feeds.seed if judging.seed is None else judging.seed,
    )


def check_same(now: Checkpoint, manifest: Manifest, source: Source) -> None:
    """Check that the checkpoint and the samples are the recorded ones, byte for byte.

    Raises:
        CheckpointError: one of them is not.
    """
    then = manifest.checkpoint.digest
    if now.digest != then:
        raise CheckpointError(
            f"{source.name} is not the recorded checkpoint: "
            f"sha256 {now.digest[:12]}… instead of {then[:12]}…",
            hint=Hint(
                "give the recorded one (validate: ",
                Option("checkpoint"),
                ", debug: --against), or export again",
            ),
            option="checkpoint",
            code=ErrorCode.FILE_CHANGED,
        )
    samples = manifest.feeds.samples_digest
    if source.samples is None or samples is None or is_loader_spec(str(source.samples)):
        return  # the output of a loader is checked when it is fed
    if not source.samples.exists() or digest_samples(source.samples) != samples:
        raise CheckpointError(
            f"the samples {source.samples} were removed or changed since the export",
            hint=Hint("give their location: ", Option("samples", "FILE")),
            option="samples",
            code=ErrorCode.FILE_CHANGED,
        )


def apply_exported_tolerances(judging: Judging, then: Tolerance | None) -> Judging:
    """The tolerances of the export, where none are asked for now and the record is trusted."""
    return replace(judging, recorded=then if judging.trusts_record else None)


TRUST_HINT = Hint("add ", Option("trust"), ", only if you trust its author")
_PROGRAMS = {TORCHSCRIPT: "a TorchScript program", PT2: "an exported program"}


def check_program_trust(path: Path, target: Target, *, trust: bool) -> None:
    """Check that a converted model may be opened.

    Raises:
        ConsentError: it is a program that is neither recorded in a manifest nor trusted.
    """
    if trust or not isinstance(target, Program):
        return
    if record_beside(path) is None and record_of_rejected(path) is None:
        raise _trust_error(path, target.PROGRAM)


def is_foreign_program(kind: str) -> bool:
    """Whether checkpoints of this kind are programs."""
    return kind in _PROGRAMS


def check_checkpoint_trust(checkpoint: Checkpoint, source: Source) -> None:
    """Check that a checkpoint may be opened.

    Raises:
        ConsentError: it is a program, neither recorded by this digest nor trusted.
    """
    check_kind_trust(checkpoint.kind, source, checkpoint.digest)


def check_kind_trust(kind: str, source: Source, digest: str = "") -> None:
    """As `check_checkpoint_trust`, also for a checkpoint without a digest yet.

    Raises:
        ConsentError: it is a program, neither recorded nor trusted.
    """
    if source.trust or kind not in _PROGRAMS or (digest and digest == source.recorded):
        return
    if record_beside(source.checkpoint) is None and record_of_rejected(source.checkpoint) is None:
        raise _trust_error(source.checkpoint, _PROGRAMS[kind])


def check_source(source: Source) -> None:
    """Check that the checkpoint of a source may be opened, without hashing it.

    Raises:
        UsageError: it does not exist, or needs a factory.
        ConsentError: it is a pickled module, or a program that is neither recorded nor trusted.
        CheckpointError: it is not a checkpoint, or corrupt.
    """
    kind, _ = check_openable(source.checkpoint, source.model, allow_pickle=source.allow_pickle)
    check_kind_trust(kind, source)


def _trust_error(path: Path, what: str) -> ConsentError:
    return ConsentError(
        f"{path} is {what}, and opening it runs code of its author",
        hint=TRUST_HINT,
        option="trust",
        code=ErrorCode.CONSENT_REQUIRED,
    )


@dataclass(frozen=True, kw_only=True)
class FinishRequest:
    """One run that executes the pending steps of an output folder.

    `moved` has the locations of checkpoint and samples. What is not given in `judging` is as
    recorded; `settings` of the target replace those of the preparation. `cache` is a folder of
    results for later runs; None disables it. `measuring` is what is measured on labelled data.
    `resume` has the results of earlier attempts.
    """

    out: Path
    moved: Moved = field(default_factory=Moved)
    judging: Judging = field(default_factory=Judging)
    settings: Mapping[str, str] = field(default_factory=dict)
    cache: Path | None = None
    measuring: Measuring | None = None
    resume: ResumeState = field(default_factory=ResumeState)


AnyRequest: TypeAlias = Order | FinishRequest
