"""Judge one model file, or the recorded measurements of a folder at other tolerances."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from ..checkpoints.torchao_weights import find_matrices
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
from ..core.findings import ReferenceRuntime
from ..core.kinds import Precision, ReasonCode
from ..core.manifest import Manifest
from ..core.records import REJECTED_FOLDER, Artifact, Checkpoint, step_of
from ..core.target_extensions import runtime_settings
from ..core.verdict import State, Verdict
from ..core.weights import IntegerWeighted
from ..validators.apply_tolerance import apply_tolerance
from ..validators.ruling import Judgment, Ruling, decide
from .accuracy_gate import apply_recorded_preprocessing
from .branch_coverage import CaptureEvidence, branch_coverage, watch_branches
from .declared_sizes import narrow_to_declared
from .eager_reference import EagerReference, open_reference, read_checkpoint
from .judge_case import Candidate, JudgeRequest, match_outputs, pair_ends
from .labelled_accuracy import enter_labelled
from .limit_text import Measuring
from .manifest_file import without_artifacts
from .order import Judging, Source
from .output_folder import OutputFolder, open_folder
from .recorded_run import (
    TRUST_HINT,
    Moved,
    apply_exported_tolerances,
    check_program_trust,
    check_unchanged,
    describe_changed_file,
    drop_keys,
    is_foreign_program,
    load_manifest,
    record_beside,
    record_of_rejected,
)
from .reopen import RecordedRequests, check_not_itself, find_recorded_run
from .restrict_values import restrict_inputs
from .run_progress import Progress, temporary_logs
from .validate_folder import replace_verdict, set_verdict
from .verdict_rules import judge_candidate
from .worst_feed import add_feed, place_worst_feed, read_feed


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
    """Judge one model file against the eager model of a checkpoint, or another model file.

    Args:
        path: the model file.
        source: the checkpoint or the other file, which its own runtime runs; None takes the one
            recorded in the manifest beside the file.
        tell: receives progress events.
        judging: feeds, tolerances, device.
        precision: the precision to judge it as; None is the recorded one, or that of the integer
            weights in an ONNX or IR, which a note of the verdict names, or else fp32.
        moved: the current places of a recorded checkpoint and samples.
        settings: options of the file's format.
        replay: a feed as .npz that is judged among the others; the verdict shows it alone.
        measuring: what to measure on labelled data; a note of the verdict has the accuracy.

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
    _check_trust(candidate, trust=trusted)
    feed = None if replay is None else read_feed(replay)
    if source is not None:
        infer = precision is None
        return _judge_against(
            candidate, source, judging, tell, infer=infer, replay=feed, measuring=measuring
        )
    manifest, artifact = _find_record(path)
    folder = path.parent.parent if artifact.rejected else path.parent
    run = find_recorded_run(manifest, folder, moved, judging)
    judging = run.judging
    if precision is None:
        judging = apply_exported_tolerances(judging, artifact.tolerance)
    candidate = replace(candidate, precision=precision or artifact.limit_precision)
    with ExitStack() as held, temporary_logs() as logs:
        progress = Progress(tell=tell, logs=logs)
        checkpoint = run.read_checkpoint(progress, judged=path)
        measuring = apply_recorded_preprocessing(measuring, manifest, progress)
        eager = run.open_eager(checkpoint, progress)
        requests = RecordedRequests(
            run=run,
            eager=eager,
            progress=progress,
            settings=candidate.settings,
            labelled=enter_labelled(measuring, eager, progress, held),
        )
        watch_branches(eager, judging.accept, progress, then=manifest)
        judgment = _judge_unrecorded(requests.make(artifact, candidate, judging), feed)
        return judgment.plus(Ruling(domain=artifact.domain)).verdict


def _find_stored_precision(
    candidate: Candidate, eager: EagerReference, checkpoint: Checkpoint
) -> Precision | None:
    """Return the precision of the quantized layers that a file stores; None without any.

    Beside a reference that has integers itself, a file has to have the same: None.
    """
    sides = [(candidate.target, candidate.path)]
    if not eager.model.has_module:
        sides.append((target_for(Path(checkpoint.path)), Path(checkpoint.path)))
    elif any(find_matrices(eager.model.module)):
        return None
    found = [
        target.inspect(path).quantized if isinstance(target, IntegerWeighted) else None
        for target, path in sides
    ]
    return None if any(found[1:]) else found[0]


