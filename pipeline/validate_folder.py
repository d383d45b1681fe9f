"""Validates an output folder again from its manifest: digests first, then every verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from ..converters.registry import TARGETS, target_named
from ..core.contract import Native, Target
from ..core.errors import CheckpointError, MissingError, RunnerError
from ..core.events import Tell, ignore_events
from ..core.findings import WorstFeed
from ..core.kinds import ReasonCode
from ..core.manifest import Failure, Manifest
from ..core.records import REJECTED_FOLDER, Artifact
from ..core.verdict import Reason, State, Verdict
from ..validators.ruling import Judgment, Ruling
from ..validators.tolerance import tolerance_for
from .accuracy_gate import apply_recorded_gate, apply_recorded_preprocessing
from .branch_coverage import (
    accept_recorded,
    branch_coverage,
    capture_from_record,
    update_branches,
)
from .debug.rejection import RejectionScene, add_guilty_layer, outputs_wrong_by_value
from .eager_reference import EagerReference, open_subject, read_checkpoint
from .extra_sizes import add_recorded_sizes
from .held_out import load_samples, refer_held_out
from .judge_case import Candidate, JudgeRequest
from .labelled_accuracy import LabelledFeeds, enter_labelled
from .limit_text import Measuring
from .manifest_file import without_artifacts
from .narrow_domain import domain_inputs, narrow_subject
from .order import Judging
from .output_folder import OutputFolder, open_folder
from .provenance.seals import unbind_artifact
from .recorded_run import (
    TRUST_HINT,
    Moved,
    apply_exported_tolerances,
    apply_recorded_judging,
    check_same,
    describe_changed_file,
    drop_keys,
    load_manifest,
    source_from_record,
)
from .run_progress import Progress
from .run_reference import merge_feed_plan
from .verdict_rules import judge_candidate
from .worst_feed import (
    add_found_feed,
    get_worst_feed,
    note_missing_feed,
    place_worst_feed,
)


def validate_folder(  # noqa: PLR0913 - the options of `modelc validate FOLDER`
    folder: Path,
    tell: Tell = ignore_events,
    *,
    moved: Moved | None = None,
    judging: Judging | None = None,
    settings: Mapping[str, str] | None = None,
    measuring: Measuring | None = None,
    targets: tuple[Target, ...] = TARGETS,
) -> Manifest:
    """Check digests and judge every artifact again; what fails now moves to `rejected/`.

    Args:
        folder: an output folder.
        tell: listens to progress.
        moved: where checkpoint and samples are now.
        judging: what is not given in it is as recorded: feeds, seed, tolerances.
        settings: with which artifacts of a format that has any are opened.
        measuring: what to measure anew on labelled data; None keeps what is recorded.
        targets: the table of formats.

    Raises:
        ModelcError: the folder or the checkpoint cannot be used.
    """
    manifest = drop_keys(load_manifest(folder))
    source = source_from_record(manifest, folder, moved or Moved())
    judging = accept_recorded(apply_recorded_judging(judging or Judging(), manifest), manifest)
    with ExitStack() as held, open_folder(folder) as place:
        place.own(file.name for file in manifest.files)
        progress = Progress(tell=tell, logs=place.logs)
        now = read_checkpoint(source, progress)
        check_same(now, manifest, source)
        eager = open_subject(source, now, judging, progress, manifest.signature)
        asked_data = apply_recorded_preprocessing(measuring, manifest, progress)
        labelled = enter_labelled(asked_data, eager, progress, held)
        names = tuple(artifact.name for artifact in manifest.artifacts)
        # What was ordered and never made is no success because the rest is judged again.
        unmade = tuple(failure for failure in manifest.failures if failure.step not in names)
        done = replace(
            update_branches(manifest, eager, judging.accept, progress),
            steps=(*names, *(failure.step for failure in unmade)),
            failures=unmade,
            feeds=merge_feed_plan(manifest.feeds, eager.feeds, progress),
        )
        for artifact, placed in zip(manifest.artifacts, done.artifacts, strict=True):
            if artifact.rejected:
                continue
            missing = _why_not_here(artifact, targets) or _why_untrusted(
                artifact, folder, settings or {}, targets, manifest
            )
            if missing is not None:
                done = replace(done, failures=(*done.failures, missing))
                continue
            again = _RecordedProof(
                artifact=artifact,
                folder=folder,
                eager=eager,
                progress=progress,
                settings=settings or {},
                manifest=manifest,
                aside=place.workplace(artifact.name),
                worst=get_worst_feed(manifest, artifact),
                labelled=labelled,
            )
            asked = apply_exported_tolerances(judging, artifact.tolerance)
            judgment = judge_again(artifact, folder, asked, again, targets)
            record, verdict = again.record_of(judgment, placed)
            known = tuple(record if a.name == artifact.name else a for a in done.artifacts)
            done = replace_verdict(replace(done, artifacts=known), record, verdict, place)
            place.commit(done)  # each time: a file may just have been moved
            done = _explain_rejected(done, again, targets)
    return done


def _explain_rejected(
    manifest: Manifest, again: _RecordedProof, targets: tuple[Target, ...]
) -> Manifest:
    """The manifest with the guilty layer of the artifact, if it was just refused by its values."""
    name = f"{REJECTED_FOLDER}/{again.artifact.name}"
    moved = next((one for one in manifest.artifacts if one.name == name), None)
    verdict = manifest.verdict_of(name)
    if moved is None or verdict is None or not outputs_wrong_by_value(verdict):
        return manifest
    feeds = load_samples(moved, again.folder)
    scene = RejectionScene(
        eager=again.eager,
        progress=again.progress,
        folder=again.folder,
        held_out=refer_held_out(feeds, again.eager, again.progress) if feeds else (),
    )
    return add_guilty_layer(manifest, name, target_named(moved.target, targets), scene)


@dataclass(frozen=True, kw_only=True)
class _RecordedProof:
    """Proves a candidate on the feeds and held-out samples that its artifact has on record."""

    artifact: Artifact
    folder: Path
    eager: EagerReference
    progress: Progress
    settings: Mapping[str, str]
    manifest: Manifest
    aside: Path
    worst: WorstFeed | None
    labelled: LabelledFeeds | None = None

    def record_of(self, judgment: Judgment, placed: Artifact) -> tuple[Artifact, Verdict]:
        """The artifact's record with what was measured anew, and the verdict."""
        record = replace(self.artifact, frozen=placed.frozen)
        if self.labelled is None:
            return record, judgment.verdict
        if not judgment.rulings:  # the file was not run
            note = "not measured on labelled data, as it was not run"
            return record, judgment.plus(Ruling(notes=(note,))).verdict
        if judgment.verdict.outputs:
            record = replace(record, accuracy=judgment.accuracy)
        return record, judgment.verdict

    def __call__(self, candidate: Candidate, judging: Judging) -> Judgment:
        feeds = load_samples(self.artifact, self.folder)
        held_out = refer_held_out(feeds, self.eager, self.progress) if feeds else ()
        inputs = domain_inputs(self.artifact.domain, self.eager)
        eager = narrow_subject(self.eager, inputs, self.progress)
        eager = add_recorded_sizes(eager, self.artifact.places)
        branches = branch_coverage(self.eager, judging.accept, then=self.manifest)
        return judge_candidate(
            JudgeRequest(
                candidate=replace(candidate, settings=self.settings, aside=self.aside),
                eager=add_found_feed(eager, self.worst, self.folder),
                judging=judging,
                progress=self.progress,
                held_out=held_out,
                recorded_worst=self.worst,
                notes=note_missing_feed(self.worst, self.folder),
                capture=lambda: capture_from_record(branches, self.artifact, self.manifest),
                sensitive=True,
                labelled=apply_recorded_gate(self.labelled, self.artifact.accuracy),
                recorded_accuracy=self.artifact.accuracy,
            )
        )


