"""A look at a calibration source: one pass, the checks, and which samples are used for what."""

from __future__ import annotations

from pathlib import Path

from ..core.contract import Advance
from ..core.signature import FLOATS, Signature
from .check import check_channels, check_count, check_folders, check_images, check_ranges
from .findings import FindingCollector, FindingKind
from .form import FeedForm
from .loader import LoaderSource
from .opening import LoaderHooks, open_source, report_opened
from .options import EVERY, FIRST, CalibrationOptions
from .report import CalibrationReport, InputReport
from .scan import SampleScan, scan_samples
from .shelf import FeedUnit, SampleReader
from .tally import RunningStatistics

_HELD_SHARE = 5  # no more than a fifth of the samples is held out,
_LEAST_HELD = 5  # unless that is too few to judge by: then as many, but no more than half


class CalibrationSurvey:
    """One pass over one source. `close` it: a loader's samples lie in a folder of their own.

    A `thorough` one reads every sample on disk, whatever the options select from them.
    """

    def __init__(
        self,
        options: CalibrationOptions,
        signature: Signature,
        lent: LoaderHooks,
        *,
        thorough: bool = False,
    ) -> None:
        self._thorough = thorough and Path(options.source).exists()
        self._options = options
        self._lent = lent
        self._findings = FindingCollector()
        self._form = FeedForm.of(signature)
        self._rows = max(self._form.per_feed, 1)
        self._most_used = max(options.samples // self._rows, 1)
        self._most_held = -(-options.hold_out // self._rows)
        wanted = EVERY if self._thorough else (self._most_used + self._most_held) * self._rows
        self._wanted = min(wanted, EVERY)
        self._opened = open_source(options, self._form, self._wanted, lent, self._findings)
        self.shelf = SampleReader(self._opened.source, self._form)
        self._scan = SampleScan(
            shelf=self.shelf,
            findings=self._findings,
            tallies={spec.name: RunningStatistics(spec) for spec in signature.inputs},
        )

    def close(self) -> None:
        """Remove what was written aside."""
        if isinstance(self.shelf.source, LoaderSource):
            self.shelf.source.close()

    def look(self, advance: Advance) -> CalibrationReport:
        """Read, check and measure the samples once; only small summaries stay."""
        chosen = self._opened.choose and not self._thorough
        seed = self._options.seed if chosen else None
        scan_samples(self.shelf.refs(self._wanted, seed), self._wanted, self._scan, advance)
        inputs = tuple(filter(None, (tally.report() for tally in self._scan.tallies.values())))
        self._check(inputs)
        used, held = self.split()
        return CalibrationReport(
            source=self._options.source,
            kind=self.shelf.source.kind,
            found=self._count_places(),
            read=self._scan.read,
            used=len(used) * self._rows,
            held_out=len(held) * self._rows,
            selection=self._options.selection,
            seed=self._options.seed,
            preprocess=self._opened.images.text,
            inputs=inputs,
            findings=self._findings.all(),
            skipped=dict(self.shelf.source.skipped),
        )

    def split(self) -> tuple[tuple[FeedUnit, ...], tuple[FeedUnit, ...]]:
        """The feeds to calibrate with, and those held out, which are spread over all."""
        units = self._scan.units
        few = min(_LEAST_HELD, len(units) // 2)
        count = min(self._most_held, max(len(units) // _HELD_SHARE, few))
        places = {(2 * index + 1) * len(units) // (2 * count) for index in range(count)}
        used = [unit for place, unit in enumerate(units) if place not in places]
        return tuple(used[: self._most_used]), tuple(units[place] for place in sorted(places))

    def _count_places(self) -> int:
        """How many samples there are; a place that was not opened counts as one."""
        counts = self.shelf.counts
        return sum(counts.values()) + len(self.shelf.source) - len(counts)

    def _check(self, inputs: tuple[InputReport, ...]) -> None:
        specs = self._form.signature.inputs
        found = {one.name: one for one in inputs}
        check_ranges(self._findings, specs, found, self._validation(), own=self._lent.own)
        check_channels(self._findings, inputs, self._scan.read)
        check_images(self._findings, self._scan.looks)
        check_count(self._findings, len(self._scan.units) * self._rows)
        source = self.shelf.source
        if source.kind == "folder" and self._options.selection == FIRST:
            used = [source.name(ref.place) for unit in self.split()[0] for ref in unit.refs]
            names = (source.name(place) for place in range(len(source)))
            check_folders(self._findings, used, names)
        report_opened(self._opened, self._options.preprocess, self._findings)
        if not self._scan.units and not any(self._findings.errors()):
            self._findings.add(
                FindingKind.EMPTY, f"{self._scan.read} samples make no feed: one takes {self._rows}"
            )

    def _validation(self) -> dict[str, InputReport]:
        """The float inputs' statistics over the validation feeds."""
        tallies = {
            spec.name: RunningStatistics(spec)
            for spec in self._form.signature.inputs
            if spec.dtype in FLOATS
        }
        for feed in self._lent.validation:
            for name, tally in tallies.items():
                if name in feed:
                    tally.add(feed[name])
        reports = {name: tally.report() for name, tally in tallies.items()}
        return {name: report for name, report in reports.items() if report is not None}
