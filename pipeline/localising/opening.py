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
from ..beyond import beyond_of
from ..held_out import loose_feeds, refer, stored
from ..order import Judging, Source
from ..recorded import Moved, as_recorded, changed_file, check_same, recorded_source
from ..replaying import with_feed
from ..stage import Stage
from ..subject import Subject, open_subject, read_checkpoint
from ..worst import read_feed, worst_of
from .localise import Suspect
from .localise import worst_of as worst_among
from .measure import SCALES

_TENFOLD = 20.0  # dB


@dataclass(frozen=True, kw_only=True)
class OnRecord:
    """What a manifest says of a file; `folder` is the manifest's."""

    folder: Path
    manifest: Manifest
    artifact: Artifact

    @property
    def worst(self) -> WorstFeed | None:
        """The worst feed that was kept, if the file is still the one that it was kept of."""
        worst = worst_of(self.manifest, self.artifact)
        if worst is None or not (self.folder / worst.file).is_file():
            return None
        return None if changed_file(self.artifact, self.folder) else worst


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is to be looked at: `feed` is a feed's name, None for the artifact's worst."""

    suspect: Suspect
    feed: str | None
    record: OnRecord | None
    judging: Judging
    stage: Stage


@dataclass(frozen=True, kw_only=True)
class _Eager:
    """The eager side before it is opened; `record` is None where it is not the recorded one."""

    source: Source
    checkpoint: Checkpoint
    judging: Judging
    record: OnRecord | None

    def open(self, stage: Stage, wanted: Callable[[NamedFeed], bool] | None) -> Subject:
        signature: Signature | None = None
        if self.record is not None:
            signature = self.record.manifest.signature
        return open_subject(
            self.source, self.checkpoint, self.judging, stage, signature, wanted=wanted
        )


def opened_for(asked: Asked, source: Source | None, moved: Moved) -> tuple[Subject, str]:
    """Eager with the feed to look at among its references, and that feed's name.

    The feed that a manifest keeps as the artifact's worst is taken as it is, one that a search
    found too. Where none is kept, the worst is looked for: among the basic feeds and held-out
    samples, and among all where the artifact is right on those.

    Raises:
        UsageError: nothing says what eager is, or no feed has the name.
        ModelcError: eager or the artifact cannot be opened or run.
    """
    eager = _eager(asked, source, moved)
    worst = None if eager.record is None else eager.record.worst
    if worst is not None and eager.record is not None and asked.feed in (None, worst.feed):
        feed = read_feed(eager.record.folder / worst.file)
        subject = eager.open(asked.stage, lambda _: False)
        return with_feed(subject, (), feed, name=worst.feed)
    if asked.feed is not None:
        return _named(asked.feed, eager, asked.stage), asked.feed
    subject, name, ratio = _searched(asked, eager, lambda feed: feed.basic)
    if ratio < _clearly_wrong(asked.suspect.precision):
        return subject, name
    del subject  # a large model is not held twice
    subject, name, _ = _searched(asked, eager, None)
    return subject, name


def _clearly_wrong(precision: Precision) -> float:
    """In dB: with less than this the artifact is wrong on a feed, and no worse one is looked for.

    The table's limit, or ten times the error that a single layer may have, what is stricter.
    """
    return max(tolerance_for(precision).min_sqnr, SCALES[precision].plain - _TENFOLD)


def _eager(asked: Asked, source: Source | None, moved: Moved) -> _Eager:
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
        return _Eager(source=source, checkpoint=checkpoint, judging=asked.judging, record=None)
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
    found = recorded_source(record.manifest, record.folder, moved)
    checkpoint = read_checkpoint(found, stage)
    check_same(checkpoint, record.manifest, found)
    changed = changed_file(record.artifact, record.folder)
    if changed:
        stage.note(changed, warning=True)
    judging = as_recorded(asked.judging, record.manifest)
    return _Eager(source=found, checkpoint=checkpoint, judging=judging, record=record)


def _held_out(eager: _Eager, subject: Subject, stage: Stage) -> tuple[ReferenceOutputs, ...]:
    if eager.record is None:
        return ()
    feeds = stored(eager.record.artifact, eager.record.folder)
    return refer(feeds, subject, stage) if feeds else ()


def _named(name: str, eager: _Eager, stage: Stage) -> Subject:
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
        held_out = _held_out(eager, subject, stage)
        subject = replace(subject, references=held_out)
        drawn += [one.feed.name for one in held_out]
    if name not in drawn:
        raise unknown("feed", name, drawn)
    if not subject.references:
        reason = next((one.skipped for one in subject.feeds.drawn if one.skipped), "it is rejected")
        raise UsageError(f"feed {name!r} cannot be looked at: {reason}", hint="take another --feed")
    return subject


def _searched(
    asked: Asked, eager: _Eager, wanted: Callable[[NamedFeed], bool] | None
) -> tuple[Subject, str, float]:
    """Eager on these feeds and on held-out samples; the worst that counts, its SQNR in dB."""
    subject = eager.open(asked.stage, wanted)
    held_out = _held_out(eager, subject, asked.stage)
    loose = loose_feeds(subject, held_out)
    loose |= beyond_of(subject.references, asked.suspect.precision)
    references: Sequence[ReferenceOutputs] = (*subject.references, *held_out)
    with asked.stage.step("find the worst feed", log="debug-feeds") as clock:
        suspect = replace(asked.suspect, loose=loose)
        worst, ratio = worst_among(suspect, subject, references)
        clock.detail = f"{worst.feed.name} of {len(references)}"
    return replace(subject, references=(worst,)), worst.feed.name, ratio
