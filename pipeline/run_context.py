"""The state of one run: what its steps share, and its manifest, new or continued."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .. import __version__
from ..core.contract import CalibrationFeeds, Converted
from ..core.domain import Domain
from ..core.errors import ErrorCode, UsageError
from ..core.events import Noted, Tell
from ..core.findings import Warned
from ..core.generation import TokenPlan
from ..core.manifest import Failure, Manifest, Pending
from ..core.model_meta import ModelMeta
from ..core.nested_values import is_loader_spec
from ..core.records import (
    REJECTED_FOLDER,
    Artifact,
    CalibrationRecord,
    Checkpoint,
    Coverage,
    FileRecord,
    is_as_recorded,
)
from ..core.verdict import Verdict
from ..validators.judge import ReferenceOutputs
from ..validators.model_identity import is_same_model
from .cache.dependencies import ReadTracker
from .cache.environment import describe_environment
from .eager_reference import EagerReference
from .hub_source import commit_id
from .labelled_accuracy import LabelledFeeds
from .manifest_file import read_manifest, without_artifacts
from .order import Order
from .output_folder import OutputFolder
from .plan import Step
from .quantization import CalibrationCache
from .run_progress import Progress
from .worst_feed import drop_worst_feeds


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """The output folder, progress and caches of a run.

    `tracker` records files that were read besides those of the order. `cache` stores results of
    quantizers.
    """

    folder: OutputFolder
    progress: Progress
    cache: CalibrationCache | None = None
    tracker: ReadTracker | None = None


@dataclass(frozen=True, kw_only=True)
class RunSamples:
    """The user's samples in a run.

    `calibration` holds the samples for quantizers. `held_out` holds eager's outputs on samples that
    no quantizer sees; INT8 is judged on them. `record` describes the calibration of this run, or of
    the parent if that is already quantized. `labelled` holds the labelled data with eager's
    outputs if accuracy is measured.
    """

    calibration: CalibrationFeeds | None = None
    record: CalibrationRecord | None = None
    held_out: tuple[ReferenceOutputs, ...] = ()
    labelled: LabelledFeeds | None = None


@dataclass(frozen=True, kw_only=True)
class RunMemory:
    """Results that steps of a run keep for later steps.

    `programs` holds captured programs by rewrites and capture. `narrowed` holds eager references
    within smaller domains, by the domain in `--input` syntax. `places` holds sizes at which every
    artifact is judged besides those of the feeds, by the purpose for which they were found. `held`
    lists sets of rewrites with which an artifact passed, latest first. `references` are files with
    eager's outputs for another host, by the domain of the feeds. `calibrations` holds what
    quantizers keep for later jobs, `quantizes` the steps of the run that quantize.
    """

    programs: dict[tuple[str, ...], dict[str, object]] = field(default_factory=dict)
    narrowed: dict[str, EagerReference] = field(default_factory=dict)
    places: dict[str, tuple[Mapping[str, int], ...]] = field(default_factory=dict)
    held: list[tuple[str, ...]] = field(default_factory=list)
    references: dict[str, FileRecord] = field(default_factory=dict)
    calibrations: dict[tuple[Hashable, ...], Any] = field(default_factory=dict)
    quantizes: list[Step] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """The state that every step of one run shares."""

    order: Order
    eager: EagerReference
    workspace: Workspace
    samples: RunSamples = field(default_factory=RunSamples)
    memory: RunMemory = field(default_factory=RunMemory)


@dataclass(frozen=True, kw_only=True)
class Parent:
    """The starting point of a step: the eager model (no path) or the file of another artifact.

    `frozen` lists the places where its capture froze tensor data; None if unknown. `traced` means
    that it comes from a trace whose frozen places are unknown. `capture` is the capture method of
    the artifact or of its ancestor; empty if unknown. `domain` is the artifact's own.
    """

    name: str
    digest: str
    path: Path | None = None
    frozen: tuple[str, ...] | None = ()
    traced: bool = False
    capture: str = ""
    domain: Domain | None = None


@dataclass(frozen=True, kw_only=True)
class Product:
    """The result of a conversion in its workplace."""

    workplace: Path
    converted: Converted
    files: tuple[FileRecord, ...]
    coverage: Coverage | None = None

    @property
    def path(self) -> Path:
        """The model file."""
        return self.workplace / self.files[0].name


@dataclass(frozen=True, kw_only=True)
class StepWork:
    """A step of a run and its parent.

    `on_built` receives the files of a conversion before they are loaded for the first time.
    """

    step: Step
    parent: Parent
    run: RunContext
    on_built: Callable[[Product], object] | None = None

    def within(self, eager: EagerReference) -> StepWork:
        """Return the same work with another eager reference."""
        return replace(self, run=replace(self.run, eager=eager))


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """The result of a step: an artifact with its verdict, a failure, or a pending step.

    `warned` holds warnings of frameworks about the user's source lines. `lasting` means that the
    same step would fail again.
    """

    artifact: Artifact | None = None
    verdict: Verdict | None = None
    failure: Failure | None = None
    pending: Pending | None = None
    warned: tuple[Warned, ...] = ()
    lasting: bool = False


def read_known_record(
    order: Order, folder: OutputFolder, checkpoint: Checkpoint
) -> Manifest | None:
    """Read the manifest that is in the folder, before the first slow step.

    Raises:
        UsageError: it belongs to another checkpoint and the order does not overwrite.
    """
    known = read_manifest(folder.path)
    folder.reads(input_files(order, checkpoint))
    folder.own(file.name for file in (known.files if known else ()))
    may = order.overwrite or order.discards or (known is not None and not _has_results(known))
    if known is None or may or _same_model(known.checkpoint, checkpoint):
        return known
    raise _occupancy_error(order, _describe_other_model(known.checkpoint, checkpoint))


def _occupancy_error(order: Order, difference: str) -> UsageError:
    return UsageError(
        f"{order.out} holds artifacts {difference}",
        hint="give another -o, or --overwrite to move them to replaced/",
        code=ErrorCode.FOLDER_OCCUPIED,
        option="overwrite",
    )


def _has_results(known: Manifest) -> bool:
    """Return whether the record has artifacts or pending steps that could be lost."""
    return bool(known.artifacts or known.pending)


def input_files(order: Order, checkpoint: Checkpoint) -> Iterator[Path]:
    """Yield the files that the order names: checkpoint, parent, samples."""
    root = Path(checkpoint.path)
    root = root if root.is_dir() else root.parent
    yield from (root / file.name for file in checkpoint.files)
    others = (order.parent, order.source.samples, order.judging.text)
    yield from (path for path in others if path is not None)


def _same_model(one: Checkpoint, other: Checkpoint) -> bool:
    return one.digest == other.digest and _checkpoint_options(one) == _checkpoint_options(other)


def _describe_other_model(known: Checkpoint, now: Checkpoint) -> str:
    """Describe the other checkpoint, or the options that differ if its files are the same."""
    if known.digest != now.digest:
        return f"of another checkpoint ({known.path})"
    pairs = zip(_checkpoint_options(known), _checkpoint_options(now), strict=True)
    then, today = zip(*((one, other) for one, other in pairs if one != other), strict=True)
    return f"of this checkpoint with {' and '.join(then)}, not {' and '.join(today)}"


def _checkpoint_options(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return the options that define the model: factory, arguments, weights, method, outputs."""
    arguments = sorted(checkpoint.factory_args.items())
    return (
        f"--model {checkpoint.factory}" if checkpoint.factory else "no --model",
        " ".join(f"--model-arg {key}={value}" for key, value in arguments) or "no --model-arg",
        f"--weights-key {checkpoint.weights_key}" if checkpoint.weights_key else "no --weights-key",
        f"--include-preprocess ({checkpoint.preprocess})"
        if checkpoint.preprocess
        else "no --include-preprocess",
        f"--postprocess {checkpoint.postprocess}" if checkpoint.postprocess else "no --postprocess",
        f"--method {checkpoint.method}" if checkpoint.method else "no --method",
        " ".join(f"--drop-output {name}" for name in sorted(checkpoint.drop_outputs))
        or "no --drop-output",
    )


