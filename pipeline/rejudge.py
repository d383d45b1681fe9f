"""`modelc validate --rejudge`: other tolerances on what a manifest measured; nothing is run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..core.errors import UsageError
from ..core.events import Tell, silence
from ..core.manifest import Manifest
from ..core.names import unknown
from ..core.records import REJECTED, Artifact, step_of
from ..core.verdict import ReasonCode, State, Tolerance, Verdict
from ..validators.apply_tolerance import apply_tolerance
from .folder import OutputFolder, open_folder
from .manifest_file import without_artifacts
from .order import Judging
from .provenance.sealing import unbind_artifact
from .recorded import describe_changed_file, drop_keys, load_manifest
from .revalidate import replace_verdict
from .stage import Progress
from .worst import place_worst_feed


def rejudge_folder(folder: Path, judging: Judging, tell: Tell = silence) -> Manifest:
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
            raise unknown("output in the tolerances", name, manifest.signature.outputs)
    judged.sort(key=lambda one: not one.rejected)  # those first, before others take their places
    with open_folder(folder) as place:
        place.own(file.name for file in manifest.files)
        stage = Progress(tell=tell, logs=place.logs)
        names = tuple(step_of(a.name) for a in judged)
        failures = tuple(one for one in manifest.failures if one.step not in names)
        done = replace(manifest, steps=names, failures=failures)
        for artifact in judged:
            verdict = _judge_recorded(artifact, manifest, judging, folder)
            done = _place_artifact(done, artifact, verdict, place, stage)
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
        )
    verdict = apply_tolerance(verdict, _new_tolerance(verdict, artifact, judging), told)
    changed = "" if verdict.state is State.ERROR else describe_changed_file(artifact, folder)
    refused = artifact.rejected and not verdict.passed  # for its own reasons, or this one
    return (
        verdict.with_fault(ReasonCode.CHANGED_FILE, changed) if changed and not refused else verdict
    )


def _new_tolerance(verdict: Verdict, artifact: Artifact, judging: Judging) -> Tolerance:
    """What is asked for now, in place of what the verdict was within."""
    return replace(judging, recorded=verdict.tolerance).tolerance_for(artifact.held_to)


def _place_artifact(
    manifest: Manifest, artifact: Artifact, verdict: Verdict, place: OutputFolder, stage: Progress
) -> Manifest:
    """The manifest with the verdict, and the files where they belong by it."""
    if artifact.rejected and verdict.passed:
        return _restore_artifact(manifest, artifact, verdict, place, stage)
    if not artifact.rejected:
        artifact = replace(artifact, tolerance=verdict.tolerance)
        artifacts = (artifact if a.name == artifact.name else a for a in manifest.artifacts)
        return replace_verdict(
            replace(manifest, artifacts=tuple(artifacts)), artifact, verdict, place
        )
    others = tuple(v for v in manifest.verdicts if v.artifact != artifact.name)
    return replace(unbind_artifact(manifest, artifact.name), verdicts=(*others, verdict))


def _restore_artifact(
    manifest: Manifest, artifact: Artifact, verdict: Verdict, place: OutputFolder, stage: Progress
) -> Manifest:
    """An artifact that passes now, back under its name; one that is there already stays."""
    name = step_of(artifact.name)
    if any(one.name == name for one in manifest.artifacts):
        stage.note(f"{artifact.name} passes now, and stays: {name} is there already", warning=True)
        others = tuple(v for v in manifest.verdicts if v.artifact != artifact.name)
        return replace(unbind_artifact(manifest, artifact.name), verdicts=(*others, verdict))
    files = tuple(replace(file, name=step_of(file.name)) for file in artifact.files)
    place.accept(files, place.path / REJECTED)
    back = replace(
        artifact, name=name, files=files, rejected=False, tolerance=verdict.tolerance, seal=""
    )
    slim = without_artifacts(manifest, {artifact.name})
    verdict = replace(verdict, artifact=name)
    verdict = place_worst_feed(verdict, place, back.files[0].name, was=artifact.name)
    return replace(slim, artifacts=(*slim.artifacts, back), verdicts=(*slim.verdicts, verdict))
