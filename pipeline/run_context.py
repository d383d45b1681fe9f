"""The state of one run: what its steps share, and its manifest from start or resumption on."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from .. import __version__
from ..core.contract import CalibrationFeeds
from ..core.domain import Domain
from ..core.errors import ErrorCode, UsageError
from ..core.events import Noted, Tell
from ..core.findings import Warned
from ..core.manifest import Failure, Manifest, Pending
from ..core.nested_values import is_loader_spec
from ..core.records import (
    REJECTED_FOLDER,
    Artifact,
    CalibrationRecord,
    Checkpoint,
    FileRecord,
    is_as_recorded,
)
from ..core.verdict import Verdict
from ..validators.judge import ReferenceOutputs
from ..validators.model_identity import is_same_model
from .cache.dependencies import (
    ReadTracker,
)
from .cache.environment import describe_environment
from .eager_reference import EagerReference
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
    """Where a run works, and where it reports.

    `tracker` knows what was read beside the order, `cache` keeps quantizers' results.
    """

    folder: OutputFolder
    progress: Progress
    cache: CalibrationCache | None = None
    tracker: ReadTracker | None = None


@dataclass(frozen=True, kw_only=True)
class RunSamples:
    """The user's samples in a run.

    `calibration` are those for quantizers, `held_out` eager on those that no quantizer sees: INT8
    is judged on them. `record` is of the calibration of this run, or of the parent's where that is
    quantized. `labelled` is the labelled data with eager's answers, where accuracy is measured.
    """

    calibration: CalibrationFeeds | None = None
    record: CalibrationRecord | None = None
    held_out: tuple[ReferenceOutputs, ...] = ()
    labelled: LabelledFeeds | None = None


@dataclass(frozen=True, kw_only=True)
class RunMemory:
    """What steps of a run keep for later ones.

    `programs` are the captured programs, by the rewrites of the model and the capture. `narrowed`
    are the eager sides within smaller domains, by these as `--input` reads them. `places` are sizes
    that every artifact is judged at beside the feeds', by what they were found for. `held` are sets
    of rewrites with which an artifact passed, the latest first.
    """

    programs: dict[tuple[str, ...], dict[str, object]] = field(default_factory=dict)
    narrowed: dict[str, EagerReference] = field(default_factory=dict)
    places: dict[str, tuple[Mapping[str, int], ...]] = field(default_factory=dict)
    held: list[tuple[str, ...]] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """What every step of one run shares: the order, the eager side, and where it works."""

    order: Order
    eager: EagerReference
    workspace: Workspace
    samples: RunSamples = field(default_factory=RunSamples)
    memory: RunMemory = field(default_factory=RunMemory)


@dataclass(frozen=True, kw_only=True)
class Parent:
    """What a step starts from: the eager model (no path) or another artifact's file.

    `frozen` are the places where its capture froze tensor data, None where nobody knows; `traced`
    says that it was a trace all the same, which may have frozen any. `capture` is how it, or what
    it was made from, was taken from eager; empty where nobody knows. `domain` is its own.
    """

    name: str
    digest: str
    path: Path | None = None
    frozen: tuple[str, ...] | None = ()
    traced: bool = False
    capture: str = ""
    domain: Domain | None = None


@dataclass(frozen=True, kw_only=True)
class StepWork:
    """A step of a run, and what it starts from."""

    step: Step
    parent: Parent
    run: RunContext

    def within(self, eager: EagerReference) -> StepWork:
        """Return the same work with another eager side."""
        return replace(self, run=replace(self.run, eager=eager))


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """The end of a step: an artifact with its verdict, a failure, or a step left pending.

    `warned` is what frameworks said of the user's lines meanwhile. `lasting` says of a failure that
    the same step would end so again.
    """

    artifact: Artifact | None = None
    verdict: Verdict | None = None
    failure: Failure | None = None
    pending: Pending | None = None
    warned: tuple[Warned, ...] = ()
    lasting: bool = False


_OTHER_FOLDER_HINT = "give another -o, or --overwrite to move them to replaced/"


def read_known_record(
    order: Order, folder: OutputFolder, checkpoint: Checkpoint
) -> Manifest | None:
    """The manifest already in the folder; asked before the first slow step.

    Raises:
        UsageError: it is another checkpoint's record and the order does not overwrite.
    """
    known = read_manifest(folder.path)
    folder.reads(input_files(order, checkpoint))
    folder.own(file.name for file in (known.files if known else ()))
    may = order.overwrite or order.discards or (known is not None and not _has_results(known))
    if known is None or may or _same_model(known.checkpoint, checkpoint):
        return known
    raise UsageError(
        f"{order.out} holds artifacts {_describe_other_model(known.checkpoint, checkpoint)}",
        hint=_OTHER_FOLDER_HINT,
        code=ErrorCode.FOLDER_OCCUPIED,
        option="overwrite",
    )


def _has_results(known: Manifest) -> bool:
    """Whether there is something to lose; a run that made nothing leaves its record alone."""
    return bool(known.artifacts or known.pending)


def input_files(order: Order, checkpoint: Checkpoint) -> Iterator[Path]:
    """The files that the order names: checkpoint, parent, samples."""
    root = Path(checkpoint.path)
    root = root if root.is_dir() else root.parent
    yield from (root / file.name for file in checkpoint.files)
    yield from (path for path in (order.parent, order.source.samples) if path is not None)


def _same_model(one: Checkpoint, other: Checkpoint) -> bool:
    return one.digest == other.digest and _checkpoint_options(one) == _checkpoint_options(other)


def _describe_other_model(known: Checkpoint, now: Checkpoint) -> str:
    """`of another checkpoint (FILE)`; of the same files what they were made with, and are now."""
    if known.digest != now.digest:
        return f"of another checkpoint ({known.path})"
    pairs = zip(_checkpoint_options(known), _checkpoint_options(now), strict=True)
    then, today = zip(*((one, other) for one, other in pairs if one != other), strict=True)
    return f"of this checkpoint made with {' '.join(then)}; this run has {' '.join(today)}"


def _checkpoint_options(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Factory, its arguments, the set of weights, the method and dropped outputs, as options."""
    said = sorted(checkpoint.factory_args.items())
    return (
        f"--model {checkpoint.factory}" if checkpoint.factory else "no --model",
        " ".join(f"--model-arg {key}={value}" for key, value in said) or "no --model-arg",
        f"--weights-key {checkpoint.weights_key}" if checkpoint.weights_key else "no --weights-key",
        f"--method {checkpoint.method}" if checkpoint.method else "no --method",
        " ".join(f"--drop-output {name}" for name in sorted(checkpoint.drop_outputs))
        or "no --drop-output",
    )