def _why_not_here(artifact: Artifact, targets: tuple[Target, ...]) -> Failure | None:
    """Why the artifact cannot be judged on this host; its earlier verdict stays."""
    target = target_named(artifact.target, targets)
    readiness = target.readiness()
    if readiness.ready:
        return None
    return Failure(
        step=artifact.name,
        message=f"not judged here: {readiness.reason}",
        hint=readiness.mend,
        exit_code=MissingError.exit_code,
    )


def _why_untrusted(
    artifact: Artifact,
    folder: Path,
    settings: Mapping[str, str],
    targets: tuple[Target, ...],
    manifest: Manifest,
) -> Failure | None:
    """Why the artifact is not opened, where that runs its maker's code; its verdict stays."""
    target, path = target_named(artifact.target, targets), folder / artifact.files[0].name
    if not isinstance(target, Native) or describe_changed_file(artifact, folder):
        return None  # what was changed is refused without being opened
    reason = target.distrust_reason(path, settings)
    if not reason:
        return None
    return Failure(
        step=artifact.name,
        message=f"not judged: {reason}",
        hint=f"{TRUST_HINT}{_list_judged(manifest, targets)}",
        exit_code=CheckpointError.exit_code,
    )


def _list_judged(manifest: Manifest, targets: tuple[Target, ...]) -> str:
    """What is judged all the same: the artifacts that run nobody's code when they are opened."""
    names = [
        one.name
        for one in manifest.artifacts
        if not one.rejected and not isinstance(target_named(one.target, targets), Native)
    ]
    return f"; judged without it: {', '.join(names)}" if names else ""


