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
from .accuracy import LabelledFeeds, enter_labelled
from .branches import accept_recorded, branch_coverage, watch_branches
from .held_out import load_samples, refer_held_out
from .manifest_file import read_manifest
from .measuring import Measuring
from .narrowing import domain_inputs, narrow_subject
from .order import Judging, Source
from .placed import add_recorded_sizes
from .proof import Candidate, judge_candidate
from .recorded import (
    Moved,
    apply_exported_tolerances,
    apply_recorded_judging,
    check_same,
    record_beside,
    record_of_rejected,
    source_from_record,
)
from .replaying import add_feed, add_found_feed, note_missing_feed, show_feed
from .restricting import restrict_inputs
from .sensitivity import measure_sensitivity
from .stage import Progress, temporary_logs
from .subject import EagerReference, open_subject, read_checkpoint
from .trust import TRUST_HINT, check_program_trust
from .weighing import (
    apply_recorded_accuracy,
    apply_recorded_gate,
    apply_recorded_preprocessing,
    gate_accuracy,
    note_accuracy,
)
from .worst import get_worst_feed, read_feed


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
        return _judge_file(candidate, source, judging, tell, feed=feed, measuring=measuring)
    beside = record_beside(path) or record_of_rejected(path)
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
    source = source_from_record(manifest, folder, moved or Moved())
    candidate = replace(candidate, precision=precision or artifact.held_to)
    held_out = load_samples(artifact, folder)
    recorded = BesideRecord(
        manifest=manifest,
        held_out=held_out,
        artifact=artifact,
        worst=get_worst_feed(manifest, artifact),
        folder=folder,
    )
    judging = accept_recorded(apply_recorded_judging(judging, manifest), manifest)
    if precision is None:
        judging = apply_exported_tolerances(judging, artifact.tolerance)
    return _judge_file(candidate, source, judging, tell, recorded, feed=feed, measuring=measuring)


def _refuse_untrusted(candidate: Candidate, *, trust: bool) -> None:
    """Before anything is loaded: what runs its maker's code when it is opened.

    Raises:
        CheckpointError: nobody said that its maker is trusted.
    """
    check_program_trust(candidate.path, candidate.target, trust=trust)
    if not isinstance(candidate.target, Native):
        return
    reason = candidate.target.distrust_reason(candidate.path, candidate.settings)
    if reason:
        raise CheckpointError(reason, hint=TRUST_HINT)


@dataclass(frozen=True, kw_only=True)
class BesideRecord:
    """What the manifest beside a file says of it, and the samples it was judged on."""

    manifest: Manifest
    held_out: tuple[Feed, ...]
    artifact: Artifact
    worst: WorstFeed | None
    folder: Path

    def judged(  # noqa: PLR0913 - what is proven, against what, on what
        self,
        candidate: Candidate,
        subject: EagerReference,
        judging: Judging,
        stage: Progress,
        *,
        feed: Feed | None,
        labelled: LabelledFeeds | None,
    ) -> Verdict:
        """The verdict as the folder would have it: found feeds, branches, the gate of accuracy."""
        inputs = domain_inputs(self.artifact.domain, subject)
        subject = narrow_subject(subject, inputs, stage)
        subject = add_recorded_sizes(subject, self.artifact.places)
        subject = add_found_feed(subject, self.worst, self.folder)
        held_out = refer_held_out(self.held_out, subject, stage) if self.held_out else ()
        watch_branches(subject, judging.accept, stage, then=self.manifest)
        verdict = _judge_feeds(candidate, subject, judging, stage, held_out=held_out, feed=feed)
        missing = note_missing_feed(self.worst, self.folder)
        verdict = replace(verdict, notes=(*verdict.notes, *missing))
        seen = branch_coverage(subject, judging.accept, then=self.manifest)
        verdict = seen.judge_recorded(verdict, self.artifact, self.manifest)
        if feed is None:
            verdict = measure_sensitivity(
                verdict, candidate, subject, judging, stage, held_out=held_out
            )
        if labelled is None:
            return apply_recorded_accuracy(verdict, self.artifact.accuracy)
        again = apply_recorded_gate(labelled, self.artifact.accuracy)
        return note_accuracy(gate_accuracy(candidate, verdict, again, stage))


def _judge_file(  # noqa: PLR0913 - both sides, how to judge, and what is on record
    candidate: Candidate,
    source: Source,
    judging: Judging,
    tell: Tell,
    recorded: BesideRecord | None = None,
    *,
    feed: Feed | None = None,
    measuring: Measuring | None = None,
) -> Verdict:
    """Open the eager side, as it is recorded if it is, and prove; no file beside itself."""
    with temporary_logs() as logs:
        stage = Progress(tell=tell, logs=logs)
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
                measuring = apply_recorded_preprocessing(measuring, recorded.manifest, stage)
            signature = None if recorded is None else recorded.manifest.signature
            subject = open_subject(source, checkpoint, judging, stage, signature)
            labelled = enter_labelled(measuring, subject, stage, held)
            if recorded is not None:
                verdict = recorded.judged(
                    candidate, subject, judging, stage, feed=feed, labelled=labelled
                )
                return replace(verdict, domain=recorded.artifact.domain)
            watch_branches(subject, judging.accept, stage)
            verdict = _judge_feeds(candidate, subject, judging, stage, feed=feed, restrict=True)
            verdict = branch_coverage(subject, judging.accept).judged(verdict, None)
            inputs = restrict_inputs(subject.signature.inputs, verdict.restricted_values)
            if feed is None:
                within = narrow_subject(subject, inputs, stage)
                verdict = measure_sensitivity(verdict, candidate, within, judging, stage)
            verdict = note_accuracy(gate_accuracy(candidate, verdict, labelled, stage))
            settings = settings_of(candidate.target, verdict.device)
            return replace(verdict, domain=Domain(inputs=inputs, settings=settings))


def _judge_feeds(  # noqa: PLR0913 - what `prove` takes, and the feed to show
    candidate: Candidate,
    subject: EagerReference,
    judging: Judging,
    stage: Progress,
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
        return judge_candidate(
            candidate, subject, judging, stage, held_out=held_out, restrict=restrict
        )
    subject, name = add_feed(subject, held_out, feed)
    verdict = judge_candidate(
        candidate, subject, judging, stage, held_out=held_out, restrict=restrict
    )
    return show_feed(verdict, name)
