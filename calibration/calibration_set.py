"""The calibration set: samples are checked in one pass, then read again as feeds on demand."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from ..core.contract import Advance, Feed, no_progress
from ..core.errors import ErrorCode, UsageError
from ..core.records import CalibrationRecord
from ..core.signature import FLOATS, Signature
from .calibration_options import EVERY, FIRST, RANDOM, CalibrationOptions
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

_ON_DISK = ("folder", "shards")


class CalibrationSet:
    """Checked samples; each iteration reads them from their source, one at a time.

    `held_out` feeds are reserved for judging. Close the set, or use it as a context manager:
    a loader's samples occupy a temporary folder.
    """

    def __init__(self, survey: _Survey, report: CalibrationReport, root: Path | None) -> None:
        self._survey = survey
        self._units, held = survey.split()
        self.report = report
        self.record = _make_record(report, self._units, root)
        self.held_out: tuple[Feed, ...] = tuple(map(self._read_feed, held))

    def __len__(self) -> int:
        return len(self._units)

    def __iter__(self) -> Iterator[Feed]:
        """Yield the calibration feeds in order.

        Raises:
            UsageError: a file changed since it was checked.
        """
        return map(self._read_feed, self._units)

    def _read_feed(self, unit: FeedUnit) -> Feed:
        reader = self._survey.reader
        name = reader.name(unit.refs[0])
        hint = "do not change the samples during a run, and run again"
        try:
            feed = reader.feed(unit)
        except (SampleError, IndexError, OSError) as error:
            raise UsageError(
                f"{name} changed while it was in use: {error}",
                hint=hint,
                code=ErrorCode.SAMPLES_CHANGED,
            ) from error
        if feed_digest(feed) != unit.digest:
            raise UsageError(
                f"{name} changed while it was in use", hint=hint, code=ErrorCode.SAMPLES_CHANGED
            )
        return feed

    def close(self) -> None:
        """Delete the temporary samples of a loader."""
        self._survey.close()

    def __enter__(self) -> CalibrationSet:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def open_calibration(
    options: CalibrationOptions,
    signature: Signature,
    hooks: LoaderHooks,
    *,
    root: Path | None = None,
    advance: Advance = no_progress,
) -> CalibrationSet:
    """Check the samples in one pass and return the set to calibrate with.

    Args:
        options: the samples to use.
        signature: the model's inputs.
        hooks: how to import loaders and draw samples, and the validation feeds.
        root: the folder to which the record's source is relative; None keeps the source as given.
        advance: receives the number of samples read and the total.

    Raises:
        UsageError: there are no samples, or they are unfit for calibration.
    """
    survey = _Survey(options, signature, hooks)
    try:
        report = survey.run(advance)
        _raise_on_errors(report)
        return CalibrationSet(survey, report, root)
    except BaseException:
        survey.close()
        raise


def survey_samples(
    options: CalibrationOptions,
    signature: Signature,
    hooks: LoaderHooks,
    *,
    thorough: bool = False,
    advance: Advance = no_progress,
) -> CalibrationReport:
    """Check the samples in one pass and report all findings.

    Args:
        options: the samples to use.
        signature: the model's inputs.
        hooks: how to import loaders and draw samples, and the validation feeds.
        thorough: read every sample on disk, not only those that would be used.
        advance: receives the number of samples read and the total.

    Raises:
        UsageError: there are no samples.
    """
    survey = _Survey(options, signature, hooks, thorough=thorough)
    try:
        return survey.run(advance)
    finally:
        survey.close()


def _raise_on_errors(report: CalibrationReport) -> None:
    if not report.errors:
        return
    first, *others = report.errors
    more = f" (and {len(others)} more kinds of errors)" if others else ""
    raise UsageError(
        f"calibration data of {report.source}: {first}{more}",
        hint=f"{first.hint}; modelc calibrate lists all findings",
        code=ErrorCode.SAMPLES_UNFIT,
    )


def _make_record(
    report: CalibrationReport, units: tuple[FeedUnit, ...], root: Path | None
) -> CalibrationRecord:
    digest = hashlib.sha256()
    for unit in units:
        digest.update(unit.digest)
    source = report.source
    if root is not None and report.kind in _ON_DISK:
        # resolve both: `..` after a symbolic link leads elsewhere
        source = Path(os.path.relpath(Path(source).resolve(), root.resolve())).as_posix()
    return CalibrationRecord(
        source=source,
        kind=report.kind,
        found=report.found,
        used=report.used,
        held_out=report.held_out,
        selection=report.selection,
        seed=report.seed,
        digest=digest.hexdigest(),
        preprocess=report.preprocess,
        findings=tuple(map(str, report.findings)),
    )


# One pass over a source: read, check, hash, measure and select the samples.

_HELD_SHARE = 5  # hold out at most a fifth of the samples,
_LEAST_HELD = 5  # but at least this many, and at most half


class _Survey:
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
        source, self._images = open_source(options, self._form, self._wanted, hooks, self._findings)
        self.reader = SampleReader(source, self._form)
        self._scan = _Scan(
            reader=self.reader,
            findings=self._findings,
            statistics={spec.name: RunningStatistics(spec) for spec in signature.inputs},
        )

    def close(self) -> None:
        """Delete the temporary samples of a loader."""
        self.reader.source.close()

    def run(self, advance: Advance) -> CalibrationReport:
        """Read, check and measure the samples; keep only summaries in memory."""
        is_random = self._options.selection == RANDOM and self.reader.source.kind in _ON_DISK
        seed = self._options.seed if is_random and not self._thorough else None
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
            preprocess=self._images.text,
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
        report_opened(source, self._images, self._options.preprocess, self._findings)
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
class _Scan:
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
