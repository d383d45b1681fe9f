"""Open a calibration source, and read its samples by place and row."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core.contract import Feed
from ..core.errors import ErrorCode, UsageError, nearest_files, refuse_pipe
from ..core.nested_values import is_loader_spec, load_items
from ..core.preprocess import Preprocess
from .calibration_options import RANDOM, CalibrationOptions
from .calibration_report import FindingCollector, FindingKind
from .feed_form import FeedForm
from .sample_content import SampleContent, SampleError
from .sample_formats import SAMPLE_SUFFIXES, SHARD_SUFFIX, ImageReaders
from .sample_sources import (
    SampleSource,
    draw_samples,
    list_sample_files,
    open_folder,
    open_loader,
    open_shards,
)

_SYNTHETIC_COUNT = 4096  # the most synthetic samples when all are requested


@dataclass(frozen=True, kw_only=True)
class LoaderHooks:
    """Functions and feeds that the pipeline provides.

    `load` imports `package.module:loader`, `draw` draws synthetic sample i. `validation` are the
    validation feeds; `own` says whether their values are the user's or drawn like the user's.
    """

    load: Callable[[str], object]
    draw: Callable[[int], Feed]
    validation: Sequence[Feed] = ()
    own: bool = False


def open_source(
    options: CalibrationOptions,
    form: FeedForm,
    wanted: int,
    hooks: LoaderHooks,
    findings: FindingCollector,
) -> tuple[SampleSource, ImageReaders]:
    """Open a folder, a file, a loader or synthetic samples; read at most `wanted`.

    Raises:
        UsageError: the source does not exist or has no samples.
    """
    path = Path(options.source)
    images = ImageReaders(options.preprocess, form.signature)
    if options.source == RANDOM:
        findings.add(FindingKind.DRAWN, "the samples are synthetic: real ranges may differ")
        return draw_samples(hooks.draw, min(wanted, _SYNTHETIC_COUNT)), images
    if is_loader_spec(options.source):
        items = load_items(options.source, hooks.load)
        seed = options.seed if options.selection == RANDOM else None
        source = open_loader(options.source, items, form, wanted, seed)
    else:
        source = _open_path(path, form, images, findings)
    if not source.count:
        skip_counts = _count_text(source.skip_counts)
        raise UsageError(
            f"there are no samples in {options.source}"
            + (f", but {skip_counts}" if skip_counts else ""),
            hint=f"samples are {' '.join(SAMPLE_SUFFIXES)}",
            code=ErrorCode.NO_SAMPLES,
        )
    return source, images


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
        return open_shards(listing.groups[SHARD_SUFFIX], form.names, images)
    return open_folder(listing, form.names, images)


def _no_source_error(path: Path) -> UsageError:
    near = nearest_files(path)
    hint = "name a folder of samples, a shard, PKG.MOD:LOADER, or random"
    return UsageError(
        f"no such calibration data: {path}",
        hint=f"did you mean {near[0]}?" if near else hint,
        code=ErrorCode.NOT_FOUND,
    )


def report_opened(
    source: SampleSource,
    images: ImageReaders,
    given: Preprocess | None,
    findings: FindingCollector,
) -> None:
    """Report assumptions about images, and ignored files, after the pass."""
    for assumed in images.assumed:
        findings.add(FindingKind.ASSUMED, assumed)
    if given is not None and not images.settled:
        findings.add(FindingKind.ASSUMED, "--preprocess has no effect: the samples hold no images")
    if source.skip_counts:
        ignored = _count_text(source.skip_counts)
        findings.add(FindingKind.SKIPPED, f"ignored: {ignored}")


def _count_text(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {what}" for what, count in counts.items())


# Samples by place and row.


@dataclass(frozen=True, slots=True)
class SampleRef:
    """One sample: a place of the source, and a row of its arrays."""

    place: int
    row: int


@dataclass(frozen=True, kw_only=True)
class FeedUnit:
    """One feed: its samples, and its SHA-256."""

    refs: tuple[SampleRef, ...]
    digest: bytes


class SampleReader:
    """Reads samples as they are fed; caches the last place."""

    def __init__(self, source: SampleSource, form: FeedForm) -> None:
        self.source = source
        self.form = form
        self.counts: dict[int, int] = {}  # rows of the places read so far
        self._last: tuple[int, SampleContent, list[Feed]] | None = None

    def open(self, place: int) -> tuple[SampleContent, list[Feed]]:
        """Return the content of a place and its rows.

        Raises:
            SampleError: it cannot be read or split into samples.
        """
        if self._last is None or self._last[0] != place:
            self._last = None  # free it first: both may be large
            content = self.source.read(place)
            self._last = (place, content, self.form.rows(content.parts))
            self.counts[place] = len(self._last[2])
        return self._last[1], self._last[2]

    def row(self, ref: SampleRef) -> Feed:
        """Return one sample as it is fed, before stacking.

        Raises:
            SampleError: it cannot be fed.
        """
        rows = self.open(ref.place)[1]
        if ref.row >= len(rows):
            raise IndexError(f"{self.name(ref)} is gone")
        return self.form.fit(rows[ref.row])

    def feed(self, unit: FeedUnit) -> Feed:
        """Read a feed again.

        Raises:
            SampleError: it cannot be fed.
        """
        return self.form.stack([self.row(ref) for ref in unit.refs])

    def name(self, ref: SampleRef) -> str:
        """Return the name of a sample in findings."""
        several = self.counts.get(ref.place, 1) > 1
        return self.source.name(ref.place) + (f" row {ref.row}" if several else "")

    def _rows_of(self, place: int) -> range:
        """Return the rows of a place; one for an unreadable place, so that it is checked."""
        try:
            return range(len(self.open(place)[1]))
        except SampleError:
            return range(1)

    def refs(self, wanted: int, seed: int | None = None) -> Iterator[SampleRef]:
        """Yield samples lazily, at least `wanted` of them if there are as many.

        In order, or with a seed at random: among places if a place is one sample, else among all
        rows, which reads everything once more.
        """
        places = range(self.source.count)
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
    """Return the SHA-256 of a feed: names, dtypes, shapes and bytes, in order."""
    digest = hashlib.sha256()
    for name, array in feed.items():
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.digest()
