"""The one pass over the samples: reads, checks, hashes and measures; keeps small summaries."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..core.contract import Advance, Feed
from ..core.signature import FLOATS
from .content import ImageLook, SampleContent, SampleError
from .findings import FindingCollector, FindingKind
from .shelf import FeedUnit, SampleReader, SampleRef, feed_digest
from .tally import RunningStatistics

if TYPE_CHECKING:
    from ..core.contract import Array

# The one pass over the samples: reads, checks, hashes and measures; keeps small summaries.


@dataclass
class SampleScan:
    """What a pass has seen so far. `read` counts samples, good or bad."""

    shelf: SampleReader
    findings: FindingCollector
    tallies: dict[str, RunningStatistics]
    units: list[FeedUnit] = field(default_factory=list)
    looks: list[tuple[str, ImageLook]] = field(default_factory=list)
    read: int = 0
    _waiting: list[tuple[SampleRef, Feed]] = field(default_factory=list)
    _seen: dict[bytes, str] = field(default_factory=dict)
    _surplus: dict[str, int] = field(default_factory=dict)

    def take(self, ref: SampleRef) -> None:
        """Look at one sample; what is wrong with it becomes a finding, and it is not used."""
        first = ref.place not in self.shelf.counts or ref.row == 0
        name = self.shelf.source.name(ref.place)
        try:
            content = self.shelf.open(ref.place)[0]
            name = self.shelf.name(ref)
            if first:
                self._note(name, content)
            row = self.shelf.row(ref)
            self.read += max(self.shelf.form.per_feed - self.shelf.form.count_missing(row), 1)
            self._stack(ref, row, self._measure(name, row))
        except SampleError as error:
            self.read += 1
            self.findings.add(error.kind, error.reason, file=name)

    def _note(self, name: str, content: SampleContent) -> None:
        if content.look is not None:
            self.looks.append((name, content.look))
        for surplus in content.surplus:
            self._surplus[surplus] = self._surplus.get(surplus, 0) + 1

    def _measure(self, name: str, row: Feed) -> bytes:
        digest = feed_digest(row)
        twin = self._seen.setdefault(digest, name)
        if twin is not name:
            self.findings.add(FindingKind.DUPLICATE, f"is the same as {twin}", file=name)
        if _is_blank(row):
            value = next(iter(row.values())).flat[0]
            self.findings.add(FindingKind.CONSTANT, f"is {value:g} everywhere", file=name)
        for key, array in row.items():
            self.tallies[key].add(array)
        return digest

    def _stack(self, ref: SampleRef, row: Feed, digest: bytes) -> None:
        form = self.shelf.form
        if not form.count_missing(row):
            self.units.append(FeedUnit(refs=(ref,), digest=digest))
            return
        self._waiting.append((ref, row))
        if len(self._waiting) < form.per_feed:
            return
        refs = tuple(ref for ref, _ in self._waiting)
        rows = [row for _, row in self._waiting]
        self._waiting.clear()
        self.units.append(FeedUnit(refs=refs, digest=feed_digest(form.stack(rows))))

    def finish(self) -> None:
        """Say what was left over."""
        if self._waiting:
            count, size = len(self._waiting), self.shelf.form.per_feed
            self.findings.add(
                FindingKind.LEFT_OVER,
                f"{count} samples are left over: a feed takes {size}, no fewer",
            )
        if self._surplus:
            told = ", ".join(f"{name} ({count:,})" for name, count in self._surplus.items())
            self.findings.add(FindingKind.SURPLUS, f"not fed, because no input takes it: {told}")


def scan_samples(
    refs: Iterable[SampleRef], wanted: int, into: SampleScan, advance: Advance
) -> None:
    """Look at samples until `wanted` of them are read, or there are no more."""
    total = min(wanted, max(len(into.shelf.source), 1))
    for ref in refs:
        into.take(ref)
        advance(min(into.read, total), total)
        if into.read >= wanted:
            break
    into.finish()


def _is_blank(row: Feed) -> bool:
    """Whether nothing is in it; integers do not count, because ids and masks may well be equal."""
    telling = [array for array in row.values() if _is_informative(array)]
    return bool(telling) and all(array.min() == array.max() for array in telling)


def _is_informative(array: Array) -> bool:
    return array.size > 1 and str(array.dtype) in (*FLOATS, "uint8")