def begin_record(
    order: Order, folder: OutputFolder, eager: EagerReference, known: Manifest | None, tell: Tell
) -> Manifest:
    """Create the manifest of the run and continue the known one, as `continue_manifest` does.

    Raises:
        UsageError: the folder has artifacts of another model and the order does not overwrite.
    """
    fresh = Manifest(
        modelc=__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        order=order.summary(),
        checkpoint=place_checkpoint(eager.checkpoint, folder),
        signature=eager.signature,
        feeds=replace(
            eager.feeds,
            samples=eager.feeds.samples and relative_to(eager.feeds.samples, folder),
            tokens=_place_text(eager.feeds.tokens, folder),
        ),
        environment=describe_environment(),
        fingerprint=eager.fingerprint,
        notes=eager.notes,
        meta=order.meta or ModelMeta(),
        pipeline=eager.pipeline if eager.has_source or known is None else known.pipeline,
    )
    return continue_manifest(order, folder, fresh, known, tell)


def place_checkpoint(checkpoint: Checkpoint, folder: OutputFolder) -> Checkpoint:
    """Return the checkpoint with its path relative to the folder, or its commit on the hub."""
    path = commit_id(checkpoint.hub) or relative_to(checkpoint.path, folder)
    return replace(checkpoint, path=path)


def _place_text(plan: TokenPlan | None, folder: OutputFolder) -> TokenPlan | None:
    """Return the plan with the path of the text relative to the folder."""
    if plan is None or not plan.source:
        return plan
    return replace(plan, source=relative_to(plan.source, folder))


