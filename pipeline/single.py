"""Judges one model file; nothing is moved or written."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from ..converters.registry import target_of
from ..core.digest import sha256_of
from ..core.errors import UsageError
from ..core.events import Tell, silence
from ..core.manifest import Manifest
from ..core.precision import Precision
from ..core.verdict import Verdict
from .order import Judging, Source
from .proof import Candidate, prove
from .recorded import Moved, as_recorded, check_same, record_beside, recorded_source
from .stage import Stage
from .subject import open_subject, read_checkpoint


def validate_file(  # noqa: PLR0913 - the options of `modelc validate FILE`, all but one optional
    path: Path,
    source: Source | None = None,
    tell: Tell = silence,
    *,
    judging: Judging | None = None,
    precision: Precision | None = None,
    moved: Moved | None = None,
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

    Raises:
        ModelcError: the file or the checkpoint cannot be used.
    """
    judging = judging or Judging()
    target = target_of(path)
    candidate = Candidate(
        name=path.name, target=target, precision=precision or Precision.FP32, path=path
    )
    if source is not None:
        return _judge(candidate, source, judging, tell)
    beside = record_beside(path)
    if beside is None:
        raise UsageError(
            f"no manifest beside {path} knows it, so there is nothing to compare it with",
            hint="name the eager reference: --against CHECKPOINT --model PKG.MOD:FACTORY --input …",
        )
    manifest, artifact = beside
    source = recorded_source(manifest, path.parent, moved or Moved())
    candidate = replace(candidate, precision=precision or artifact.precision)
    return _judge(candidate, source, as_recorded(judging, manifest), tell, manifest)


def _judge(
    candidate: Candidate,
    source: Source,
    judging: Judging,
    tell: Tell,
    manifest: Manifest | None = None,
) -> Verdict:
    """Open the eager side, as `manifest` records it if given, and prove; no file beside itself."""
    with tempfile.TemporaryDirectory(prefix="modelc-") as logs:
        stage = Stage(tell=tell, logs=Path(logs))
        checkpoint = read_checkpoint(source, stage)
        if checkpoint.digest == sha256_of(candidate.path):
            raise UsageError(
                f"{candidate.path} and {source.checkpoint} are the same file: "
                "it would be compared with itself",
                hint="give the checkpoint it was made from with --against",
            )
        if manifest is not None:
            check_same(checkpoint, manifest, source)
        signature = None if manifest is None else manifest.signature
        subject = open_subject(source, checkpoint, judging, stage, signature)
        return prove(candidate, subject, judging, stage)
