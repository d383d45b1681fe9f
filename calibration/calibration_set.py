"""The calibration set: samples that were surveyed once, then feeds on demand."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from ..core.contract import Advance, Feed, no_progress
from ..core.errors import UsageError
from ..core.records import CalibrationRecord
from ..core.signature import Signature
from .calibration_options import CalibrationOptions
from .calibration_report import CalibrationReport
from .calibration_survey import CalibrationSurvey
from .sample_content import SampleError
from .sample_reader import FeedUnit, LoaderHooks, feed_digest

_ON_DISK = ("folder", "shards")


class CalibrationSet:
    """Checked samples, read anew one at a time in each iteration.

    `held_out` are feeds that are kept away from calibration, to judge with. Close the set, or use
    it as a context manager: the samples of a loader lie in a folder of their own until then.
    """

    def __init__(
        self, survey: CalibrationSurvey, report: CalibrationReport, root: Path | None
    ) -> None:
        self._survey = survey
        self._units, held = survey.split()
        self.report = report
        self.record = _make_record(report, self._units, root)
        self.held_out: tuple[Feed, ...] = tuple(map(self._again, held))

    def __len__(self) -> int:
        return len(self._units)

    def __iter__(self) -> Iterator[Feed]:
        """Every feed to calibrate with, in order.

        Raises:
            UsageError: a file has changed since it was looked at.
        """
        return map(self._again, self._units)

    def _again(self, unit: FeedUnit) -> Feed:
        shelf = self._survey.shelf
        name, hint = shelf.name(unit.refs[0]), "run again, with files that stay as they are"
        try:
            feed = shelf.feed(unit)
        except (SampleError, IndexError, OSError) as error:
            raise UsageError(f"{name} changed while it was in use: {error}", hint=hint) from error
        if feed_digest(feed) != unit.digest:
            raise UsageError(f"{name} changed while it was in use", hint=hint)
        return feed

    def close(self) -> None:
        """Remove what was written aside."""
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
    lent: LoaderHooks,
    *,
    root: Path | None = None,
    advance: Advance = no_progress,
) -> CalibrationSet:
    """Look at the samples once; refuse them, or give the set to calibrate with.

    Args:
        options: which samples.
        signature: what goes into the model.
        lent: how loaders are imported and samples drawn, and what the model is judged on.
        root: the folder that the record's source is relative to; None keeps it as given.
        advance: told how many samples are read, and how many there will be.

    Raises:
        UsageError: there are no samples, or a calibration with them would be wrong.
    """
    survey = CalibrationSurvey(options, signature, lent)
    try:
        report = survey.look(advance)
        _raise_on_errors(report)
        return CalibrationSet(survey, report, root)
    except BaseException:
        survey.close()
        raise


def survey_samples(
    options: CalibrationOptions,
    signature: Signature,
    lent: LoaderHooks,
    *,
    thorough: bool = False,
    advance: Advance = no_progress,
) -> CalibrationReport:
    """Look at the samples once and report, whatever is wrong with them.

    Args:
        options: which samples.
        signature: what goes into the model.
        lent: how loaders are imported and samples drawn, and what the model is judged on.
        thorough: whether to read every sample on disk, not only those that would be used.
        advance: told how many samples are read, and how many there will be.

    Raises:
        UsageError: there are no samples to look at.
    """
    survey = CalibrationSurvey(options, signature, lent, thorough=thorough)
    try:
        return survey.look(advance)
    finally:
        survey.close()


def _raise_on_errors(report: CalibrationReport) -> None:
    if not report.errors:
        return
    first, *others = report.errors
    more = f" (and {len(others)} more kinds of errors)" if others else ""
    raise UsageError(
        f"calibration data of {report.source}: {first}{more}",
        hint=f"{first.hint}; `modelc calibrate` shows all that was found",
    )


def _make_record(
    report: CalibrationReport, units: tuple[FeedUnit, ...], root: Path | None
) -> CalibrationRecord:
    digest = hashlib.sha256()
    for unit in units:
        digest.update(unit.digest)
    source = report.source
    if root is not None and report.kind in _ON_DISK:
        # both ends resolved: `..` after a symbolic link leads elsewhere
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