def begin_record(
    order: Order, folder: OutputFolder, eager: EagerReference, known: Manifest | None, tell: Tell
) -> Manifest:
    """The manifest to go on with, as `continued` has it.

    Raises:
        UsageError: what is there is of other inputs and the order does not overwrite.
    """
    fresh = Manifest(
        modelc=__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        order=order.summary(),
        checkpoint=replace(eager.checkpoint, path=relative_to(eager.checkpoint.path, folder)),
        signature=eager.signature,
        feeds=replace(
            eager.feeds,
            samples=eager.feeds.samples and relative_to(eager.feeds.samples, folder),
        ),
        environment=describe_environment(),
        fingerprint=eager.fingerprint,
        notes=eager.notes,
    )
    return continue_manifest(order, folder, fresh, known, tell)


def continue_manifest(
    order: Order, folder: OutputFolder, fresh: Manifest, known: Manifest | None, tell: Tell
) -> Manifest:
    """A fresh record with what is there already, where that is of the same model and inputs.

    What the order discards is told; a file that is not as its record says is nobody's to discard,
    and goes to `replaced/`.

    Raises:
        UsageError: it is of other inputs and the order does not overwrite.
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
            pending=known.pending,
            branches=known.branches,
            warned=known.warned,
            localisations=known.localisations,
        )
    if not order.discards and not order.overwrite:
        raise UsageError(
            f"{order.out} holds artifacts {difference}",
            hint=_OTHER_FOLDER_HINT,
            code=ErrorCode.FOLDER_OCCUPIED,
            option="overwrite",
        )
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
        tell(Noted(text=f"removed {names} from {order.out}: {difference}", warning=True))
    if order.discards and aside:
        names = ", ".join(file.name for file in aside)
        tell(Noted(text=f"moved aside, as not what was recorded: {names}", warning=True))
    return fresh


def _model_difference(known: Manifest, now: Manifest) -> str:
    """Why the record's artifacts are not of today's model; empty when they are."""
    if not _same_model(known.checkpoint, now.checkpoint):
        return _describe_other_model(known.checkpoint, now.checkpoint)
    if known.signature.inputs != now.signature.inputs:
        return f"with other inputs: {'  '.join(map(str, known.signature.inputs))}"
    if known.signature != now.signature:
        return f"with other outputs: {', '.join(known.signature.outputs)}"
    if known.fingerprint and not is_same_model(known.fingerprint, now.fingerprint):
        return "of other model code: the same weights and inputs give other outputs now"
    return ""


def record_result(manifest: Manifest, step: Step, made: StepResult) -> Manifest:
    """The manifest with what the step gave in place of what it gave before.

    An earlier artifact of that name stays, with its verdict, until a proven one replaces it; and
    what was pending stays so where it failed, to be tried again.
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
        raise RuntimeError(f"step {step.name} ended with nothing")
    return replace(
        manifest,
        artifacts=(*manifest.artifacts, made.artifact),
        verdicts=(*manifest.verdicts, made.verdict),
    )


def _find_ended_pending(step: Step, made: StepResult, manifest: Manifest) -> tuple[str, ...]:
    """Pending steps that this one ends: itself, and those prepared with what it made anew."""
    if made.artifact is None or made.artifact.rejected:
        return (step.name,)
    now = made.artifact.digest
    theirs = (one for one in manifest.pending if one.made_from == step.name and one.parent != now)
    return (step.name, *(one.step for one in theirs))


def find_unreferenced_files(before: Manifest, now: Manifest) -> tuple[FileRecord, ...]:
    """Files of the record before that are none of the record now: a `.data` of an older export."""
    kept = {file.name for file in now.files}
    return tuple(file for file in before.files if file.name not in kept)


def relative_to(path: str, folder: OutputFolder) -> str:
    """A path as the folder's manifest says it.

    Both ends are resolved: `..` after a symbolic link leads elsewhere.
    """
    if is_loader_spec(path):
        return path
    return Path(os.path.relpath(Path(path).resolve(), folder.path.resolve())).as_posix()
