"""Judges one model file, or the recorded measures of a folder under other tolerances."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from ..converters.registry import target_for
from ..core.contract import Feed, Native
from ..core.domain import Domain
from ..core.errors import (
    ConsentError,
    ErrorCode,
    Hint,
    Option,
    UsageError,
    unknown_name_error,
)
from ..core.events import Tell, ignore_events
from ..core.findings import WorstFeed
from ..core.kinds import Precision, ReasonCode
from ..core.manifest import Manifest
from ..core.records import REJECTED_FOLDER, Artifact, sha256_of, step_of
from ..core.target_extensions import runtime_settings
from ..core.verdict import State, Tolerance, Verdict
from ..validators.apply_tolerance import apply_tolerance
from ..validators.ruling import Ruling, decide
from .accuracy_gate import apply_recorded_gate, apply_recorded_preprocessing
from .branch_coverage import (
    CaptureEvidence,
    accept_recorded,
    branch_coverage,
    capture_from_record,
    watch_branches,
)
from .eager_reference import EagerReference, open_subject, read_checkpoint
from .extra_sizes import add_recorded_sizes
from .held_out import load_samples, refer_held_out
from .judge_case import Candidate, JudgeRequest, match_outputs
from .labelled_accuracy import enter_labelled
from .limit_text import Measuring
from .manifest_file import read_manifest, without_artifacts
from .narrow_domain import domain_inputs, narrow_subject
from .order import Judging, Source
from .output_folder import OutputFolder, open_folder
from .provenance.seals import unbind_artifact
from .recorded_run import (
    TRUST_HINT,
    Moved,
    apply_exported_tolerances,
    apply_recorded_judging,
    check_program_trust,
    check_same,
    describe_changed_file,
    drop_keys,
    load_manifest,
    record_beside,
    record_of_rejected,
    source_from_record,
)
from .restrict_values import restrict_inputs
from .run_progress import Progress, temporary_logs
from .validate_folder import replace_verdict
from .verdict_rules import judge_candidate
from .worst_feed import (
    add_feed,
    add_found_feed,
    get_worst_feed,
    note_missing_feed,
    place_worst_feed,
    read_feed,
)


def validate_file(  # noqa: PLR0913 - the options of `modelc validate FILE`, all but one optional
    path: Path,
    source: Source | None = None,
    tell: Tell = ignore_events,
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
                code=ErrorCode.FILE_CHANGED,
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
            code=ErrorCode.NO_MANIFEST,
        )
    manifest, artifact = beside
    folder = path.parent.parent if artifact.rejected else path.parent
    source = source_from_record(manifest, folder, moved or Moved())
    candidate = replace(candidate, precision=precision or artifact.limit_precision)
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
        raise ConsentError(reason, hint=TRUST_HINT, code=ErrorCode.CONSENT_REQUIRED, option="trust")


@dataclass(frozen=True, kw_only=True)
class BesideRecord:
    """What the manifest beside a file says of it, and the samples it was judged on."""

    manifest: Manifest
    held_out: tuple[Feed, ...]
    artifact: Artifact
    worst: WorstFeed | None
    folder: Path

    def request(
        self, candidate: Candidate, eager: EagerReference, judging: Judging, progress: Progress
    ) -> JudgeRequest:
        """Ask for the verdict as the folder would have it: found feeds, branches, accuracy gate."""
        inputs = domain_inputs(self.artifact.domain, eager)
        within = narrow_subject(eager, inputs, progress)
        within = add_recorded_sizes(within, self.artifact.places)
        within = add_found_feed(within, self.worst, self.folder)
        held_out = refer_held_out(self.held_out, within, progress) if self.held_out else ()
        watch_branches(within, judging.accept, progress, then=self.manifest)
        branches = branch_coverage(within, judging.accept, then=self.manifest)
        return JudgeRequest(
            candidate=candidate,
            eager=within,
            judging=judging,
            progress=progress,
            held_out=held_out,
            notes=note_missing_feed(self.worst, self.folder),
            capture=lambda: capture_from_record(branches, self.artifact, self.manifest),
            recorded_accuracy=self.artifact.accuracy,
            domain=lambda _: self.artifact.domain,
        )


def _request_of_file(
    candidate: Candidate, eager: EagerReference, judging: Judging, progress: Progress
) -> JudgeRequest:
    """Ask for the verdict on a file that no record is beside."""
    watch_branches(eager, judging.accept, progress)
    candidate = match_outputs(candidate, eager.signature, progress)
    settings = runtime_settings(candidate.target, judging.device_for(candidate.target))

    def domain(ranges: Mapping[str, tuple[int, int]]) -> Domain:
        return Domain(inputs=restrict_inputs(eager.signature.inputs, ranges), settings=settings)

    return JudgeRequest(
        candidate=candidate,
        eager=eager,
        judging=judging,
        progress=progress,
        restrict=True,
        capture=lambda: CaptureEvidence(branches=branch_coverage(eager, judging.accept)),
        domain=domain,
    )


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
    """Open the eager side, as it is recorded if it is, and judge; no file beside itself."""
    with temporary_logs() as logs:
        progress = Progress(tell=tell, logs=logs)
        checkpoint = read_checkpoint(source, progress)
        if checkpoint.digest == sha256_of(candidate.path):
            raise UsageError(
                f"{candidate.path} and {source.checkpoint} are the same file: "
                "it would be compared with itself",
                hint="give the checkpoint it was made from with --against",
                code=ErrorCode.SAME_FILE,
            )
        with ExitStack() as held:
            if recorded is not None:
                check_same(checkpoint, recorded.manifest, source)
                measuring = apply_recorded_preprocessing(measuring, recorded.manifest, progress)
            signature = None if recorded is None else recorded.manifest.signature
            eager = open_subject(source, checkpoint, judging, progress, signature)
            labelled = enter_labelled(measuring, eager, progress, held)
            build = _request_of_file if recorded is None else recorded.request
            asked = build(candidate, eager, judging, progress)
            asked = _show_feed(asked, feed)
            labelled = apply_recorded_gate(labelled, asked.recorded_accuracy)
            asked = replace(asked, labelled=labelled, states_accuracy=True)
            return judge_candidate(asked).verdict


def _show_feed(asked: JudgeRequest, feed: Feed | None) -> JudgeRequest:
    """Judge on one feed more and show that alone, where there is one; else look for faults.

    The others are run as well: how large an output usually is, and how far eager itself is from
    float64, is theirs to say, and the figures are to be those of the first time.
    """
    if feed is None:
        return replace(asked, sensitive=True)
    eager, name = add_feed(asked.eager, asked.held_out, feed)
    return replace(asked, eager=eager, shown=name)


def rejudge_folder(folder: Path, judging: Judging, tell: Tell = ignore_events) -> Manifest:
    """Hold the recorded measures of every artifact to the tolerances that are asked for now.

    What fails now moves to `rejected/`; what was rejected and passes now moves back. Faults that no
    tolerance forgives (a refused feed, a shape, a frozen branch) stay, and so do errors.

    Raises:
        UsageError: there is no manifest, or it was written by a modelc that measured less.
    """
    manifest = drop_keys(load_manifest(folder))
    judged = [a for a in manifest.artifacts if manifest.verdict_of(a.name) is not None]
    if not judged:
        raise UsageError(f"{folder} has no verdicts", hint="run modelc validate without --rejudge")
    for name in judging.by_output:
        if name not in manifest.signature.outputs:
            raise unknown_name_error("output in the tolerances", name, manifest.signature.outputs)
    judged.sort(key=lambda one: not one.rejected)  # those first, before others take their places
    with open_folder(folder) as place:
        place.own(file.name for file in manifest.files)
        progress = Progress(tell=tell, logs=place.logs)
        names = tuple(step_of(a.name) for a in judged)
        failures = tuple(one for one in manifest.failures if one.step not in names)
        done = replace(manifest, steps=names, failures=failures)
        for artifact in judged:
            verdict = _judge_recorded(artifact, manifest, judging, folder)
            done = _place_artifact(done, artifact, verdict, place, progress)
            place.commit(done)
    return done


def _judge_recorded(
    artifact: Artifact, manifest: Manifest, judging: Judging, folder: Path
) -> Verdict:
    verdict = manifest.verdict_of(artifact.name)
    if verdict is None:
        raise RuntimeError(f"{artifact.name} has no verdict")
    told = {
        feed.name: f"{feed.name} ({', '.join(f'{k}={v}' for k, v in feed.sizes.items())})"
        for feed in manifest.feeds.drawn
        if feed.sizes
    }
    if apply_tolerance(verdict, verdict.tolerance, told).state is not verdict.state:
        raise UsageError(
            f"the measures of {artifact.name} do not make its verdict again: "
            "an older modelc recorded them",
            hint="run modelc validate without --rejudge",
            code=ErrorCode.INVALID_MANIFEST,
        )
    verdict = apply_tolerance(verdict, _new_tolerance(verdict, artifact, judging), told)
    changed = "" if verdict.state is State.ERROR else describe_changed_file(artifact, folder)
    refused = artifact.rejected and not verdict.passed  # for its own reasons, or this one
    faults = [changed] if changed and not refused else []
    return decide(verdict, [Ruling.fault(ReasonCode.CHANGED_FILE, *faults)])


def _new_tolerance(verdict: Verdict, artifact: Artifact, judging: Judging) -> Tolerance:
    """What is asked for now, in place of what the verdict was within."""
    return replace(judging, recorded=verdict.tolerance).tolerance_for(artifact.limit_precision)


def _place_artifact(
    manifest: Manifest,
    artifact: Artifact,
    verdict: Verdict,
    place: OutputFolder,
    progress: Progress,
) -> Manifest:
    """The manifest with the verdict, and the files where they belong by it."""
    if artifact.rejected and verdict.passed:
        return _restore_artifact(manifest, artifact, verdict, place, progress)
    if not artifact.rejected:
        artifact = replace(artifact, tolerance=verdict.tolerance)
        artifacts = (artifact if a.name == artifact.name else a for a in manifest.artifacts)
        return replace_verdict(
            replace(manifest, artifacts=tuple(artifacts)), artifact, verdict, place
        )
    others = tuple(v for v in manifest.verdicts if v.artifact != artifact.name)
    return replace(unbind_artifact(manifest, artifact.name), verdicts=(*others, verdict))


def _restore_artifact(
    manifest: Manifest,
    artifact: Artifact,
    verdict: Verdict,
    place: OutputFolder,
    progress: Progress,
) -> Manifest:
    """An artifact that passes now, back under its name; one that is there already stays."""
    name = step_of(artifact.name)
    if any(one.name == name for one in manifest.artifacts):
        progress.note(
            f"{artifact.name} passes now, and stays: {name} is there already", warning=True
        )
        others = tuple(v for v in manifest.verdicts if v.artifact != artifact.name)
        return replace(unbind_artifact(manifest, artifact.name), verdicts=(*others, verdict))
    files = tuple(replace(file, name=step_of(file.name)) for file in artifact.files)
    place.accept(files, place.path / REJECTED_FOLDER)
    back = replace(
        artifact, name=name, files=files, rejected=False, tolerance=verdict.tolerance, seal=""
    )
    slim = without_artifacts(manifest, {artifact.name})
    verdict = place_worst_feed(verdict, place, back.files[0].name, artifact=name, was=artifact.name)
    return replace(slim, artifacts=(*slim.artifacts, back), verdicts=(*slim.verdicts, verdict))
