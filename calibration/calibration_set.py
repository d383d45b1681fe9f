"""The calibration set: samples are checked in one pass, then read again as feeds on demand."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from ..core.contract import Advance, Feed, no_progress
from ..core.errors import ErrorCode, UsageError
from ..core.records import CalibrationRecord
from ..core.signature import Signature
from .calibration_options import CalibrationOptions
from .calibration_report import CalibrationReport
from .calibration_survey import CalibrationSurvey
from .sample_content import SampleError
from .sample_reader import FeedUnit, LoaderHooks, feed_digest

_ON_DISK = ("folder", "shards")


class CalibrationSet:
    """Checked samples; each iteration reads them from their source, one at a time.

    `held_out` feeds are reserved for judging. Close the set, or use it as a context manager:
    a loader's samples occupy a temporary folder.
    """

    def __init__(
        self, survey: CalibrationSurvey, report: CalibrationReport, root: Path | None
    ) -> None:
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
    survey = CalibrationSurvey(options, signature, hooks)
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
    survey = CalibrationSurvey(options, signature, hooks, thorough=thorough)
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
