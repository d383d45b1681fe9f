"""Judge the artifacts of a folder as something outside this process runs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from ..converters.runner_base import JudgedOnly
from ..core.contract import Runner
from ..core.errors import ErrorCode, RunnerError, UsageError, unknown_name_error
from ..core.events import Tell, ignore_events
from ..core.external_runtime import (
    HERE,
    DeclinedArtifact,
    ExternalReport,
    ExternalRuntime,
    ExternalVerdict,
    GeneratingRuntime,
    RuntimeDrift,
    RuntimeFamily,
    keep_latest,
)
from ..core.manifest import Manifest
from ..core.records import Artifact
from ..core.signature import Signature
from ..core.verdict import State
from .external_rules import judge_external
from .generated_tokens import judge_generated
from .judge_case import JudgeRequest
from .measure_drift import measure_drift
from .order import Judging
from .output_folder import open_folder
from .recorded_run import (
    Moved,
    apply_exported_tolerances,
    describe_changed_file,
    load_manifest,
)
from .reopen import RecordedRequests, find_recorded_run
from .run_progress import Progress
from .validate_folder import check_trust
from .verdict_rules import unrun_judgment


def validate_external(  # noqa: PLR0913 - the options of `modelc validate FOLDER`
    folder: Path | str,
    runtimes: Sequence[ExternalRuntime | RuntimeFamily],
    on_event: Tell = ignore_events,
    *,
    artifacts: Sequence[str] = (),
    moved: Moved | None = None,
    judging: Judging | None = None,
    settings: Mapping[str, str] | None = None,
    drift: bool = False,
) -> ExternalReport:
    """Judge the artifacts of a folder as external runtimes run them, and record the verdicts.

    Feeds, eager outputs, tolerances and rules are those of `validate_folder`. No file moves: the
    verdict in this process stays the artifact's own.

    Args:
        folder: an output folder.
        runtimes: what runs the artifacts; of a family, its member for each artifact.
        on_event: receives progress events.
        artifacts: names or patterns of those to judge; empty for all that passed.
        moved: the current places of checkpoint and samples.
        judging: feeds, seed and tolerances; as recorded where not set.
        settings: options of the artifacts' formats, such as consent.
        drift: whether to compare the outputs of the runtimes with one another too.

    Raises:
        UsageError: an artifact is unknown, or no runtime runs any.
        ModelcError: the folder, the checkpoint or a runtime cannot be used.
    """
    folder = Path(folder)
    manifest = load_manifest(folder)
    chosen = _choose_artifacts(manifest, artifacts)
    pairs = [(_member_for(one, artifact), artifact) for one in runtimes for artifact in chosen]
    declined = tuple(
        DeclinedArtifact(runtime=runtime.name, artifact=artifact.name, reason=reason)
        for runtime, artifact in pairs
        if (reason := runtime.decline_reason(artifact))
    )
    refused = {(one.runtime, one.artifact) for one in declined}
    wanted = [pair for pair in pairs if (pair[0].name, pair[1].name) not in refused]
    if not wanted:
        raise UsageError(
            f"no artifact of {folder} can run there: {declined[0].reason}",
            hint="export a format that the runtime reads",
            code=ErrorCode.UNSUPPORTED,
        )
    run = find_recorded_run(manifest, folder, moved, judging)
    with open_folder(folder) as place:
        place.own(file.name for file in manifest.files)
        progress = Progress(tell=on_event, logs=place.logs)
        eager = run.open_eager(run.read_checkpoint(progress), progress)
        requests = RecordedRequests(
            run=run, eager=eager, progress=progress, settings=settings or {}
        )
        judged: tuple[ExternalVerdict, ...] = ()
        for runtime, artifact in wanted:
            judged = (*judged, _judge_there(runtime, artifact, requests))
            known = keep_latest(manifest.external, judged)
            place.commit(replace(manifest, external=known))
        apart = _measure_drift(wanted, judged, requests) if drift else ()
    names = {one.verdict.artifact for one in judged}
    here = tuple(one for one in manifest.verdicts if one.artifact in names)
    return ExternalReport(judged=judged, declined=declined, here=here, drift=apart)


def _member_for(runtime: ExternalRuntime | RuntimeFamily, artifact: Artifact) -> ExternalRuntime:
    return runtime.member_for(artifact) if isinstance(runtime, RuntimeFamily) else runtime


def _choose_artifacts(manifest: Manifest, names: Sequence[str]) -> tuple[Artifact, ...]:
    """Return the named artifacts, or those that passed.

    Raises:
        UsageError: a name is unknown, or no artifact passed.
    """
    known = {artifact.name: artifact for artifact in manifest.artifacts}
    for name in names:
        if not any(fnmatchcase(one, name) for one in known):
            raise unknown_name_error("artifact", name, list(known) or ["(none)"])
    if names:
        return tuple(a for one, a in known.items() if any(fnmatchcase(one, n) for n in names))
    verdicts = {name: manifest.verdict_of(name) for name in known}
    passed = tuple(a for a in known.values() if (v := verdicts[a.name]) is not None and v.passed)
    if not passed:
        raise UsageError(
            "no artifact of the folder passed in modelc",
            hint="export again, and look at the reasons of the verdicts",
            code=ErrorCode.UNSUPPORTED,
        )
    return passed


def _judge_there(
    runtime: ExternalRuntime, artifact: Artifact, requests: RecordedRequests
) -> ExternalVerdict:
    """Judge one artifact as the runtime runs it; a changed file or a failed run is recorded."""
    changed = describe_changed_file(artifact, requests.run.folder)
    distrusted = check_trust(artifact, requests)
    versions: dict[str, str] = {}
    if changed:
        verdict = unrun_judgment(artifact, State.FAILED, changed).verdict
    elif distrusted is not None:
        verdict = unrun_judgment(artifact, State.ERROR, distrusted.message).verdict
    else:
        try:
            title = f"open {artifact.name} in {runtime.name}"
            with requests.progress.step(title, log=f"{artifact.name}-external"):
                versions = runtime.prepare(requests.candidate_of(artifact).path, artifact)
            request = _request(runtime, artifact, requests)
            if isinstance(runtime, GeneratingRuntime):
                verdict = judge_generated(runtime, artifact, request)
            else:
                verdict = judge_external(runtime, artifact, request)
            if changed := describe_changed_file(artifact, requests.run.folder):
                verdict = unrun_judgment(artifact, State.FAILED, changed).verdict
        except RunnerError as error:
            verdict = unrun_judgment(artifact, State.ERROR, error.message).verdict
    return ExternalVerdict(
        runtime=runtime.name,
        verdict=verdict,
        sha256=artifact.joint_digest,
        versions=versions,
    )


def _measure_drift(
    pairs: Sequence[tuple[ExternalRuntime, Artifact]],
    judged: Sequence[ExternalVerdict],
    requests: RecordedRequests,
) -> tuple[RuntimeDrift, ...]:
    """Compare the outputs of each artifact in this process and in the runtimes that ran it."""
    found: tuple[RuntimeDrift, ...] = ()
    for artifact in {artifact.name: artifact for _, artifact in pairs}.values():
        ran = {
            one.runtime: one.verdict
            for one in judged
            if one.verdict.artifact == artifact.name and one.verdict.outputs
        }
        there = [one for one, its in pairs if its.name == artifact.name and one.name in ran]
        if not there:
            continue
        case, own = _request(there[0], artifact, requests).case, requests.candidate_of(artifact)
        targets = {one.name: _ExternalTarget(one, artifact) for one in there}
        sides = {HERE: own, **{name: replace(own, target=one) for name, one in targets.items()}}
        with requests.progress.step(f"compare {artifact.name}", log=f"{artifact.name}-external"):
            found = (*found, *measure_drift(case, sides, ran))
    return found


def _request(
    runtime: ExternalRuntime, artifact: Artifact, requests: RecordedRequests
) -> JudgeRequest:
    """Return the request to judge the artifact there, within the limits that it has here."""
    candidate = requests.candidate_of(artifact)
    judging = apply_exported_tolerances(requests.run.judging, artifact.tolerance)
    limits = judging.tolerance_for(candidate.precision, candidate.target)
    judging = replace(judging, recorded=limits, sensitivity=0, search=None, device=None)
    there = replace(candidate, target=_ExternalTarget(runtime, artifact))
    request = requests.make(artifact, there, judging)
    return replace(request, sensitive=False, labelled=None, recorded_accuracy=None)


class _ExternalTarget(JudgedOnly):
    """An artifact in an external runtime, as the judge sees a format."""

    SUMMARY = "an artifact that runs outside this process"

    def __init__(self, runtime: ExternalRuntime, artifact: Artifact) -> None:
        self.NAME = runtime.name
        self._runtime, self._artifact = runtime, artifact

    def open_runner(self, path: Path, device: str, signature: Signature) -> Runner:  # noqa: ARG002 - the contract's
        """Open the artifact there."""
        return self._runtime.open(path, self._artifact, signature)
