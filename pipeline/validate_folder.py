"""Validate an output folder again from its manifest: first digests, then every verdict."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from ..converters.registry import TARGETS, target_named
from ..core.contract import Native, Target
from ..core.errors import CheckpointError, MissingError, RunnerError
from ..core.events import Tell, ignore_events
from ..core.manifest import Failure, Manifest
from ..core.records import REJECTED_FOLDER, Artifact
from ..core.verdict import State, Verdict
from ..validators.ruling import Judgment, Ruling
from .accuracy_gate import apply_recorded_preprocessing
from .branch_coverage import update_branches
from .debug.rejection import RejectionContext, add_guilty_layer, is_wrong_by_value
from .judge_case import Candidate
from .labelled_accuracy import enter_labelled
from .limit_text import Measuring
from .manifest_file import without_artifacts
from .order import Judging
from .output_folder import OutputFolder, open_folder
from .provenance.seals import unbind_artifact
from .recorded_run import (
    TRUST_HINT,
    Moved,
    apply_exported_tolerances,
    describe_changed_file,
    drop_keys,
    load_manifest,
)
from .reopen import RecordedRequests, find_recorded_run
from .run_progress import Progress
from .run_reference import merge_feed_plan
from .verdict_rules import judge_candidate, unrun_judgment
from .worst_feed import place_worst_feed


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
    """Check digests and judge every artifact again; one that fails now moves to `rejected/`.

    Args:
        folder: an output folder.
        tell: receives progress events.
        moved: the current places of checkpoint and samples.
        judging: feeds, seed and tolerances; as recorded where not set.
        settings: options of the artifacts' formats.
        measuring: what to measure on labelled data; None keeps the recorded accuracy.
        targets: the table of formats.

    Raises:
        ModelcError: the folder or the checkpoint cannot be used.
    """
    manifest = drop_keys(load_manifest(folder))
    run = find_recorded_run(manifest, folder, moved, judging)
    with ExitStack() as held, open_folder(folder) as place:
        place.own(file.name for file in manifest.files)
        progress = Progress(tell=tell, logs=place.logs)
        eager = run.open_eager(run.read_checkpoint(progress), progress)
        asked_data = apply_recorded_preprocessing(measuring, manifest, progress)
        requests = RecordedRequests(
            run=run,
            eager=eager,
            progress=progress,
            settings=settings or {},
            labelled=enter_labelled(asked_data, eager, progress, held),
            targets=targets,
        )
        names = tuple(artifact.name for artifact in manifest.artifacts)
        # Steps that gave no artifact stay failed.
        unmade = tuple(failure for failure in manifest.failures if failure.step not in names)
        done = replace(
            update_branches(manifest, eager, run.judging.accept, progress),
            steps=(*names, *(failure.step for failure in unmade)),
            failures=unmade,
            feeds=merge_feed_plan(manifest.feeds, eager.feeds, progress),
        )
        for artifact, placed in zip(manifest.artifacts, done.artifacts, strict=True):
            if artifact.rejected:
                continue
            failure = _check_readiness(artifact, targets) or check_trust(artifact, requests)
            if failure is not None:
                done = replace(done, failures=(*done.failures, failure))
                continue
            candidate = replace(
                requests.candidate_of(artifact), aside=place.workplace(artifact.name)
            )
            judgment = _judge_unchanged(artifact, candidate, requests)
            record = replace(artifact, frozen=placed.frozen)
            if requests.labelled is not None:
                record, judgment = _record_accuracy(record, judgment)
            known = tuple(record if a.name == artifact.name else a for a in done.artifacts)
            done = replace_verdict(replace(done, artifacts=known), record, judgment.verdict, place)
            place.commit(done)  # each time, as a file may have been moved
            done = _explain_rejected(done, artifact, requests)
    return done


def _explain_rejected(
    manifest: Manifest, artifact: Artifact, requests: RecordedRequests
) -> Manifest:
    """Return the manifest with the guilty layer of an artifact that was just rejected by values."""
    name = f"{REJECTED_FOLDER}/{artifact.name}"
    moved = next((one for one in manifest.artifacts if one.name == name), None)
    verdict = manifest.verdict_of(name)
    if moved is None or verdict is None or not is_wrong_by_value(verdict):
        return manifest
    context = RejectionContext(
        eager=requests.eager,
        progress=requests.progress,
        folder=requests.run.folder,
        held_out=requests.run.refer_samples(moved, requests.eager, requests.progress),
    )
    return add_guilty_layer(manifest, name, target_named(moved.target, requests.targets), context)


def _record_accuracy(record: Artifact, judgment: Judgment) -> tuple[Artifact, Judgment]:
    """Return the artifact's record with the measured accuracy, or the judgment with a note."""
    if not judgment.rulings:  # the file was not run
        note = "not measured on labelled data, as it was not run"
        return record, judgment.plus(Ruling(notes=(note,)))
    if judgment.verdict.outputs:
        record = replace(record, accuracy=judgment.accuracy)
    return record, judgment