def _find_record(path: Path) -> tuple[Manifest, Artifact]:
    """Return the manifest that records this very file, and its record.

    Raises:
        UsageError: there is none.
    """
    if (found := record_beside(path) or record_of_rejected(path)) is not None:
        return found
    check_unchanged(path, instead=f"judge it as it is: modelc validate {path} --against …")
    raise UsageError(
        f"no manifest beside {path} records it, so there is nothing to compare it with",
        hint=Hint(
            "name the eager reference: --against CHECKPOINT ",
            Option("model", "PKG.MOD:FACTORY"),
            " ",
            Option("input", "…"),
        ),
        option="model",
        code=ErrorCode.NO_MANIFEST,
    )


def _check_trust(candidate: Candidate, *, trust: bool) -> None:
    """Reject a file that runs its author's code when it is opened, before anything is loaded.

    Raises:
        CheckpointError: the user does not trust it.
    """
    check_program_trust(candidate.path, candidate.target, trust=trust)
    if not isinstance(candidate.target, Native):
        return
    reason = candidate.target.distrust_reason(candidate.path, candidate.settings)
    if reason:
        raise ConsentError(reason, hint=TRUST_HINT, code=ErrorCode.CONSENT_REQUIRED, option="trust")


def _judge_against(  # noqa: PLR0913 - both sides, and how to judge
    candidate: Candidate,
    source: Source,
    judging: Judging,
    tell: Tell,
    *,
    infer: bool,
    replay: Feed | None,
    measuring: Measuring | None,
) -> Verdict:
    """Judge the candidate against a checkpoint, or another artifact, that no manifest names."""
    source = replace(source, artifact=True)
    with ExitStack() as held, temporary_logs() as logs:
        progress = Progress(tell=tell, logs=logs)
        checkpoint = read_checkpoint(source, progress)
        check_not_itself(candidate.path, checkpoint, source)
        source = narrow_to_declared(source, checkpoint, candidate, progress)
        eager = open_reference(source, checkpoint, judging, progress)
        labelled = enter_labelled(measuring, eager, progress, held)
        watch_branches(eager, judging.accept, progress)
        notes: tuple[str, ...] = ()
        found = _find_stored_precision(candidate, eager, checkpoint) if infer else None
        candidate = replace(candidate, precision=found or candidate.precision)
        if eager.model.has_module:
            candidate = match_outputs(candidate, eager.signature, progress)
        else:
            candidate, notes = pair_ends(candidate, eager)
        limits = eager.limit_precision(candidate.precision) or candidate.precision
        candidate = replace(candidate, precision=limits)
        if found is not None and limits is found:
            text = f"judged as {found}, which its own layers are stored in"
            notes = (*notes, f"{text}; --precision fp32 judges it so")
        settings = runtime_settings(candidate.target, judging.device_for(candidate.target))
        request = JudgeRequest(
            candidate=candidate,
            eager=eager,
            judging=judging,
            progress=progress,
            restrict=True,
            capture=CaptureEvidence(branches=branch_coverage(eager, judging.accept)),
            sensitive=True,
            labelled=labelled,
            notes=notes,
            reference=_find_program_runtime(checkpoint),
        )
        judgment = _judge_unrecorded(request, replay)
        ranges = judgment.verdict.restricted_values
        inputs = restrict_inputs(eager.signature.inputs, ranges)
        return judgment.plus(Ruling(domain=Domain(inputs=inputs, settings=settings))).verdict


def _find_program_runtime(checkpoint: Checkpoint) -> ReferenceRuntime | None:
    """Return how torch runs a program that is the reference; None for weights with a module."""
    if not is_foreign_program(checkpoint.kind):
        return None
    runtime = f"torch {metadata.version('torch')} ({checkpoint.kind})"
    return ReferenceRuntime(file=checkpoint.title, runtime=runtime)


def _judge_unrecorded(request: JudgeRequest, replay: Feed | None) -> Judgment:
    """Judge a file whose verdict is not recorded; the verdict shows `replay` alone, if given.

    The other feeds run as well: the usual size of an output and eager's distance from float64 are
    measured on them, so the figures are those of the first time. No faults are planted then.
    """
    request = replace(request, states_accuracy=True)
    if replay is None:
        return judge_candidate(request)
    eager, name = add_feed(request.eager, request.held_out, replay)
    judgment = judge_candidate(replace(request, eager=eager, sensitive=False))
    return judgment.plus(Ruling(shown=name))


