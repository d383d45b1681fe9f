"""Locate the guilty layer of a model file: open eager, run the search, record the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...converters.registry import TARGETS, target_for, target_named
from ...core.contract import EAGER, Target
from ...core.errors import ErrorCode, Hint, Option, UsageError, unknown_name_error
from ...core.events import Tell, ignore_events
from ...core.findings import Localisation, WorstFeed
from ...core.kinds import Precision
from ...core.manifest import Manifest
from ...core.records import REJECTED_FOLDER, Artifact, Checkpoint
from ...core.target_extensions import Probed
from ...validators.feeds import NamedFeed
from ...validators.judge import ReferenceOutputs
from ...validators.tolerance import tolerance_for
from ..eager_reference import EagerReference, open_reference, read_checkpoint
from ..held_out import loose_feeds
from ..manifest_file import read_manifest, write_manifest
from ..order import Judging, Source
from ..output_folder import open_folder
from ..recorded_run import Moved, check_program_trust, describe_changed_file
from ..reopen import RecordedRun, find_recorded_run
from ..reply_evidence import beyond_feeds
from ..run_progress import Progress, temporary_logs
from ..worst_feed import add_feed, get_worst_feed, read_feed
from .layer_comparer import PRECISION_SCALES
from .locate_layer import DEFAULT_MEMORY, SuspectArtifact, locate_layer, worst_reference


@dataclass(frozen=True, kw_only=True)
class DebugOptions:
    """Options of the search: the name of a feed (None: the artifact's worst), memory in bytes.

    `out` is the folder of the reproducer; None uses the folder of the manifest, and without a
    manifest writes no reproducer.
    """

    feed: str | None = None
    memory: int = DEFAULT_MEMORY
    out: Path | None = None


def localise_file(  # noqa: PLR0913 - the options of `modelc debug`, all but one optional
    path: Path,
    source: Source | None = None,
    tell: Tell = ignore_events,
    *,
    looking: DebugOptions | None = None,
    judging: Judging | None = None,
    precision: Precision | None = None,
    moved: Moved | None = None,
) -> Localisation:
    """Name the first layer of a model file that differs from eager.

    If a manifest records the file, even as rejected, the result is written there, unless another
    eager side or precision than the recorded one is given.

    Args:
        path: the model file.
        source: the eager side; None uses the one that the manifest records.
        tell: the listener for progress events.
        looking: the feed, memory and folder of the reproducer.
        judging: the number of feeds, the seed and the device for the search of the worst feed.
        precision: the precision of the file; None uses the recorded one, else infers it.
        moved: the new paths of a recorded checkpoint and samples.

    Raises:
        ModelcError: the file or the checkpoint cannot be used.
    """
    looking, judging = looking or DebugOptions(), judging or Judging()
    target = _probe_target(path)
    trusted = (moved is not None and moved.trust) or (source is not None and source.trust)
    check_program_trust(path, target, trust=trusted)
    record = _find_record(path)
    other = source is not None or precision is not None  # the recorded verdict does not apply
    out = looking.out or (None if record is None else record.folder)
    with temporary_logs() as logs:
        progress = Progress(tell=tell, logs=logs)
        suspect = SuspectArtifact(
            name=path.name if record is None else record.artifact.name,
            path=path,
            target=target,
            precision=precision or _guess_precision(path, target, record),
            device=judging.device or "cpu",
            passed=None if other else _read_recorded_verdict(record),
        )
        moved = moved or Moved()
        if source is not None and record is not None and not (source.inputs or source.samples):
            moved = replace(
                moved, checkpoint=source.checkpoint, allow_pickle=source.allow_pickle,
                trust=source.trust,
            )  # fmt: skip
            source = None
        if source is None:
            side = _find_recorded_eager(path, record, judging, moved, progress)
        else:
            checkpoint = read_checkpoint(source, progress)
            side = EagerSide(
                source=source, checkpoint=checkpoint, judging=judging, progress=progress
            )
        eager, feed = open_for_localising(suspect, side, looking.feed)
        written = {} if record is None else _read_custom_ops(record.manifest)
        result = locate_layer(
            suspect, eager, progress, feed=feed, memory=looking.memory, out=out, written=written
        )
    if record is not None:
        result = _note_frozen_branches(result, record.artifact)
        result = result if other else _record_localisation(result, record, path, out)
    return result


def _read_recorded_verdict(record: RecordedArtifact | None) -> bool | None:
    """Return whether the file passed; None without a verdict or if the file has changed since."""
    if record is None or describe_changed_file(record.artifact, record.folder):
        return None
    verdict = record.manifest.verdict_of(record.artifact.name)
    return None if verdict is None else verdict.passed


def _note_frozen_branches(found: Localisation, artifact: Artifact) -> Localisation:
    """Add a note about branches that the capture froze: they are not a layer's fault."""
    if not artifact.frozen:
        return found
    note = (
        f"its capture froze the branch at {', '.join(artifact.frozen)}: on a feed that takes "
        "another branch, this is the fault, not a layer"
    )
    return replace(found, notes=(note, *found.notes))


def _read_custom_ops(manifest: Manifest) -> dict[str, str]:
    """Return the function of each custom operator, from `NS::OP=PKG.MOD:FN ...` in the request."""
    given = manifest.order.get("custom_op", "").split()
    return {one.partition("=")[0]: one.partition("=")[2] for one in given}


def _probe_target(path: Path) -> Probed:
    """Return the format of the file if its artifacts can be probed.

    Raises:
        UsageError: they cannot.
    """
    target: Target = target_for(path)
    if isinstance(target, Probed):
        return target
    origin = next(iter(target.MADE_FROM.values()))
    if origin != EAGER:
        parent = path.name.removesuffix(target.SUFFIX) + target_named(origin).SUFFIX
        beside = [folder / parent for folder in (path.parent, path.parent.parent)]
        made = next((one for one in beside if one.is_file()), None)
        hint = f"modelc debug {made or f'the {parent} that it was made from'}"
    else:
        able = [one.NAME for one in TARGETS if isinstance(one, Probed)]
        hint = f"debug the same model in another format: modelc export --to {' or '.join(able)}"
    raise UsageError(
        f"debug cannot read the layers of {path.name}: {target.NAME} does not store their names",
        hint=hint,
        code=ErrorCode.UNSUPPORTED,
    )


def _find_record(path: Path) -> RecordedArtifact | None:
    """Find the file in the manifest beside it, or beside its `rejected/` folder."""
    for folder in (path.parent, path.parent.parent):
        if folder != path.parent and path.parent.name != REJECTED_FOLDER:
            continue
        manifest = read_manifest(folder)
        if manifest is None:
            continue
        for artifact in manifest.artifacts:
            if (folder / artifact.files[0].name).resolve() == path.resolve():
                return RecordedArtifact(folder=folder, manifest=manifest, artifact=artifact)
    return None


def _guess_precision(path: Path, target: Probed, record: RecordedArtifact | None) -> Precision:
    """Return the recorded precision; else that of quantized layers or of half weights."""
    if record is not None:
        return record.artifact.precision
    inspection = target.inspect(path)
    if inspection.quantized is not None:
        return inspection.quantized
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
    """Write the result to the manifest, in place of the artifact's previous one.

    Do not write it if the file has changed since it was recorded: it is another artifact.
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


_TENFOLD_DB = 20.0


@dataclass(frozen=True, kw_only=True)
class RecordedArtifact:
    """The record of a file in the manifest of `folder`."""

    folder: Path
    manifest: Manifest
    artifact: Artifact

    @property
    def worst(self) -> WorstFeed | None:
        """The worst feed, if its file exists and the artifact has not changed."""
        worst = get_worst_feed(self.manifest, self.artifact)
        if worst is None or not (self.folder / worst.file).is_file():
            return None
        return None if describe_changed_file(self.artifact, self.folder) else worst


@dataclass(frozen=True, kw_only=True)
class EagerSide:
    """The eager model before it is opened; `record` and `run` are set if it is the recorded one."""

    source: Source
    checkpoint: Checkpoint
    judging: Judging
    progress: Progress
    record: RecordedArtifact | None = None
    run: RecordedRun | None = None

    def open(self, wanted: Callable[[NamedFeed], bool] | None) -> EagerReference:
        """Load the model and run it on the feeds that are wanted; None means all."""
        if self.run is not None:
            return self.run.open_eager(self.checkpoint, self.progress, wanted)
        return open_reference(
            self.source, self.checkpoint, self.judging, self.progress, wanted=wanted
        )

    def refer_samples(self, eager: EagerReference) -> tuple[ReferenceOutputs, ...]:
        """Run eager on the held-out samples that the recorded artifact was judged on."""
        if self.record is None or self.run is None:
            return ()
        return self.run.refer_samples(self.record.artifact, eager, self.progress)


def open_for_localising(
    suspect: SuspectArtifact, side: EagerSide, wanted: str | None
) -> tuple[EagerReference, str]:
    """Open eager with the feed to search as a reference, and return that feed's name.

    `wanted` is the name of a feed, None for the artifact's worst.

    A worst feed that the manifest keeps is used as it is, even if a search found it. Otherwise
    the worst is chosen among the basic feeds and held-out samples or, if the artifact is correct
    on those, among all feeds.

    Raises:
        UsageError: no feed has the name.
        ModelcError: eager or the artifact cannot be opened or run.
    """
    worst = None if side.record is None else side.record.worst
    if worst is not None and side.record is not None and wanted in (None, worst.feed):
        feed = read_feed(side.record.folder / worst.file)
        return add_feed(side.open(lambda _: False), (), feed, name=worst.feed)
    if wanted is not None:
        return _open_named_feed(wanted, side), wanted
    eager, name, ratio = _open_worst_feed(suspect, side, lambda feed: feed.basic)
    if ratio < _clearly_wrong_db(suspect.precision):
        return eager, name
    del eager  # avoid two copies of a large model in memory
    eager, name, _ = _open_worst_feed(suspect, side, None)
    return eager, name


def _clearly_wrong_db(precision: Precision) -> float:
    """Return the SQNR in dB below which the artifact is wrong on a feed, which ends the search.

    This is the precision's limit, or ten times the allowed error of a single layer, whichever is
    higher.
    """
    return max(tolerance_for(precision).min_sqnr, PRECISION_SCALES[precision].plain - _TENFOLD_DB)


def _find_recorded_eager(
    path: Path,
    record: RecordedArtifact | None,
    judging: Judging,
    moved: Moved,
    progress: Progress,
) -> EagerSide:
    """Find the eager side that the manifest records.

    Raises:
        UsageError: no manifest records the file.
        CheckpointError: the checkpoint is not where it was.
    """
    if record is None:
        raise UsageError(
            f"no manifest beside {path} records it, so its eager model is unknown",
            hint=Hint(
                "name the eager reference: --against CHECKPOINT ",
                Option("model", "PKG.MOD:FACTORY"),
                " ",
                Option("input", "…"),
            ),
            option="model",
            code=ErrorCode.NO_MANIFEST,
        )
    run = find_recorded_run(record.manifest, record.folder, moved, judging)
    checkpoint = run.read_checkpoint(progress)
    changed = describe_changed_file(record.artifact, record.folder)
    if changed:
        progress.note(changed, warning=True)
    return EagerSide(
        source=run.source,
        checkpoint=checkpoint,
        judging=run.judging,
        progress=progress,
        record=record,
        run=run,
    )


def _open_named_feed(name: str, side: EagerSide) -> EagerReference:
    """Open eager with the named feed, drawn or held out, as its only reference.

    Raises:
        UsageError: no feed has the name, or eager rejects it.
    """
    drawn: list[str] = []

    def is_named(feed: NamedFeed) -> bool:
        drawn.append(feed.name)
        return feed.name == name

    eager = side.open(is_named)
    if name not in drawn:
        held_out = side.refer_samples(eager)
        eager = replace(eager, references=held_out)
        drawn += [one.feed.name for one in held_out]
    if name not in drawn:
        raise unknown_name_error("feed", name, drawn)
    if not eager.references:
        reason = next((one.skipped for one in eager.feeds.drawn if one.skipped), "it is rejected")
        raise UsageError(
            f"feed {name!r} cannot be used: {reason}",
            hint="give another --feed",
            option="feed",
            code=ErrorCode.FEED_REJECTED,
        )
    return eager


def _open_worst_feed(
    suspect: SuspectArtifact, side: EagerSide, wanted: Callable[[NamedFeed], bool] | None
) -> tuple[EagerReference, str, float]:
    """Open eager on the feeds and held-out samples; return it, the worst feed and its SQNR in dB.

    Feeds on which the artifact may be wrong do not count.
    """
    eager = side.open(wanted)
    held_out = side.refer_samples(eager)
    loose = loose_feeds(eager, held_out)
    loose |= beyond_feeds(eager.references, suspect.precision)
    references: Sequence[ReferenceOutputs] = (*eager.references, *held_out)
    with side.progress.step("find the worst feed", log="debug-feeds", runs_artifact=True) as clock:
        worst, ratio = worst_reference(replace(suspect, loose=loose), eager, references)
        clock.detail = f"{worst.feed.name} of {len(references)}"
    return replace(eager, references=(worst,)), worst.feed.name, ratio
