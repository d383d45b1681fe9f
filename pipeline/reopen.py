"""Reopen a recorded folder, and request verdicts on its artifacts again.

Used to validate a folder or a file of it, to finish pending steps, and to find a wrong layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..converters.registry import TARGETS, target_named
from ..core.contract import Target
from ..core.errors import ErrorCode, UsageError
from ..core.manifest import Manifest
from ..core.records import Artifact, Checkpoint, sha256_of
from ..validators.feeds import NamedFeed
from ..validators.judge import ReferenceOutputs
from .accuracy_gate import apply_recorded_gate
from .branch_coverage import accept_recorded, branch_coverage, capture_from_record
from .eager_reference import EagerReference, open_reference, read_checkpoint
from .extra_sizes import add_recorded_sizes
from .held_out import load_samples, refer_held_out
from .judge_case import Candidate, JudgeRequest
from .labelled_accuracy import LabelledFeeds
from .narrow_domain import domain_inputs, narrow_reference
from .order import Judging, Source
from .recorded_run import Moved, apply_recorded_judging, check_same, source_from_record
from .run_progress import Progress
from .token_reference import plan_tokens
from .worst_feed import add_found_feed, get_worst_feed


@dataclass(frozen=True, kw_only=True)
class RecordedRun:
    """An earlier run as its manifest records it, before its checkpoint is read.

    `judging` has the recorded feeds, seed and accepted branches if none are given.
    """

    manifest: Manifest
    folder: Path
    source: Source
    judging: Judging

    def read_checkpoint(self, progress: Progress, *, judged: Path | None = None) -> Checkpoint:
        """Read the checkpoint, and check that it and the samples are the recorded ones.

        Args:
            progress: the progress reporter.
            judged: the file that is to be compared with the checkpoint.

        Raises:
            CheckpointError: one of them is missing or has changed.
            UsageError: `judged` is the checkpoint itself.
        """
        checkpoint = read_checkpoint(self.source, progress)
        if judged is not None:
            check_not_itself(judged, checkpoint, self.source)
        check_same(checkpoint, self.manifest, self.source)
        return checkpoint

    def open_eager(
        self,
        checkpoint: Checkpoint,
        progress: Progress,
        wanted: Callable[[NamedFeed], bool] | None = None,
    ) -> EagerReference:
        """Load the model and run it on the recorded feeds, or on those that are `wanted`."""
        judging, signature = self.judging, self.manifest.signature
        eager = open_reference(self.source, checkpoint, judging, progress, signature, wanted=wanted)
        if wanted is not None:
            return eager
        recorded = self.manifest.feeds.tokens if judging.text is None else None
        return eager.with_tokens(recorded or plan_tokens(eager, judging, progress))

    def refer_samples(
        self, artifact: Artifact, eager: EagerReference, progress: Progress
    ) -> tuple[ReferenceOutputs, ...]:
        """Run eager on the held-out samples that the artifact was judged on."""
        return refer_held_out(load_samples(artifact, self.folder), eager, progress)


def find_recorded_run(
    manifest: Manifest, folder: Path, moved: Moved | None, judging: Judging | None
) -> RecordedRun:
    """Return the run that the manifest of `folder` records, with its files at their current places.

    Raises:
        CheckpointError: the checkpoint is not at its recorded place.
        ConsentError: a pickle must be allowed again.
    """
    judging = apply_recorded_judging(judging or Judging(), manifest)
    return RecordedRun(
        manifest=manifest,
        folder=folder,
        source=source_from_record(manifest, folder, moved or Moved()),
        judging=accept_recorded(judging, manifest),
    )


def check_not_itself(judged: Path, checkpoint: Checkpoint, source: Source) -> None:
    """Check that the file to judge is not the checkpoint.

    Raises:
        UsageError: it is.
    """
    if checkpoint.digest == sha256_of(judged):
        raise UsageError(
            f"{judged} and {source.name} are the same file",
            hint="give the checkpoint that it was built from with --against",
            code=ErrorCode.SAME_FILE,
        )


@dataclass(frozen=True, kw_only=True)
class RecordedRequests:
    """Makes the requests to judge artifacts of a recorded run as they were judged when made.

    `settings` are those of the artifacts' formats. `labelled` is data to measure accuracy on;
    None keeps the recorded accuracy.
    """

    run: RecordedRun
    eager: EagerReference
    progress: Progress
    settings: Mapping[str, str]
    labelled: LabelledFeeds | None = None
    targets: tuple[Target, ...] = TARGETS

    def candidate_of(self, artifact: Artifact) -> Candidate:
        """Return the artifact as a candidate, of its recorded precision."""
        return Candidate(
            name=artifact.name,
            target=target_named(artifact.target, self.targets),
            precision=artifact.limit_precision,
            path=self.run.folder / artifact.files[0].name,
            settings=self.settings,
        )

    def make(self, artifact: Artifact, candidate: Candidate, judging: Judging) -> JudgeRequest:
        """Return the request to judge the candidate by the artifact's record.

        Its feeds are those of its domain, its extra sizes, the worst feed that a search found,
        and its held-out samples. Its branches and its accuracy gate are the recorded ones.
        """
        manifest, folder, progress = self.run.manifest, self.run.folder, self.progress
        worst, verdict = get_worst_feed(manifest, artifact), manifest.verdict_of(artifact.name)
        inputs = domain_inputs(artifact.domain, self.eager)
        eager = narrow_reference(self.eager, inputs, progress)
        eager, notes = add_found_feed(add_recorded_sizes(eager, artifact.places), worst, folder)
        branches = branch_coverage(self.eager, judging.accept, then=manifest)
        return JudgeRequest(
            candidate=candidate,
            eager=eager,
            judging=judging,
            progress=progress,
            held_out=self.run.refer_samples(artifact, self.eager, progress),
            recorded_worst=worst,
            notes=notes,
            recorded_host=({} if verdict is None else verdict.host),
            capture=capture_from_record(branches, artifact, manifest),
            sensitive=True,
            labelled=apply_recorded_gate(self.labelled, artifact.accuracy),
            recorded_accuracy=artifact.accuracy,
        )
