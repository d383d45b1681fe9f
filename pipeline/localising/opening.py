"""The eager side of an artifact that is looked into: no more feeds than the look needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...core.errors import Hint, Option, UsageError
from ...core.findings import WorstFeed
from ...core.manifest import Manifest
from ...core.names import unknown
from ...core.precision import Precision
from ...core.records import Artifact, Checkpoint
from ...core.signature import Signature
from ...validators.feeds import NamedFeed
from ...validators.judge import ReferenceOutputs
from ...validators.tolerance import tolerance_for
from ..beyond import beyond_feeds
from ..held_out import load_samples, loose_feeds, refer_held_out
from ..order import Judging, Source
from ..recorded import (
    Moved,
    apply_recorded_judging,
    check_same,
    describe_changed_file,
    source_from_record,
)
from ..replaying import add_feed
from ..stage import Progress
from ..subject import EagerReference, open_subject, read_checkpoint
from ..worst import get_worst_feed, read_feed
from .localise import SuspectArtifact
from .localise import worst_reference as worst_among
from .measure import PRECISION_SCALES

_TENFOLD_DB = 20.0  # dB


@dataclass(frozen=True, kw_only=True)
class RecordedArtifact:
    """What a manifest says of a file; `folder` is the manifest's."""

    folder: Path
    manifest: Manifest
    artifact: Artifact

    @property
    def worst(self) -> WorstFeed | None:
        """The worst feed that was kept, if the file is still the one that it was kept of."""
        worst = get_worst_feed(self.manifest, self.artifact)
        if worst is None or not (self.folder / worst.file).is_file():
            return None
        return None if describe_changed_file(self.artifact, self.folder) else worst


@dataclass(frozen=True, kw_only=True)
class LocaliseRequest:
    """What is to be looked at: `feed` is a feed's name, None for the artifact's worst."""

    suspect: SuspectArtifact
    feed: str | None
    record: RecordedArtifact | None
    judging: Judging
    stage: Progress


@dataclass(frozen=True, kw_only=True)
class _UnopenedEager:
    """The eager side before it is opened; `record` is None where it is not the recorded one."""

    source: Source
    checkpoint: Checkpoint
    judging: Judging
    record: RecordedArtifact | None

    def open(self, stage: Progress, wanted: Callable[[NamedFeed], bool] | None) -> EagerReference:
        signature: Signature | None = None
        if self.record is not None:
            signature = self.record.manifest.signature
        return open_subject(
            self.source, self.checkpoint, self.judging, stage, signature, wanted=wanted
        )


def open_for_localising(
    asked: LocaliseRequest, source: Source | None, moved: Moved
) -> tuple[EagerReference, str]:
    """Eager with the feed to look at among its references, and that feed's name.

    The feed that a manifest keeps as the artifact's worst is taken as it is, one that a search
    found too. Where none is kept, the worst is looked for: among the basic feeds and held-out
    samples, and among all where the artifact is right on those.

    Raises:
        UsageError: nothing says what eager is, or no feed has the name.
        ModelcError: eager or the artifact cannot be opened or run.
    """
    eager = _find_eager(asked, source, moved)
    worst = None if eager.record is None else eager.record.worst
    if worst is not None and eager.record is not None and asked.feed in (None, worst.feed):
        feed = read_feed(eager.record.folder / worst.file)
        subject = eager.open(asked.stage, lambda _: False)
        return add_feed(subject, (), feed, name=worst.feed)
    if asked.feed is not None:
        return _open_named_feed(asked.feed, eager, asked.stage), asked.feed
    subject, name, ratio = _open_worst_feed(asked, eager, lambda feed: feed.basic)
    if ratio < _clearly_wrong_db(asked.suspect.precision):
        return subject, name
    del subject  # a large model is not held twice
    subject, name, _ = _open_worst_feed(asked, eager, None)
    return subject, name


