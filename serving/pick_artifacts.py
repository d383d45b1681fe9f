"""Pick the artifacts of an output folder that go into a repository."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeAlias

from .. import __version__
from ..calibration.labels import read_classes
from ..converters.registry import is_stage, target_named
from ..core.contract import Array
from ..core.errors import ErrorCode, Hint, Option, UsageError
from ..core.manifest import Manifest
from ..core.nested_values import is_loader_spec
from ..core.records import Artifact, sha256_of
from ..core.signature import Signature
from ..core.untrusted_files import read_npz
from ..core.verdict import Verdict
from ..pipeline.hub_source import find_recorded_checkpoint
from ..pipeline.manifest_file import MANIFEST_FILE
from ..pipeline.parts.parts_file import part_folder, read_parts
from ..pipeline.provenance.artifact_checks import describe_change
from ..pipeline.recorded_run import load_manifest
from ..validators.feeds import OPT, FeedDrawer, NamedFeed
from .describe_models import DescribeRequest
from .repository_records import (
    ModelInterface,
    OmittedArtifact,
    PackedVersion,
    ServedModel,
    ServedTensor,
    VerdictSummary,
)
from .version_folders import describe_name_fault

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
Decline: TypeAlias = Callable[[Artifact, Signature], tuple[str, str]]
_LEFT_OUT_ROLES = ("debug", "samples", "references")  # of files that no runtime opens


@dataclass(frozen=True, kw_only=True)
class ModelFolder:
    """An output folder, the name that clients use for its model, and its checkpoint if moved.

    `group` is the name of the models that run together with it. Of parts, `together` are the
    digests of the artifacts that passed end to end, by name.
    """

    name: str
    folder: Path
    checkpoint: Path | None = None
    group: str = ""
    together: Mapping[str, str] | None = field(default=None, hash=False)


def list_part_folders(folder: Path, name: str) -> Iterator[ModelFolder]:
    """Yield the folders of the parts of a model of that name.

    Raises:
        UsageError: `parts.json` cannot be read, or the folder of a part is a link.
    """
    whole = read_parts(folder)
    passed = {one.artifact for one in whole.verdicts if one.passed}
    for part in whole.parts:
        together = {one: digest for one, digest in part.artifacts.items() if one in passed}
        yield ModelFolder(
            name=f"{name}-{part.name}",
            folder=part_folder(folder, part.name),
            group=name,
            together=together,
        )


@dataclass(frozen=True, kw_only=True)
class ArtifactChoice:
    """Which artifacts to pack: `only` are patterns of names; `allow` names some without a pass."""

    only: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PickedArtifact:
    """An artifact to pack, with the manifest that records it."""

    source: ModelFolder
    manifest: Manifest
    artifact: Artifact
    allowed: bool

    @property
    def signature(self) -> Signature:
        """The inputs of the verdict's domain, and the outputs."""
        return self.manifest.signature_of(self.artifact)

    @property
    def request(self) -> DescribeRequest:
        """What to look at, to learn its interface."""
        return DescribeRequest(
            path=self.source.folder / self.artifact.files[0].name,
            target=self.artifact.target,
            precision=self.artifact.precision,
            signature=self.signature,
        )


@dataclass(frozen=True, kw_only=True)
class PickedArtifacts:
    """The artifacts to pack, and the others with the reason."""

    picked: tuple[PickedArtifact, ...]
    left_out: tuple[OmittedArtifact, ...]


def pick_artifacts(
    source: ModelFolder, choice: ArtifactChoice, targets: Sequence[str], decline: Decline
) -> PickedArtifacts:
    """Pick the artifacts of a folder that passed, or are allowed, and that the server can load.

    Args:
        source: the output folder with its name.
        choice: what the user chose.
        targets: the targets that the kind of repository serves.
        decline: why it cannot serve an artifact of these, and what to do.

    Raises:
        UsageError: there is no manifest, or a file was changed.
    """
    manifest = load_manifest(source.folder)
    picked: list[PickedArtifact] = []
    left_out: list[OmittedArtifact] = []
    # of those that are left out, the ones that another export would change come first
    for artifact in sorted(manifest.artifacts, key=lambda one: one.target not in targets):
        if choice.only and not any(_matches(artifact, one) for one in choice.only):
            continue
        allowed = artifact.name in choice.allow or artifact.step in choice.allow
        verdict = manifest.verdict_of(artifact.name)
        passed = verdict is not None and verdict.passed and not artifact.rejected
        why = _describe_left_out(artifact, choice, targets, passed=passed or allowed)
        if why is not None and artifact.target not in targets and picked:
            why = replace(why, hint="")  # what the kind takes is there
        if why is None and not allowed:
            why = _describe_apart(artifact, source)
        if why is None and (reason := decline(artifact, manifest.signature_of(artifact)))[0]:
            why = OmittedArtifact(
                model="", artifact=artifact.name, reason=reason[0], hint=reason[1]
            )
        if why is not None:
            left_out.append(replace(why, model=source.name))
        else:
            _check_unchanged(source, artifact)
            picked.append(
                PickedArtifact(
                    source=source, manifest=manifest, artifact=artifact, allowed=not passed
                )
            )
    for step in manifest.steps_pending:
        hint = f"finish it: {step.command} {source.folder}"
        left_out.append(
            OmittedArtifact(
                model=source.name, artifact=step.step, reason="it is pending", hint=hint
            )
        )
    return PickedArtifacts(picked=tuple(picked), left_out=tuple(left_out))


