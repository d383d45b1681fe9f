"""Find out what a calibration source is, open it, and read its samples by place and row."""

from __future__ import annotations

import difflib
import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core.contract import Feed
from ..core.errors import UsageError, refuse_pipe
from ..core.nested_values import is_loader_spec, load_items
from .calibration_options import RANDOM, CalibrationOptions
from .calibration_report import FindingCollector, FindingKind
from .feed_form import FeedForm
from .preprocess import Preprocess
from .sample_content import SampleContent, SampleError
from .sample_formats import SAMPLE_SUFFIXES, SHARD_SUFFIX, ImageReaders, SampleSource
from .sample_sources import (
    FolderSource,
    LoaderSource,
    ShardSource,
    SyntheticSource,
    list_sample_files,
)

_SYNTHETIC_COUNT = (
    4096  # drawn samples there are at most, where as many as there are were asked for
)


@dataclass(frozen=True, kw_only=True)
class LoaderHooks:
    """What the pipeline lends to a look at samples.

    `load` gives the object that `package.module:loader` names, `draw` the drawn sample i.
    `validation` are the feeds that the model is judged on; `own` says whether their values are
    the user's, or drawn like the user's: others say little of real data.
    """

    load: Callable[[str], object]
    draw: Callable[[int], Feed]
    validation: Sequence[Feed] = ()
    own: bool = False


@dataclass(frozen=True, kw_only=True)
class OpenedSource:
    """A source, who reads its images, and whether samples are still to be chosen from it."""

    source: SampleSource
    images: ImageReaders
    choose: bool = False


def open_source(
    options: CalibrationOptions,
    form: FeedForm,
    wanted: int,
    lent: LoaderHooks,
    findings: FindingCollector,
) -> OpenedSource:
    """Open a folder, a file, a loader, or the drawn samples; `wanted` are read at most.

    Raises:
        UsageError: there is no such source, or no sample in it.
    """
    path = Path(options.source)
    images = ImageReaders(options.preprocess, form.signature)
    chooses = options.selection == RANDOM
    if options.source == RANDOM:
        findings.add(
            FindingKind.DRAWN, "the samples are drawn, not real: true ranges may be far off"
        )
        return OpenedSource(
            source=SyntheticSource(lent.draw, min(wanted, _SYNTHETIC_COUNT)), images=images
        )
    if is_loader_spec(options.source):
        loader = LoaderSource(options.source, load_items(options.source, lent.load), form)
        loader.spool(wanted, options.seed if chooses else None)
        source: SampleSource = loader
    else:
        source = _open_path(path, form, images, findings)
    if not len(source):
        told = ", ".join(f"{count:,} {what}" for what, count in source.skipped.items())
        raise UsageError(
            f"there are no samples in {options.source}" + (f", but {told}" if told else ""),
            hint=f"samples are {' '.join(SAMPLE_SUFFIXES)}",
        )
    return OpenedSource(source=source, images=images, choose=chooses and source.kind != "loader")


def _open_path(
    path: Path, form: FeedForm, images: ImageReaders, findings: FindingCollector
) -> SampleSource:
    if not path.exists():
        raise _no_source_error(path)
    refuse_pipe(path)
    listing = list_sample_files(path)
    for kind, count in listing.others.items():
        findings.add(
            FindingKind.MIXED,
            f"{count:,} {kind} beside {len(listing.groups[listing.main]):,} {listing.main} "
            "are not used",
            topic=kind,
        )
    if listing.main == SHARD_SUFFIX:
        return ShardSource(listing.groups[SHARD_SUFFIX], form.names, images)
    return FolderSource(listing, form.names, images)


def _no_source_error(path: Path) -> UsageError:
    names = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, names, n=1)
    hint = "name a folder of samples, a shard, PKG.MOD:LOADER, or random"
    return UsageError(
        f"no such calibration data: {path}",
        hint=f"did you mean {path.parent / near[0]}?" if near else hint,
    )


