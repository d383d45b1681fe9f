"""Samples by place and row: reads a place once while its rows are taken one after another."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass

from ..core.contract import Feed
from .content import SampleContent, SampleError
from .form import FeedForm
from .formats import SampleSource

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
