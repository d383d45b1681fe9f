"""The one pass over the samples: reads, checks, hashes and measures; keeps small summaries."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..core.contract import Advance, Feed
from ..core.signature import FLOATS
from .content import Content, Look, MisfitError
from .findings import Findings, Kind
from .shelf import Ref, Shelf, Unit, digest_of
from .tally import Tally

if TYPE_CHECKING:
    from ..core.contract import Array


@dataclass
class Scan:
    """What a pass has seen so far. `read` counts samples, good or bad."""

    shelf: Shelf
    findings: Findings
    tallies: dict[str, Tally]
    units: list[Unit] = field(default_factory=list)
    looks: list[tuple[str, Look]] = field(default_factory=list)
    read: int = 0
    _waiting: list[tuple[Ref, Feed]] = field(default_factory=list)
    _seen: dict[bytes, str] = field(default_factory=dict)
    _surplus: dict[str, int] = field(default_factory=dict)

    def take(self, ref: Ref) -> None:
        """Look at one sample; what is wrong with it becomes a finding, and it is not used."""
        first = ref.place not in self.shelf.counts or ref.row == 0
        name = self.shelf.source.name(ref.place)
        try:
            content = self.shelf.open(ref.place)[0]
            name = self.shelf.name(ref)
            if first:
                self._note(name, content)
            row = self.shelf.row(ref)
            self.read += max(self.shelf.form.per_feed - self.shelf.form.missing(row), 1)
            self._stack(ref, row, self._measure(name, row))
        except MisfitError as error:
            self.read += 1
            self.findings.add(error.kind, error.reason, file=name)

    def _note(self, name: str, content: Content) -> None:
        if content.look is not None:
            self.looks.append((name, content.look))
        for surplus in content.surplus:
            self._surplus[surplus] = self._surplus.get(surplus, 0) + 1

    def _measure(self, name: str, row: Feed) -> bytes:
        digest = digest_of(row)
        twin = self._seen.setdefault(digest, name)
        if twin is not name:
            self.findings.add(Kind.DUPLICATE, f"is the same as {twin}", file=name)
        if _is_constant(row):
            value = next(iter(row.values())).flat[0]
            self.findings.add(Kind.CONSTANT, f"is {value:g} everywhere", file=name)
        for key, array in row.items():
            self.tallies[key].add(array)
        return digest

    def _stack(self, ref: Ref, row: Feed, digest: bytes) -> None:
        form = self.shelf.form
        if not form.missing(row):
            self.units.append(Unit(refs=(ref,), digest=digest))
            return
        self._waiting.append((ref, row))
        if len(self._waiting) < form.per_feed:
            return
        refs = tuple(ref for ref, _ in self._waiting)
        rows = [row for _, row in self._waiting]
        self._waiting.clear()
        self.units.append(Unit(refs=refs, digest=digest_of(form.stacked(rows))))

    def finish(self) -> None:
        """Say what was left over."""
        if self._waiting:
            count, size = len(self._waiting), self.shelf.form.per_feed
            self.findings.add(
                Kind.LEFT_OVER, f"{count} samples are left over: a feed takes {size}, no fewer"
            )
        if self._surplus:
            told = ", ".join(f"{name} ({count:,})" for name, count in self._surplus.items())
            self.findings.add(Kind.SURPLUS, f"not fed, because no input takes it: {told}")


def scan(refs: Iterable[Ref], wanted: int, into: Scan, advance: Advance) -> None:
    """Look at samples until `wanted` of them are read, or there are no more."""
    total = min(wanted, max(len(into.shelf.source), 1))
    for ref in refs:
        into.take(ref)
        advance(min(into.read, total), total)
        if into.read >= wanted:
            break
    into.finish()


def _is_constant(row: Feed) -> bool:
    """Whether nothing is in it; integers do not count, because ids and masks may well be equal."""
    telling = [array for array in row.values() if _tells(array)]
    return bool(telling) and all(array.min() == array.max() for array in telling)


def _tells(array: Array) -> bool:
    return array.size > 1 and str(array.dtype) in (*FLOATS, "uint8")