def rejudge_folder(folder: Path, judging: Judging, tell: Tell = ignore_events) -> Manifest:
    """Compare the recorded measurements of every artifact with other tolerances.

    An artifact that fails now moves to `rejected/`; one that was rejected and passes now moves
    back. Faults at any tolerance (a rejected feed, a shape, a frozen branch) and errors stay.

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
    judged.sort(key=lambda one: not one.rejected)  # those first, before others take their names
    with open_folder(folder) as place:
        place.own(file.name for file in manifest.files)
        progress = Progress(tell=tell, logs=place.logs)
        names = tuple(step_of(a.name) for a in judged)
        failures = tuple(one for one in manifest.failures if one.step not in names)
        done = replace(manifest, steps=names, failures=failures)
        for artifact in judged:
            verdict = _apply_tolerance_again(artifact, manifest, judging, folder)
            done = _place_artifact(done, artifact, verdict, place, progress)
            place.commit(done)
    return done


def _apply_tolerance_again(
    artifact: Artifact, manifest: Manifest, judging: Judging, folder: Path
) -> Verdict:
    verdict = manifest.verdict_of(artifact.name)
    if verdict is None:
        raise RuntimeError(f"{artifact.name} has no verdict")
    named = {
        feed.name: f"{feed.name} ({', '.join(f'{k}={v}' for k, v in feed.sizes.items())})"
        for feed in manifest.feeds.drawn
        if feed.sizes
    }
    if apply_tolerance(verdict, verdict.tolerance, named).state is not verdict.state:
        raise UsageError(
            f"the measurements of {artifact.name} do not give its verdict: "
            "an older modelc recorded them",
            hint="run modelc validate without --rejudge",
            code=ErrorCode.INVALID_MANIFEST,
        )
    tolerance = replace(judging, recorded=verdict.tolerance).tolerance_for(artifact.limit_precision)
    verdict = apply_tolerance(verdict, tolerance, named)
    changed = "" if verdict.state is State.ERROR else describe_changed_file(artifact, folder)
    known = artifact.rejected and not verdict.passed  # for its own reasons, or this one
    faults = [changed] if changed and not known else []
    return decide(verdict, [Ruling.fault(ReasonCode.CHANGED_FILE, *faults)])


def _place_artifact(
    manifest: Manifest,
    artifact: Artifact,
    verdict: Verdict,
    place: OutputFolder,
    progress: Progress,
) -> Manifest:
    """Return the manifest with the verdict, and move the files accordingly."""
    if artifact.rejected and verdict.passed:
        return _restore_artifact(manifest, artifact, verdict, place, progress)
    if not artifact.rejected:
        artifact = replace(artifact, tolerance=verdict.tolerance)
        artifacts = (artifact if a.name == artifact.name else a for a in manifest.artifacts)
        return replace_verdict(
            replace(manifest, artifacts=tuple(artifacts)), artifact, verdict, place
        )
    return set_verdict(manifest, artifact.name, verdict)


def _restore_artifact(
    manifest: Manifest,
    artifact: Artifact,
    verdict: Verdict,
    place: OutputFolder,
    progress: Progress,
) -> Manifest:
    """Move an artifact that passes now back to its name, unless another artifact has it."""
    name = step_of(artifact.name)
    if any(one.name == name for one in manifest.artifacts):
        text = f"{artifact.name} passes now, but stays there: {name} exists already"
        progress.note(text, warning=True)
        return set_verdict(manifest, artifact.name, verdict)
    files = tuple(replace(file, name=step_of(file.name)) for file in artifact.files)
    place.accept(files, place.path / REJECTED_FOLDER)
    back = replace(
        artifact, name=name, files=files, rejected=False, tolerance=verdict.tolerance, seal=""
    )
    slim = without_artifacts(manifest, {artifact.name})
    verdict = place_worst_feed(verdict, place, back.files[0].name, artifact=name, was=artifact.name)
    return replace(slim, artifacts=(*slim.artifacts, back), verdicts=(*slim.verdicts, verdict))
