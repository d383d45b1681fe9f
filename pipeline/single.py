"""Judges one model file; nothing is moved or written."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from ..converters.registry import target_for
from ..core.contract import Feed, Native
from ..core.digest import sha256_of
from ..core.domain import Domain
from ..core.errors import CheckpointError, Hint, Option, UsageError
from ..core.events import Tell, silence
from ..core.findings import WorstFeed
from ..core.manifest import Manifest
from ..core.precision import Precision
from ..core.records import Artifact
from ..core.runtime_contract import settings_of
from ..core.verdict import Verdict
from ..validators.judge import ReferenceOutputs
from .accuracy import LabelledFeeds, labelled_for
from .branches import accepting, look, watch
from .held_out import refer, stored
from .manifest_file import read_manifest
from .measuring import Measuring
from .narrowing import domain_inputs, subject_in
from .order import Judging, Source
from .placed import with_recorded_places
from .proof import Candidate, prove
from .recorded import (
    Moved,
    as_exported,
    as_recorded,
    check_same,
    record_beside,
    recorded_source,
    rejected_record,
)
from .replaying import missing_found, shown, with_feed, with_found
from .restricting import restricted_inputs
from .sensitivity import measure_sensitivity
from .stage import Stage, passing_logs
from .subject import Subject, open_subject, read_checkpoint
from .trust import HINT, refuse_foreign_program
from .weighing import as_weighed, told_in, weighed, with_recorded_images, within_recorded
from .worst import read_feed, worst_of


def validate_file(  # noqa: PLR0913 - the options of `modelc validate FILE`, all but one optional
    path: Path,
    source: Source | None = None,
    tell: Tell = silence,
    *,
    judging: Judging | None = None,
    precision: Precision | None = None,
    moved: Moved | None = None,
    settings: Mapping[str, str] | None = None,
    replay: Path | None = None,
    measuring: Measuring | None = None,
) -> Verdict:
    """Judge one model file against the eager model of a checkpoint.

    Args:
        path: the model file.
        source: the eager side; None takes the one recorded in the manifest beside the file.
        tell: listens to progress.
        judging: feeds, tolerances, device.
        precision: what to judge it as; None is the recorded one, or fp32: a file does not choose
            its own tolerances.
        moved: where a recorded checkpoint and samples are now.
        settings: options that only the file's format has.
        replay: a feed as .npz that is judged among the others; the verdict shows it alone.
        measuring: what to measure on labelled data; the accuracy is told in the verdict's notes.

    Raises:
        ModelcError: the file or the checkpoint cannot be used.
    """
    judging = judging or Judging()
    target = target_for(path)
    candidate = Candidate(
        name=path.name,
        target=target,
        precision=precision or Precision.FP32,
        path=path,
        settings=settings or {},
    )
    trusted = (moved is not None and moved.trust) or (source is not None and source.trust)
    _refuse_untrusted(candidate, trust=trusted)
    feed = None if replay is None else read_feed(replay)
    if source is not None:
        return _judge(candidate, source, judging, tell, feed=feed, measuring=measuring)
    beside = record_beside(path) or rejected_record(path)
    if beside is None:
        known = read_manifest(path.parent)
        if known is not None and any(a.files[0].name == path.name for a in known.artifacts):
            raise UsageError(
                f"{path} was changed after it was proven: its digest is another",
                hint=f"make it again, or judge it as it is: modelc validate {path} --against …",
            )
        raise UsageError(
            f"no manifest beside {path} knows it, so there is nothing to compare it with",
            hint=Hint(
                "name the eager reference: --against CHECKPOINT ",
                Option("model", "PKG.MOD:FACTORY"),
                " ",
                Option("input", "…"),
            ),
            option="model",
        )
    manifest, artifact = beside
    folder = path.parent.parent if artifact.rejected else path.parent
    source = recorded_source(manifest, folder, moved or Moved())
    candidate = replace(candidate, precision=precision or artifact.held_to)
    held_out = stored(artifact, folder)
    recorded = Recorded(
        manifest=manifest,
        held_out=held_out,
        artifact=artifact,
        worst=worst_of(manifest, artifact),
        folder=folder,
    )
    judging = accepting(as_recorded(judging, manifest), manifest)
    if precision is None:
        judging = as_exported(judging, artifact.tolerance)
    return _judge(candidate, source, judging, tell, recorded, feed=feed, measuring=measuring)


def _refuse_untrusted(candidate: Candidate, *, trust: bool) -> None:
    """Before anything is loaded: what runs its maker's code when it is opened.

    Raises:
        CheckpointError: nobody said that its maker is trusted.
    """
    refuse_foreign_program(candidate.path, candidate.target, trust=trust)
    if not isinstance(candidate.target, Native):
        return
    reason = candidate.target.distrust_reason(candidate.path, candidate.settings)
    if reason:
        raise CheckpointError(reason, hint=HINT)


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """What the manifest beside a file says of it, and the samples it was judged on."""

    manifest: Manifest
    held_out: tuple[Feed, ...]
    artifact: Artifact
    worst: WorstFeed | None
    folder: Path

    def judged(  # noqa: PLR0913 - what is proven, against what, on what
        self,
        candidate: Candidate,
        subject: Subject,
        judging: Judging,
        stage: Stage,
        *,
        feed: Feed | None,
        labelled: LabelledFeeds | None,
    ) -> Verdict:
        """The verdict as the folder would have it: found feeds, branches, the gate of accuracy."""
        inputs = domain_inputs(self.artifact.domain, subject)
        subject = subject_in(subject, inputs, stage)
        subject = with_recorded_places(subject, self.artifact.places)
        subject = with_found(subject, self.worst, self.folder)
        held_out = refer(self.held_out, subject, stage) if self.held_out else ()
        watch(subject, judging.accept, stage, then=self.manifest)
        verdict = _proven(candidate, subject, judging, stage, held_out=held_out, feed=feed)
        missing = missing_found(self.worst, self.folder)
        verdict = replace(verdict, notes=(*verdict.notes, *missing))
        seen = look(subject, judging.accept, then=self.manifest)
        verdict = seen.judged_again(verdict, self.artifact, self.manifest)
        if feed is None:
            verdict = measure_sensitivity(
                verdict, candidate, subject, judging, stage, held_out=held_out
            )
        if labelled is None:
            return as_weighed(verdict, self.artifact.accuracy)
        again = within_recorded(labelled, self.artifact.accuracy)
        return told_in(weighed(candidate, verdict, again, stage))


def _judge(  # noqa: PLR0913 - both sides, how to judge, and what is on record
    candidate: Candidate,
    source: Source,
    judging: Judging,
    tell: Tell,
    recorded: Recorded | None = None,
    *,
    feed: Feed | None = None,
    measuring: Measuring | None = None,
) -> Verdict:
    """Open the eager side, as it is recorded if it is, and prove; no file beside itself."""
    with passing_logs() as logs:
        stage = Stage(tell=tell, logs=logs)
        checkpoint = read_checkpoint(source, stage)
        if checkpoint.digest == sha256_of(candidate.path):
            raise UsageError(
                f"{candidate.path} and {source.checkpoint} are the same file: "
                "it would be compared with itself",
                hint="give the checkpoint it was made from with --against",
            )
        with ExitStack() as held:
            if recorded is not None:
                check_same(checkpoint, recorded.manifest, source)
                measuring = with_recorded_images(measuring, recorded.manifest, stage)
            signature = None if recorded is None else recorded.manifest.signature
            subject = open_subject(source, checkpoint, judging, stage, signature)
            labelled = labelled_for(measuring, subject, stage, held)
            if recorded is not None:
                verdict = recorded.judged(
                    candidate, subject, judging, stage, feed=feed, labelled=labelled
                )
                return replace(verdict, domain=recorded.artifact.domain)
            watch(subject, judging.accept, stage)
            verdict = _proven(candidate, subject, judging, stage, feed=feed, restrict=True)
            verdict = look(subject, judging.accept).judged(verdict, None)
            inputs = restricted_inputs(subject.signature.inputs, verdict.restricted_values)
            if feed is None:
                within = subject_in(subject, inputs, stage)
                verdict = measure_sensitivity(verdict, candidate, within, judging, stage)
            verdict = told_in(weighed(candidate, verdict, labelled, stage))
            settings = settings_of(candidate.target, verdict.device)
            return replace(verdict, domain=Domain(inputs=inputs, settings=settings))


def _proven(  # noqa: PLR0913 - what `prove` takes, and the feed to show
    candidate: Candidate,
    subject: Subject,
    judging: Judging,
    stage: Stage,
    *,
    held_out: tuple[ReferenceOutputs, ...] = (),
    feed: Feed | None = None,
    restrict: bool = False,
) -> Verdict:
    """The verdict on all feeds, shown for one of them alone where that is asked for.

    The others are run as well: how large an output usually is, and how far eager itself is from
    float64, is theirs to say, and the figures are to be those of the first time.
    """
    if feed is None:
        return prove(candidate, subject, judging, stage, held_out=held_out, restrict=restrict)
    subject, name = with_feed(subject, held_out, feed)
    verdict = prove(candidate, subject, judging, stage, held_out=held_out, restrict=restrict)
    return shown(verdict, name)