def _describe_left_out(
    artifact: Artifact, choice: ArtifactChoice, targets: Sequence[str], *, passed: bool
) -> OmittedArtifact | None:
    """Return why an artifact is not packed; None if it is."""
    if not passed:
        reason, hint = "it has not passed", f"pack it nevertheless: --allow {artifact.step}"
    elif not choice.only and is_stage(target_named(artifact.target)):
        reason = "it is a step towards an engine"
        hint = f"pack it nevertheless: --artifact {artifact.step}"
    elif artifact.target not in targets:
        reason = f"the repository takes {' and '.join(targets)}, not {artifact.target}"
        hint = f"export another format: --to {targets[0]}"
    else:
        return None
    return OmittedArtifact(model="", artifact=artifact.name, reason=reason, hint=hint)


def _describe_apart(artifact: Artifact, source: ModelFolder) -> OmittedArtifact | None:
    """Return why an artifact of a part is not the one that passed end to end; None if it is."""
    if source.together is None or source.together.get(artifact.name) == artifact.joint_digest:
        return None
    reason = "it is not the one that was judged end to end"
    if artifact.name not in source.together:
        reason = "the parts together have not passed"
    hint = f"judge them: modelc validate {source.folder.parent}"
    return OmittedArtifact(model="", artifact=artifact.name, reason=reason, hint=hint)


def _matches(artifact: Artifact, pattern: str) -> bool:
    return any(fnmatchcase(name, pattern) for name in (artifact.name, artifact.step))


def _check_unchanged(source: ModelFolder, artifact: Artifact) -> None:
    """Check that the files are those that were judged.

    Raises:
        UsageError: one is missing, changed, or behind a link.
    """
    for file in artifact.files:
        wrong = describe_change(file, source.folder)
        if wrong:
            raise UsageError(
                f"{source.folder}: {artifact.name}: {wrong}",
                hint=Hint("restore it or export again, or leave it out with ", Option("artifact")),
                code=ErrorCode.FILE_CHANGED,
            )


def check_served_name(name: str) -> str:
    """Return a name that may be a folder and a part of a URL.

    Raises:
        UsageError: it is another.
    """
    fault = describe_name_fault(name)
    if fault or not _NAME.fullmatch(name):
        raise UsageError(
            f"{name[:80]!r} cannot be the name of a served model{f': it {fault}' if fault else ''}",
            hint=Hint("use letters, digits, '-', '_' and '.': ", Option("name", "digits")),
            option="name",
            code=ErrorCode.INVALID_VALUE,
        )
    return name


def name_models(picked: Sequence[PickedArtifact]) -> tuple[str, ...]:
    """Return the served name of each artifact: that of its folder, with the artifact's if several.

    Artifacts of one folder are distinguished by `-ARTIFACT`: `digits-onnx-fp16`.

    Raises:
        UsageError: an artifact has a name that no folder may have.
    """
    counts = [sum(1 for other in picked if other.source == one.source) for one in picked]
    return tuple(
        check_served_name(
            one.source.name if count == 1 else f"{one.source.name}-{one.artifact.step}"
        )
        for one, count in zip(picked, counts, strict=True)
    )


def make_served_model(picked: PickedArtifact, name: str, interface: ModelInterface) -> ServedModel:
    """Make the model that a repository is given."""
    artifact, manifest, folder = picked.artifact, picked.manifest, picked.source.folder
    verdict = manifest.verdict_of(artifact.name)
    files = tuple(one for one in artifact.files if one.role not in _LEFT_OUT_ROLES)
    classes = find_class_names(folder, manifest, artifact)
    stated = [one.name for one in interface.outputs if one.source == manifest.meta.classes_output]
    output = stated[0] if stated else find_class_output(interface.outputs, classes)
    record = PackedVersion(
        modelc=__version__,
        artifact=artifact.name,
        target=artifact.target,
        precision=str(artifact.precision),
        files=(),
        checkpoint=manifest.checkpoint.digest,
        manifest=sha256_of(folder / MANIFEST_FILE),
        domain=" ".join(map(str, picked.signature.inputs)),
        interface=interface,
        verdict=None if verdict is None else _summarize(verdict),
        allowed=picked.allowed,
        settings={} if artifact.domain is None else artifact.domain.settings,
        versions=artifact.versions,
        notes=tuple(_notes(picked, interface)),
        classes=classes if output else (),
        classes_of=output,
    )
    return ServedModel(
        name=name,
        folder=folder,
        files=files,
        record=record,
        group=picked.source.group,
        feed=_typical_feed(picked),
        signature=picked.signature,
        checkpoint=picked.source.checkpoint
        or find_recorded_checkpoint(manifest.checkpoint, folder),
        config_digest=next(
            (one.sha256 for one in manifest.checkpoint.files if one.name == "config.json"), ""
        ),
    )