def _clearly_wrong_db(precision: Precision) -> float:
    """In dB: with less than this the artifact is wrong on a feed, and no worse one is looked for.

    The table's limit, or ten times the error that a single layer may have, what is stricter.
    """
    return max(tolerance_for(precision).min_sqnr, PRECISION_SCALES[precision].plain - _TENFOLD_DB)


def _find_eager(asked: LocaliseRequest, source: Source | None, moved: Moved) -> _UnopenedEager:
    """Where eager is: as it is given, or as the manifest says."""
    record, stage = asked.record, asked.stage
    if source is not None and record is not None and not (source.inputs or source.samples):
        moved = replace(
            moved, checkpoint=source.checkpoint, allow_pickle=source.allow_pickle,
            trust=source.trust,
        )  # fmt: skip
        source = None
    if source is not None:
        checkpoint = read_checkpoint(source, stage)
        return _UnopenedEager(
            source=source, checkpoint=checkpoint, judging=asked.judging, record=None
        )
    if record is None:
        raise UsageError(
            f"no manifest beside {asked.suspect.path} knows it, so there is nothing to compare it"
            " with",
            hint=Hint(
                "name the eager reference: --against CHECKPOINT ",
                Option("model", "PKG.MOD:FACTORY"),
                " ",
                Option("input", "…"),
            ),
            option="model",
        )
    found = source_from_record(record.manifest, record.folder, moved)
    checkpoint = read_checkpoint(found, stage)
    check_same(checkpoint, record.manifest, found)
    changed = describe_changed_file(record.artifact, record.folder)
    if changed:
        stage.note(changed, warning=True)
    judging = apply_recorded_judging(asked.judging, record.manifest)
    return _UnopenedEager(source=found, checkpoint=checkpoint, judging=judging, record=record)


def _refer_recorded_samples(
    eager: _UnopenedEager, subject: EagerReference, stage: Progress
) -> tuple[ReferenceOutputs, ...]:
    if eager.record is None:
        return ()
    feeds = load_samples(eager.record.artifact, eager.record.folder)
    return refer_held_out(feeds, subject, stage) if feeds else ()


def _open_named_feed(name: str, eager: _UnopenedEager, stage: Progress) -> EagerReference:
    """Eager on the feed of this name alone, drawn or held out.

    Raises:
        UsageError: there is none.
    """
    drawn: list[str] = []

    def is_it(feed: NamedFeed) -> bool:
        drawn.append(feed.name)
        return feed.name == name

    subject = eager.open(stage, is_it)
    if name not in drawn:
        held_out = _refer_recorded_samples(eager, subject, stage)
        subject = replace(subject, references=held_out)
        drawn += [one.feed.name for one in held_out]
    if name not in drawn:
        raise unknown("feed", name, drawn)
    if not subject.references:
        reason = next((one.skipped for one in subject.feeds.drawn if one.skipped), "it is rejected")
        raise UsageError(f"feed {name!r} cannot be looked at: {reason}", hint="take another --feed")
    return subject


def _open_worst_feed(
    asked: LocaliseRequest, eager: _UnopenedEager, wanted: Callable[[NamedFeed], bool] | None
) -> tuple[EagerReference, str, float]:
    """Eager on these feeds and on held-out samples; the worst that counts, its SQNR in dB."""
    subject = eager.open(asked.stage, wanted)
    held_out = _refer_recorded_samples(eager, subject, asked.stage)
    loose = loose_feeds(subject, held_out)
    loose |= beyond_feeds(subject.references, asked.suspect.precision)
    references: Sequence[ReferenceOutputs] = (*subject.references, *held_out)
    with asked.stage.step("find the worst feed", log="debug-feeds") as clock:
        suspect = replace(asked.suspect, loose=loose)
        worst, ratio = worst_among(suspect, subject, references)
        clock.detail = f"{worst.feed.name} of {len(references)}"
    return replace(subject, references=(worst,)), worst.feed.name, ratio
