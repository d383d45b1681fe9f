"""One pass over a calibration source: read, check, hash, measure and select the samples."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ..core.contract import Advance, Feed
from ..core.signature import FLOATS, Signature
from .calibration_options import EVERY, FIRST, CalibrationOptions
from .calibration_report import CalibrationReport, FindingCollector, FindingKind, InputReport
from .feed_form import FeedForm
from .sample_content import ImageLook, SampleContent, SampleError
from .sample_reader import (
    FeedUnit,
    LoaderHooks,
    SampleReader,
    SampleRef,
    feed_digest,
    open_source,
    report_opened,
)
from .sample_statistics import (
    RunningStatistics,
    check_channels,
    check_count,
    check_folders,
    check_images,
    check_ranges,
)

_HELD_SHARE = 5  # hold out at most a fifth of the samples,
_LEAST_HELD = 5  # but at least this many, and at most half


class CalibrationSurvey:
    """One pass over one source. Close it: a loader's samples occupy a temporary folder.

    If `thorough`, it reads every sample on disk, not only the selected ones.
    """

    def __init__(
        self,
        options: CalibrationOptions,
        signature: Signature,
        hooks: LoaderHooks,
        *,
        thorough: bool = False,
    ) -> None:
        self._thorough = thorough and Path(options.source).exists()
        self._options = options
        self._hooks = hooks
        self._findings = FindingCollector()
        self._form = FeedForm.of(signature)
        self._rows = max(self._form.per_feed, 1)
        self._most_used = max(options.samples // self._rows, 1)
        self._most_held = -(-options.hold_out // self._rows)
        wanted = (self._most_used + self._most_held) * self._rows
        self._wanted = EVERY if self._thorough else min(wanted, EVERY)
        self._opened = open_source(options, self._form, self._wanted, hooks, self._findings)
        self.reader = SampleReader(self._opened.source, self._form)
        self._scan = SampleScan(
            reader=self.reader,
            findings=self._findings,
            statistics={spec.name: RunningStatistics(spec) for spec in signature.inputs},
        )

    def close(self) -> None:
        """Delete the temporary samples of a loader."""
        self.reader.source.close()

    def run(self, advance: Advance) -> CalibrationReport:
        """Read, check and measure the samples; keep only summaries in memory."""
        chosen = self._opened.choose and not self._thorough
        seed = self._options.seed if chosen else None
        total = min(self._wanted, max(self.reader.source.count, 1))
        for ref in self.reader.refs(self._wanted, seed):
            self._scan.add(ref)
            advance(min(self._scan.read, total), total)
            if self._scan.read >= self._wanted:
                break
        self._scan.finish()
        inputs = tuple(
            filter(None, (running.report() for running in self._scan.statistics.values()))
        )
        self._check(inputs)
        used, held = self.split()
        return CalibrationReport(
            source=self._options.source,
            kind=self.reader.source.kind,
            found=self._count_samples(),
            read=self._scan.read,
            used=len(used) * self._rows,
            held_out=len(held) * self._rows,
            selection=self._options.selection,
            seed=self._options.seed,
            preprocess=self._opened.images.text,
            inputs=inputs,
            findings=self._findings.all(),
            skipped=dict(self.reader.source.skip_counts),
        )

    def split(self) -> tuple[tuple[FeedUnit, ...], tuple[FeedUnit, ...]]:
        """Return the calibration feeds and the held-out feeds, which are spread evenly."""
        units = self._scan.units
        few = min(_LEAST_HELD, len(units) // 2)
        count = min(self._most_held, max(len(units) // _HELD_SHARE, few))
        places = {(2 * index + 1) * len(units) // (2 * count) for index in range(count)}
        used = [unit for place, unit in enumerate(units) if place not in places]
        return tuple(used[: self._most_used]), tuple(units[place] for place in sorted(places))

    def _count_samples(self) -> int:
        """Return the number of samples; an unopened place counts as one."""
        counts = self.reader.counts
        return sum(counts.values()) + self.reader.source.count - len(counts)

    def _check(self, inputs: tuple[InputReport, ...]) -> None:
        specs = self._form.signature.inputs
        found = {one.name: one for one in inputs}
        check_ranges(self._findings, specs, found, self._validation(), own=self._hooks.own)
        check_channels(self._findings, inputs, self._scan.read)
        check_images(self._findings, self._scan.looks)
        check_count(self._findings, len(self._scan.units) * self._rows)
        source = self.reader.source
        if source.kind == "folder" and self._options.selection == FIRST:
            used = [source.name(ref.place) for unit in self.split()[0] for ref in unit.refs]
            names = (source.name(place) for place in range(source.count))
            check_folders(self._findings, used, names)
        report_opened(self._opened, self._options.preprocess, self._findings)
        if not self._scan.units and not any(self._findings.errors()):
            self._findings.add(
                FindingKind.EMPTY,
                f"{self._scan.read} samples are fewer than the {self._rows} of one feed",
            )

    def _validation(self) -> dict[str, InputReport]:
        """Return statistics of the float inputs over the validation feeds."""
        statistics = {
            spec.name: RunningStatistics(spec)
            for spec in self._form.signature.inputs
            if spec.dtype in FLOATS
        }
        for feed in self._hooks.validation:
            for name, running in statistics.items():
                if name in feed:
                    running.add(feed[name])
        reports = {name: running.report() for name, running in statistics.items()}
        return {name: report for name, report in reports.items() if report is not None}


# The one pass over the samples: reads, checks, hashes and measures; keeps small summaries.


@dataclass
class SampleScan:
    """The state of a pass; `read` counts samples, usable or not."""

    reader: SampleReader
    findings: FindingCollector
    statistics: dict[str, RunningStatistics]
    units: list[FeedUnit] = field(default_factory=list)
    looks: list[tuple[str, ImageLook]] = field(default_factory=list)
    read: int = 0
    _waiting: list[tuple[SampleRef, Feed]] = field(default_factory=list)
    _seen: dict[bytes, str] = field(default_factory=dict)
    _surplus: dict[str, int] = field(default_factory=dict)

    def add(self, ref: SampleRef) -> None:
        """Check one sample; a sample with an error becomes a finding and is not used."""
        first = ref.place not in self.reader.counts or ref.row == 0
        name = self.reader.source.name(ref.place)
        try:
            content = self.reader.open(ref.place)[0]
            name = self.reader.name(ref)
            if first:
                self._note(name, content)
            row = self.reader.row(ref)
            self.read += max(self.reader.form.per_feed - self.reader.form.count_missing(row), 1)
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
        first = self._seen.setdefault(digest, name)
        if first is not name:
            self.findings.add(FindingKind.DUPLICATE, f"duplicates {first}", file=name)
        if _is_blank(row):
            value = next(iter(row.values())).flat[0]
            self.findings.add(FindingKind.CONSTANT, f"is {value:g} in every element", file=name)
        for key, array in row.items():
            self.statistics[key].add(array)
        return digest

    def _stack(self, ref: SampleRef, row: Feed, digest: bytes) -> None:
        form = self.reader.form
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
        """Report incomplete feeds and arrays that no input takes."""
        if self._waiting:
            count, size = len(self._waiting), self.reader.form.per_feed
            self.findings.add(
                FindingKind.LEFT_OVER,
                f"{count} samples are not used: a feed takes {size}",
            )
        if self._surplus:
            names = ", ".join(f"{name} ({count:,})" for name, count in self._surplus.items())
            self.findings.add(FindingKind.SURPLUS, f"not used, because no input takes it: {names}")


def _is_blank(row: Feed) -> bool:
    """Whether every float or uint8 input is constant; ids and masks may well be."""
    arrays = [
        array for array in row.values() if array.size > 1 and str(array.dtype) in (*FLOATS, "uint8")
    ]
    return bool(arrays) and all(array.min() == array.max() for array in arrays)
