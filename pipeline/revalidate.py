"""Validates an output folder again from its manifest alone: digests first, then every verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ..converters.registry import TARGETS, target_named
from ..core.contract import Target
from ..core.errors import RunnerError
from ..core.events import Tell, silence
from ..core.manifest import Manifest
from ..core.records import Artifact
from ..core.verdict import State, Tolerance, Verdict
from ..validators.tolerance import tolerance_for
from .folder import REJECTED, OutputFolder, opened
from .manifest_file import without, write_manifest
from .order import Judging
from .proof import Candidate, prove
from .recorded import Moved, as_recorded, changed_file, check_same, manifest_of, recorded_source
from .stage import Stage
from .subject import open_subject, read_checkpoint


def validate_folder(
    folder: Path,
    tell: Tell = silence,
    *,
    moved: Moved | None = None,
    judging: Judging | None = None,
) -> Manifest:
    """Check digests and judge every artifact again; what fails now moves to `rejected/`.

    Args:
        folder: an output folder.
        tell: listens to progress.
        moved: where checkpoint and samples are now.
        judging: what is not given in it is as recorded: feeds, seed, tolerances.

    Raises:
        ModelcError: the folder or the checkpoint cannot be used.
    """
    manifest = manifest_of(folder)
    source = recorded_source(manifest, folder, moved or Moved())
    judging = as_recorded(judging or Judging(), manifest)
    with opened(folder) as place:
        place.own(file.name for file in manifest.files)
        stage = Stage(tell=tell, logs=place.logs)
        now = read_checkpoint(source, stage)
        check_same(now, manifest, source)
        subject = open_subject(source, now, judging, stage, manifest.signature)
        done = replace(manifest, steps=tuple(a.name for a in manifest.artifacts), failures=())
        for artifact in manifest.artifacts:
            if not artifact.rejected:
                asked = _as_exported(judging, artifact.tolerance)
                verdict = judge_again(
                    artifact, folder, asked, lambda c, j: prove(c, subject, j, stage)
                )
                done = _with_verdict(done, artifact, verdict, place)
                write_manifest(done, folder)  # each time: a file may just have been moved
    return done


def _as_exported(judging: Judging, then: Tolerance | None) -> Judging:
    """The tolerances of the export, where none are asked for now."""
    if then is None:
        return judging
    return replace(
        judging,
        atol=then.atol if judging.atol is None else judging.atol,
        rtol=then.rtol if judging.rtol is None else judging.rtol,
        min_sqnr=then.min_sqnr if judging.min_sqnr is None else judging.min_sqnr,
    )


def judge_again(
    artifact: Artifact,
    folder: Path,
    judging: Judging,
    prove_it: Callable[[Candidate, Judging], Verdict],
    targets: tuple[Target, ...] = TARGETS,
) -> Verdict:
    """Digest first; only an unchanged file is run."""
    changed = changed_file(artifact, folder)
    if changed:
        return _refusal(artifact, judging, State.FAILED, changed)
    candidate = Candidate(
        name=artifact.name,
        target=target_named(artifact.target, targets),
        precision=artifact.precision,
        path=folder / artifact.files[0].name,
    )
    try:
        return prove_it(candidate, judging)
    except RunnerError as error:
        return _refusal(artifact, judging, State.ERROR, error.message)


def _refusal(artifact: Artifact, judging: Judging, state: State, reason: str) -> Verdict:
    """A verdict on a file that was not run."""
    return Verdict(
        artifact=artifact.name,
        state=state,
        reason=reason,
        device=judging.device,
        tolerance=tolerance_for(artifact.precision),
        feeds=(),
        outputs=(),
    )


def _with_verdict(
    manifest: Manifest, artifact: Artifact, verdict: Verdict, place: OutputFolder
) -> Manifest:
    """The manifest with the new verdict; an artifact that fails now is moved away."""
    if verdict.passed:
        others = tuple(v for v in manifest.verdicts if v.artifact != artifact.name)
        return replace(manifest, verdicts=(*others, verdict))
    there = [file for file in artifact.files if (place.path / file.name).exists()]
    moved = replace(
        artifact,
        name=f"{REJECTED}/{artifact.name}",
        files=place.reject(there, place.path) or artifact.files,
        rejected=True,
    )
    slim = without(manifest, {artifact.name, moved.name})
    return replace(
        slim,
        artifacts=(*slim.artifacts, moved),
        verdicts=(*slim.verdicts, replace(verdict, artifact=moved.name)),
    )