def _summarize(verdict: Verdict) -> VerdictSummary:
    margins = [one.headroom for one in verdict.outputs if one.headroom is not None]
    return VerdictSummary(
        state=str(verdict.state),
        device=verdict.device,
        feeds=len(verdict.feeds),
        margin=min(margins, default=None),
        reasons=tuple(one.text for one in verdict.reasons),
    )


def _notes(picked: PickedArtifact, interface: ModelInterface) -> Iterator[str]:
    """Yield what an operator has to know of this model."""
    if picked.allowed:
        yield "it has not passed: --allow named it"
    if interface.batch and interface.rows_apart is False:
        yield "a row's result depends on the other rows: the server must not join requests"
    if interface.batch and interface.rows_apart is None and interface.batch > 1:
        yield "it was not measured whether rows depend on each other: requests are not joined"
    if picked.artifact.domain is None or not interface.has_run:
        yield "it did not run here: dims are those that the file declares"
    verdict = picked.manifest.verdict_of(picked.artifact.name)
    if verdict is not None and verdict.by_default is not None:
        compute = verdict.by_default.compute
        yield f"the verdict is of float32; with default settings, CPUs may compute in {compute}"


def _typical_feed(picked: PickedArtifact) -> dict[str, Array]:
    """Return the recorded feed `opt`, drawn again from its seed and the samples if they are here.

    Samples that only code can load are not loaded: the values are then drawn from the signature.
    """
    plan = picked.manifest.feeds
    samples: Mapping[str, Array] | None = None
    if plan.samples is not None and not is_loader_spec(plan.samples):
        path = picked.source.folder / plan.samples
        if path.suffix == ".npz" and path.is_file() and sha256_of(path) == plan.samples_digest:
            samples = read_npz(path)
    signature = picked.signature
    try:
        drawer = FeedDrawer.of(signature, plan.seed, samples)
    except UsageError:  # the samples have other names, as those of a nested argument
        drawer = FeedDrawer.of(signature, plan.seed, None)
    feed: NamedFeed = drawer.feed(OPT, dict(signature.opt_sizes))
    return dict(feed.arrays)


def share_row_evidence(
    picked: Sequence[PickedArtifact], found: Sequence[ModelInterface]
) -> tuple[ModelInterface, ...]:
    """Give interfaces that did not run the row evidence of another artifact of their model.

    Whether rows depend on each other is a property of the model, not of its format.
    """
    known: dict[str, bool] = {}
    for one, interface in zip(picked, found, strict=True):
        if interface.rows_apart is not None:
            digest = one.manifest.checkpoint.digest
            known[digest] = known.get(digest, True) and interface.rows_apart
    return tuple(
        replace(interface, rows_apart=known.get(one.manifest.checkpoint.digest))
        for one, interface in zip(picked, found, strict=True)
    )


def find_class_names(folder: Path, manifest: Manifest, artifact: Artifact) -> tuple[str, ...]:
    """Return the names of the classes, in the order of the outputs; empty if they are unknown.

    They are those of the metadata, else those of `classes.txt` in the folder of labelled or
    calibration samples.

    Args:
        folder: the output folder.
        manifest: its manifest.
        artifact: the artifact to serve.
    """
    if manifest.meta.classes:
        return manifest.meta.classes
    sources = [
        "" if artifact.accuracy is None else artifact.accuracy.data,
        "" if artifact.calibration is None else artifact.calibration.source,
        *(one.calibration.source for one in manifest.artifacts if one.calibration is not None),
    ]
    for source in filter(None, sources):
        place = folder / source
        if is_loader_spec(source) or not place.is_dir():
            continue
        try:
            names = read_classes(place)
        except UsageError:  # the file was changed since; nothing depends on it
            continue
        if names:
            return names
    return ()


def find_class_output(outputs: Sequence[ServedTensor], classes: Sequence[str]) -> str:
    """Return the only output with one value per class; empty if there is none or several."""
    found = [one.name for one in outputs if one.dims and one.dims[-1] == len(classes)]
    return found[0] if len(found) == 1 else ""