def report_opened(
    opened: OpenedSource, given: Preprocess | None, findings: FindingCollector
) -> None:
    """What was assumed of images and what was passed over; told after the pass."""
    for assumed in opened.images.assumed:
        findings.add(FindingKind.ASSUMED, assumed)
    if given is not None and not opened.images.settled:
        findings.add(FindingKind.ASSUMED, "--preprocess has no effect: the samples hold no images")
    if opened.source.skipped:
        told = ", ".join(f"{count:,} {what}" for what, count in opened.source.skipped.items())
        findings.add(FindingKind.SKIPPED, f"passed over: {told}")


# Samples by place and row: reads a place once while its rows are taken one after another.


@dataclass(frozen=True, slots=True)
class SampleRef:
    """One sample: a place of the source, and the row in what it holds."""

    place: int
    row: int


@dataclass(frozen=True, kw_only=True)
class FeedUnit:
    """One feed: the samples that it is stacked of, and the SHA-256 of it as it is fed."""

    refs: tuple[SampleRef, ...]
    digest: bytes


class SampleReader:
    """Gives samples as they are fed; holds no more than the last place that was read."""

    def __init__(self, source: SampleSource, form: FeedForm) -> None:
        self.source = source
        self.form = form
        self.counts: dict[int, int] = {}  # rows of the places read so far
        self._last: tuple[int, SampleContent, list[Feed]] | None = None

    def open(self, place: int) -> tuple[SampleContent, list[Feed]]:
        """What a place holds, and its rows.

        Raises:
            SampleError: it cannot be read, or cut into samples.
        """
        if self._last is None or self._last[0] != place:
            self._last = None  # free it first: both together may be large
            content = self.source.read(place)
            self._last = (place, content, self.form.rows(content.parts))
            self.counts[place] = len(self._last[2])
        return self._last[1], self._last[2]

    def row(self, ref: SampleRef) -> Feed:
        """One sample as it is fed, before stacking.

        Raises:
            SampleError: it cannot be fed.
        """
        rows = self.open(ref.place)[1]
        if ref.row >= len(rows):
            raise IndexError(f"{self.name(ref)} is gone")
        return self.form.fit(rows[ref.row])

    def feed(self, unit: FeedUnit) -> Feed:
        """A feed, read again.

        Raises:
            SampleError: it cannot be fed any more.
        """
        return self.form.stack([self.row(ref) for ref in unit.refs])

    def name(self, ref: SampleRef) -> str:
        """What a finding calls the sample."""
        several = self.counts.get(ref.place, 1) > 1
        return self.source.name(ref.place) + (f" row {ref.row}" if several else "")

    def _rows_of(self, place: int) -> range:
        """The rows of a place; one for a place that cannot be read, so that it is looked at."""
        try:
            return range(len(self.open(place)[1]))
        except SampleError:
            return range(1)

    def refs(self, wanted: int, seed: int | None = None) -> Iterator[SampleRef]:
        """At least `wanted` samples if there are so many, found while they are taken.

        In their own order, or with a seed a random choice: of places where a place is a sample, of
        all rows where the first place holds several, which takes one more reading of everything.
        """
        places = range(len(self.source))
        if seed is None:
            yield from (SampleRef(place, row) for place in places for row in self._rows_of(place))
            return
        chance = random.Random(seed)
        if places and len(self._rows_of(0)) > 1:
            refs = [SampleRef(place, row) for place in places for row in self._rows_of(place)]
            chosen = chance.sample(refs, min(wanted, len(refs)))
            yield from sorted(chosen, key=lambda ref: (ref.place, ref.row))
            return
        for place in chance.sample(places, len(places)):
            yield from (SampleRef(place, row) for row in self._rows_of(place))


def feed_digest(feed: Feed) -> bytes:
    """The SHA-256 of a feed: names, dtypes, shapes and bytes, in order."""
    digest = hashlib.sha256()
    for name, array in feed.items():
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.digest()
