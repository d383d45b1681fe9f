"""The eager side of finishing a prepared folder: the source, or the references in the folder."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from ..core.errors import ErrorCode, Hint, ModelcError, Option, UsageError, unknown_name_error
from ..core.findings import SkippedCheck
from ..core.manifest import Manifest, Pending
from .branch_coverage import accept_recorded, check_accepted
from .eager_reference import EagerReference
from .labelled_accuracy import LabelledFeeds, enter_labelled
from .limit_text import Measuring
from .order import Judging, Source
from .recorded_run import FinishRequest, apply_recorded_judging, source_of_record
from .reference_file import ReferenceFileError, read_references
from .reopen import find_recorded_run
from .run_progress import Progress
from .stored_eager import NotStoredError, compare_stored, open_stored
from .stored_use import SKIPPED_TEXTS

_PREPARE_AGAIN = (
    "; or prepare the folder again without ",
    Option("no-references"),
    ", and it can be finished without the checkpoint",
)


@dataclass(frozen=True, kw_only=True)
class FinishReference:
    """What the steps of a folder are judged by on this host.

    `eager` is the model with its outputs; None if the source is not at hand. `other_feeds` means
    that this run asks for other feeds than the stored ones, `lacks_accuracy` that the preparation
    asked for accuracy and this run does not.
    """

    manifest: Manifest
    folder: Path
    source: Source
    judging: Judging
    progress: Progress
    eager: EagerReference | None = None
    other_feeds: bool = False
    lacks_accuracy: bool = False

    def eager_of(self, pending: Pending) -> EagerReference:
        """Return the eager reference of a step: of the source where it is at hand.

        The stored references are then compared with it.

        Raises:
            ReferenceFileError: there is no source, and the references are missing or damaged.
        """
        if self.eager is not None:
            return self._compare(pending, self.eager)
        if not pending.references:
            raise ReferenceFileError(
                f"{pending.step} has no stored references, and the source is not at hand",
                hint=Hint("give the checkpoint: ", Option("checkpoint", "PATH")),
                code=ErrorCode.NOT_FOUND,
            )
        stored = read_references(self.folder, pending.references, self.manifest)
        found = open_stored(stored, pending.references, self.manifest)
        if self.other_feeds:
            found.skip(SkippedCheck.FEEDS)
        if self.lacks_accuracy:
            found.skip(SkippedCheck.ACCURACY)
        return found

    def _compare(self, pending: Pending, eager: EagerReference) -> EagerReference:
        if not pending.references:
            if self.lacks_accuracy:
                note = f"{pending.step}: not checked: {SKIPPED_TEXTS[SkippedCheck.ACCURACY]}"
                self.progress.note(note, warning=True)
            return eager
        title = f"compare stored references of {pending.step}"
        try:
            with self.progress.step(title, log="eager") as clock:
                stored = read_references(self.folder, pending.references, self.manifest)
                use = compare_stored(stored, pending.references, eager, self.manifest.created)
                clock.detail = f"{len(use.differing)} of {use.feeds} feeds differ"
        except ReferenceFileError as fault:
            self.progress.note(f"{pending.step}: {fault.message}", warning=True)
            return eager
        if self.lacks_accuracy:
            use.skip(SkippedCheck.ACCURACY)
        for note in use.notes:
            self.progress.note(note, warning=True)
        return replace(eager, stored=use)

    def open_labelled(self, measuring: Measuring | None, held: ExitStack) -> LabelledFeeds | None:
        """Open labelled data; eager's predictions are stored where the source is not at hand.

        Raises:
            UsageError: the data is unusable, or predictions on it are not stored.
        """
        eager = self.eager
        if measuring is None or eager is not None:
            return None if eager is None else enter_labelled(measuring, eager, self.progress, held)
        stored = next(one for one in self.manifest.pending if one.references)
        try:
            return enter_labelled(measuring, self.eager_of(stored), self.progress, held)
        except NotStoredError as error:
            raise UsageError(
                f"eager's predictions on {measuring.data.source} are not stored",
                hint=Hint(
                    "give the same ",
                    Option("data"),
                    " as at the preparation, or the checkpoint: ",
                    Option("checkpoint", "PATH"),
                ),
                option="data",
                code=ErrorCode.NOT_FOUND,
            ) from error


def open_finish_reference(
    manifest: Manifest, request: FinishRequest, progress: Progress
) -> FinishReference:
    """Open the source as the manifest records it; without it, rely on stored references.

    Raises:
        ModelcError: the source cannot be used, and no step has references, or the user named its
            place.
    """
    folder, moved = request.out, request.moved
    stored = any(pending.references for pending in manifest.pending)
    judging = accept_recorded(apply_recorded_judging(request.judging, manifest), manifest)
    lacks_accuracy = request.measuring is None and "data" in manifest.order
    try:
        run = find_recorded_run(manifest, folder, moved, request.judging)
        checkpoint = run.read_checkpoint(progress)
        eager = run.open_eager(checkpoint, progress)
    except ModelcError as error:
        if not stored:
            raise _with_hint(error) from error
        if moved.checkpoint is not None or moved.samples is not None:
            raise
        _check_names(judging, manifest)
        progress.note(f"judged by the stored references: {error.message}", warning=True)
        return FinishReference(
            manifest=manifest,
            folder=folder,
            source=source_of_record(manifest, folder, moved),
            judging=judging,
            progress=progress,
            other_feeds=(judging.feeds, judging.seed)
            != (manifest.feeds.count, manifest.feeds.seed),
            lacks_accuracy=lacks_accuracy,
        )
    return FinishReference(
        manifest=manifest,
        folder=folder,
        source=run.source,
        judging=judging,
        progress=progress,
        eager=eager,
        lacks_accuracy=lacks_accuracy,
    )


def _check_names(judging: Judging, manifest: Manifest) -> None:
    """Check that outputs and branches exist, as is done with the source."""
    outputs = manifest.signature.outputs
    for name in judging.by_output:
        if name not in outputs:
            raise unknown_name_error("output in --tolerance or modelc.toml:", name, outputs)
    check_accepted(judging.accept, manifest.branches)


def _with_hint(error: ModelcError) -> ModelcError:
    """Return the error of the source; its hint also says how to do without."""
    return error.at(error.place, hint=Hint(*error.advice.parts, *_PREPARE_AGAIN))