def _check_readiness(artifact: Artifact, targets: tuple[Target, ...]) -> Failure | None:
    """Return why the artifact cannot be judged on this host; its earlier verdict stays."""
    readiness = target_named(artifact.target, targets).readiness()
    if readiness.ready:
        return None
    return Failure(
        step=artifact.name,
        message=f"not judged here: {readiness.reason}",
        hint=readiness.mend,
        exit_code=MissingError.exit_code,
    )


def check_trust(artifact: Artifact, requests: RecordedRequests) -> Failure | None:
    """Return why an artifact that runs its author's code is not opened; its verdict stays."""
    targets, folder = requests.targets, requests.run.folder
    target, path = target_named(artifact.target, targets), folder / artifact.files[0].name
    if not isinstance(target, Native) or describe_changed_file(artifact, folder):
        return None  # a changed file is rejected without being opened
    reason = target.distrust_reason(path, requests.settings)
    if not reason:
        return None
    names = [
        one.name
        for one in requests.run.manifest.artifacts
        if not one.rejected and not isinstance(target_named(one.target, targets), Native)
    ]
    return Failure(
        step=artifact.name,
        message=f"not judged: {reason}",
        hint=f"{TRUST_HINT}; judged without it: {', '.join(names)}" if names else str(TRUST_HINT),
        exit_code=CheckpointError.exit_code,
    )


def _judge_unchanged(
    artifact: Artifact, candidate: Candidate, requests: RecordedRequests
) -> Judgment:
    """Judge the file if its digest is the recorded one, and still is afterwards."""
    judging = apply_exported_tolerances(requests.run.judging, artifact.tolerance)
    device = judging.device_for(candidate.target)
    changed = describe_changed_file(artifact, requests.run.folder)
    if changed:
        return unrun_judgment(artifact, State.FAILED, changed, device)
    try:
        judgment = judge_candidate(requests.make(artifact, candidate, judging))
    except RunnerError as error:
        return unrun_judgment(artifact, State.ERROR, error.message, device)
    changed = describe_changed_file(artifact, requests.run.folder)  # while it was judged
    return unrun_judgment(artifact, State.FAILED, changed, device) if changed else judgment


def set_verdict(manifest: Manifest, artifact: str, verdict: Verdict) -> Manifest:
    """Return the manifest with the verdict of an artifact that stays where it is."""
    others = tuple(one for one in manifest.verdicts if one.artifact != artifact)
    return replace(unbind_artifact(manifest, artifact), verdicts=(*others, verdict))


def replace_verdict(
    manifest: Manifest, artifact: Artifact, verdict: Verdict, place: OutputFolder
) -> Manifest:
    """Return the manifest with the new verdict; move an artifact that fails now to `rejected/`."""
    if verdict.passed:
        verdict = place_worst_feed(verdict, place, artifact.files[0].name, artifact=artifact.name)
        return set_verdict(manifest, artifact.name, verdict)
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
