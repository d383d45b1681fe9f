"""The one way to reopen a recorded folder and to judge an artifact of it again.

Used to validate a folder or a file of it, to finish pending steps, and to look for a wrong layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ..converters.registry import TARGETS, target_named
from ..core.contract import Feed, Target
from ..core.errors import UsageError
from ..core.manifest import Manifest
from ..core.records import Artifact, Checkpoint, sha256_of
from ..core.verdict import Verdict
from ..validators.feeds import NamedFeed
from ..validators.judge import ReferenceOutputs
from .accuracy_gate import apply_recorded_accuracy, gate_accuracy_again
from .branch_coverage import accept_recorded, branch_coverage
from .eager_reference import EagerReference, open_subject, read_checkpoint
from .extra_sizes import add_recorded_sizes
from .fault_sensitivity import measure_sensitivity
from .held_out import load_samples, refer_held_out
from .judge_artifact import Candidate, judge_candidate
from .labelled_accuracy import LabelledFeeds
from .narrow_domain import domain_inputs, narrow_subject
from .order import Judging, Source
from .recorded_run import Moved, apply_recorded_judging, check_same, source_from_record
from .run_progress import Progress
from .worst_feed import (
    add_feed,
    add_found_feed,
    get_worst_feed,
    keep_search_record,
    note_missing_feed,
    show_feed,
)


@dataclass(frozen=True, kw_only=True)
class RecordedRun:
    """An earlier run as its manifest records it, before its checkpoint is read.

    `judging` has the recorded feeds, seed and accepted branches where none are asked for now.
    """

    manifest: Manifest
    folder: Path
    source: Source
    judging: Judging

    def read_checkpoint(self, progress: Progress, *, judged: Path | None = None) -> Checkpoint:
        """Read the checkpoint, and check that it and the samples are the recorded ones.

        Args:
            progress: where progress is reported.
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
        signature = self.manifest.signature
        return open_subject(
            self.source, checkpoint, self.judging, progress, signature, wanted=wanted
        )

    def refer_samples(
        self, artifact: Artifact, eager: EagerReference, progress: Progress
    ) -> tuple[ReferenceOutputs, ...]:
        """Run eager on the held-out samples that the artifact was judged on."""
        return refer_held_out(load_samples(artifact, self.folder), eager, progress)


def find_recorded_run(
    manifest: Manifest, folder: Path, moved: Moved | None, judging: Judging | None
) -> RecordedRun:
    """Return the run that the manifest of `folder` records, with its files where they are now.

    Raises:
        CheckpointError: the checkpoint is not where it was.
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
            f"{judged} and {source.checkpoint} are the same file: it would be compared with itself",
            hint="give the checkpoint it was made from with --against",
        )


@dataclass(frozen=True, kw_only=True)
class RecordedJudge:
    """Judges artifacts of a recorded run as they were judged when they were made.

    `settings` are those of the artifacts' formats. `labelled` is data to measure accuracy on;
    None keeps the recorded accuracy. `replay` is a feed that alone is shown in the verdict.
    """

    run: RecordedRun
    eager: EagerReference
    progress: Progress
    settings: Mapping[str, str]
    labelled: LabelledFeeds | None = None
    replay: Feed | None = None
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

    def judge(self, artifact: Artifact, candidate: Candidate, judging: Judging) -> Verdict:
        """Run the candidate on the feeds of the artifact's record, and judge it.

        These are the feeds of its domain, its extra sizes, the worst feed that a search found,
        and its held-out samples.

        Raises:
            RunnerError: the candidate cannot be opened or run.
        """
        run, progress = self.run, self.progress
        worst = get_worst_feed(run.manifest, artifact)
        held_out = run.refer_samples(artifact, self.eager, progress)
        inputs = domain_inputs(artifact.domain, self.eager)
        eager = narrow_subject(self.eager, inputs, progress)
        eager = add_recorded_sizes(eager, artifact.places)
        eager = add_found_feed(eager, worst, run.folder)
        verdict = judge_feeds(
            candidate, eager, judging, progress, held_out=held_out, replay=self.replay
        )
        missing = note_missing_feed(worst, run.folder)
        verdict = keep_search_record(replace(verdict, notes=(*verdict.notes, *missing)), worst)
        seen = branch_coverage(self.eager, judging.accept, then=run.manifest)
        verdict = seen.judge_recorded(verdict, artifact, run.manifest)
        if self.replay is not None:
            return verdict
        return measure_sensitivity(verdict, candidate, eager, judging, progress, held_out=held_out)

    def gate_accuracy(
        self, artifact: Artifact, candidate: Candidate, verdict: Verdict
    ) -> tuple[Artifact, Verdict]:
        """Measure the accuracy anew where there is labelled data; else apply the recorded one."""
        if self.labelled is None:
            return artifact, apply_recorded_accuracy(verdict, artifact.accuracy)
        return gate_accuracy_again(artifact, candidate, verdict, self.labelled, self.progress)


def judge_feeds(  # noqa: PLR0913 - what `judge_candidate` takes, and the feed to show
    candidate: Candidate,
    eager: EagerReference,
    judging: Judging,
    progress: Progress,
    *,
    held_out: tuple[ReferenceOutputs, ...] = (),
    replay: Feed | None = None,
    restrict: bool = False,
) -> Verdict:
    """Judge the candidate on all feeds, and show the verdict on `replay` alone if it is given.

    The other feeds run as well: the usual size of an output and eager's distance from float64 are
    measured on them, so the figures are those of the first time.
    """
    name = ""
    if replay is not None:
        eager, name = add_feed(eager, held_out, replay)
    verdict = judge_candidate(
        candidate, eager, judging, progress, held_out=held_out, restrict=restrict
    )
    return show_feed(verdict, name) if replay is not None else verdict
