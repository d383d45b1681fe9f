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
from ..core.verdict import Verdict
from .order import Judging, Source
from .proof import Candidate, prove
from .recorded import check_same, record_beside, recorded_source
from .stage import Stage
from .subject import open_subject, read_checkpoint


def validate_file(
    path: Path,
    source: Source | None = None,
    tell: Tell = silence,
    *,
    judging: Judging | None = None,
    allow_pickle: bool = False,
) -> Verdict:
    """Judge one model file against the eager model of a checkpoint.

    Args:
        path: the model file.
        source: the eager side; None takes the one recorded in the manifest beside the file.
        tell: listens to progress.
        judging: feeds, tolerances, device.
        allow_pickle: must be said again where a manifest says it was needed.

    Raises:
        ModelcError: the file or the checkpoint cannot be used.
    """
    judging = judging or Judging()
    target = target_of(path)
    candidate = Candidate(
        name=path.name, target=target, precision=target.inspect(path).precision, path=path
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
    source = recorded_source(manifest, path.parent, allow_pickle=allow_pickle)
    candidate = replace(candidate, precision=artifact.precision)
    judging = replace(judging, feeds=manifest.feeds.count, seed=manifest.feeds.seed)
    return _judge(candidate, source, judging, tell, manifest)


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