def judge_again(
    artifact: Artifact,
    folder: Path,
    judging: Judging,
    prove_it: Callable[[Candidate, Judging], Judgment],
    targets: tuple[Target, ...] = TARGETS,
) -> Judgment:
    """Digest first; only an unchanged file is run."""
    target = target_named(artifact.target, targets)
    device = judging.device_for(target)
    changed = describe_changed_file(artifact, folder)
    if changed:
        return _unrun_judgment(artifact, device, State.FAILED, changed)
    try:
        return prove_it(_make_candidate(artifact, folder, target), judging)
    except RunnerError as error:
        return _unrun_judgment(artifact, device, State.ERROR, error.message)


def _make_candidate(artifact: Artifact, folder: Path, target: Target) -> Candidate:
    return Candidate(
        name=artifact.name,
        target=target,
        precision=artifact.limit_precision,
        path=folder / artifact.files[0].name,
    )


def _unrun_judgment(artifact: Artifact, device: str, state: State, reason: str) -> Judgment:
    """Judge a file that was not run."""
    code = ReasonCode.CHANGED_FILE if state is State.FAILED else ReasonCode.NOT_RUN
    verdict = Verdict(
        artifact=artifact.name,
        state=state,
        reasons=(Reason(code=code, text=reason, fault=state is State.FAILED),),
        device=device,
        tolerance=tolerance_for(artifact.precision),
        feeds=(),
        outputs=(),
    )
    return Judgment(measured=verdict)


def replace_verdict(
    manifest: Manifest, artifact: Artifact, verdict: Verdict, place: OutputFolder
) -> Manifest:
    """The manifest with the new verdict; an artifact that fails now is moved away."""
    if verdict.passed:
        verdict = place_worst_feed(verdict, place, artifact.files[0].name, artifact=artifact.name)
        others = tuple(v for v in manifest.verdicts if v.artifact != artifact.name)
        return replace(unbind_artifact(manifest, artifact.name), verdicts=(*others, verdict))
    there = [file for file in artifact.files if (place.path / file.name).exists()]
    moved = replace(
        artifact,
        name=f"{REJECTED_FOLDER}/{artifact.name}",
        files=place.reject(there, place.path) or artifact.files,
        rejected=True,
        seal="",
    )
    verdict = place_worst_feed(
        verdict, place, moved.files[0].name, artifact=moved.name, was=artifact.name
    )
    slim = without_artifacts(manifest, {artifact.name, moved.name})
    return replace(
        slim,
        artifacts=(*slim.artifacts, moved),
        verdicts=(*slim.verdicts, verdict),
    )