def continue_manifest(
    order: Order, folder: OutputFolder, fresh: Manifest, known: Manifest | None, tell: Tell
) -> Manifest:
    """Copy results of the known manifest to the fresh one if model and inputs are the same.

    Otherwise the files of the known manifest are moved to `replaced/`; if the order discards them,
    those that match their record are removed instead, with an event.

    Raises:
        UsageError: model or inputs differ and the order does not overwrite.
    """
    if known is None:
        return fresh
    still = (one for one in known.replaced if is_as_recorded(folder.path / one.name, one))
    fresh = replace(fresh, replaced=tuple(still))
    if not _has_results(known):
        return fresh
    difference = _model_difference(known, fresh)
    if not difference:
        return replace(
            fresh,
            artifacts=known.artifacts,
            verdicts=known.verdicts,
            external=known.external,
            pending=known.pending,
            branches=known.branches,
            warned=known.warned,
            localisations=known.localisations,
        )
    if not order.discards and not order.overwrite:
        raise _occupancy_error(order, difference)
    own = [one for one in known.files if is_as_recorded(folder.path / one.name, one)]
    own = own if order.discards else []
    for file in own:
        folder.remove(file.name)
    aside = folder.set_aside(one for one in known.files if one not in own)
    fresh = replace(fresh, replaced=(*fresh.replaced, *aside))
    drop_worst_feeds(folder, *(artifact.name for artifact in known.artifacts))
    folder.commit(fresh)
    if own:
        names = ", ".join(artifact.name for artifact in known.artifacts)
        tell(Noted(text=f"removed {names} from {order.out}: artifacts {difference}", warning=True))
    if order.discards and aside:
        names = ", ".join(file.name for file in aside)
        tell(Noted(text=f"changed since they were recorded, so kept as {names}", warning=True))
    return fresh


def _model_difference(known: Manifest, now: Manifest) -> str:
    """Describe why the known artifacts belong to another model; empty if they do not."""
    if not _same_model(known.checkpoint, now.checkpoint):
        return _describe_other_model(known.checkpoint, now.checkpoint)
    if known.signature.inputs != now.signature.inputs:
        return f"with other inputs: {'  '.join(map(str, known.signature.inputs))}"
    if known.signature != now.signature:
        return f"with other outputs: {', '.join(known.signature.outputs)}"
    if known.fingerprint and not is_same_model(known.fingerprint, now.fingerprint):
        return "of other model code: its outputs on the same inputs differ"
    return ""


def record_result(manifest: Manifest, step: Step, made: StepResult) -> Manifest:
    """Return the manifest with the result of the step in place of its earlier result.

    An earlier artifact with this name stays, with its verdict, until one that passed replaces it. A
    pending step that failed stays pending, so that it is tried again.
    """
    passed = made.verdict is not None and made.verdict.passed
    warned = tuple(dict.fromkeys((*manifest.warned, *made.warned)))
    manifest = replace(manifest, warned=warned)
    manifest = without_artifacts(
        manifest, {f"{REJECTED_FOLDER}/{step.name}", *([step.name] if passed else [])}
    )
    ended = _find_ended_pending(step, made, manifest) if made.failure is None else ()
    pending = tuple(one for one in manifest.pending if one.step not in ended)
    manifest = replace(manifest, pending=pending)
    if made.pending is not None:
        return replace(manifest, pending=(*pending, made.pending))
    if made.failure is not None:
        return replace(manifest, failures=(*manifest.failures, made.failure))
    if made.artifact is None or made.verdict is None:
        raise RuntimeError(f"step {step.name} has no result")
    return replace(
        manifest,
        artifacts=(*manifest.artifacts, made.artifact),
        verdicts=(*manifest.verdicts, made.verdict),
    )


def _find_ended_pending(step: Step, made: StepResult, manifest: Manifest) -> tuple[str, ...]:
    """Return the pending steps to remove: this one, and those prepared from its older artifact."""
    if made.artifact is None or made.artifact.rejected:
        return (step.name,)
    now = made.artifact.digest
    theirs = (one for one in manifest.pending if one.made_from == step.name and one.parent != now)
    return (step.name, *(one.step for one in theirs))


def find_unreferenced_files(before: Manifest, now: Manifest) -> tuple[FileRecord, ...]:
    """Return the files that only the earlier manifest lists, as a `.data` of an older export."""
    kept = {file.name for file in now.files}
    return tuple(file for file in before.files if file.name not in kept)


def relative_to(path: str, folder: OutputFolder) -> str:
    """Return a path relative to the folder.

    Both are resolved first: `..` after a symbolic link leads elsewhere.
    """
    if is_loader_spec(path):
        return path
    return Path(os.path.relpath(Path(path).resolve(), folder.path.resolve())).as_posix()
