"""The report on calibration samples: counts, ranges, histograms, findings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum

PERCENTILES = (0.1, 1.0, 50.0, 99.0, 99.9)


@dataclass(frozen=True, kw_only=True)
class ValueSpread:
    """The values of an input, or of one channel of it, over all samples."""

    low: float
    high: float
    mean: float
    std: float


@dataclass(frozen=True, kw_only=True)
class InputReport:
    """One input over all samples.

    `histogram` counts values in equal bins from `total.low` to `total.high`. `percentiles` are
    approximate: their bins are at most 1/1024 of the range wide. `channels` is empty without a
    channel axis.
    """

    name: str
    dtype: str
    shapes: tuple[str, ...]
    total: ValueSpread
    channels: tuple[ValueSpread, ...]
    histogram: tuple[int, ...]
    percentiles: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class CalibrationReport:
    """The samples of a calibration.

    `found` is the number of samples as far as known without reading all, `read` those read, `used`
    those for calibration, `held_out` those for judging. `skipped` counts other files by suffix.
    """

    source: str
    kind: str
    found: int
    read: int
    used: int
    held_out: int
    selection: str
    seed: int
    preprocess: str
    inputs: tuple[InputReport, ...]
    findings: tuple[SampleFinding, ...]
    skipped: dict[str, int] = field(default_factory=dict)

    @property
    def errors(self) -> tuple[SampleFinding, ...]:
        """The findings that prevent a calibration."""
        return tuple(one for one in self.findings if one.severity is SampleSeverity.ERROR)

    @property
    def exit_code(self) -> int:
        """0 if the samples are fit for calibration, else 1."""
        return 1 if self.errors else 0


# Findings.


FILES_NAMED = 8  # files that a finding names; the others are counted


class SampleSeverity(StrEnum):
    """An error prevents a calibration; a warning may degrade it; a note informs."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class FindingKind(StrEnum):
    """The kind of a finding; findings of one kind (and input) are merged."""

    UNREADABLE = "unreadable"
    NAMES = "names"
    SHAPE = "shape"
    DTYPE = "dtype"
    NON_FINITE = "non-finite"
    EMPTY = "empty"
    FAR = "far"
    RANGE = "range"
    CONSTANT = "constant"
    CHANNEL = "constant channel"
    DUPLICATE = "duplicate"
    FEW = "few"
    ODD_IMAGE = "odd image"
    ONE_FOLDER = "one folder"
    MIXED = "mixed"
    DRAWN = "drawn"
    ASSUMED = "assumed"
    SURPLUS = "surplus"
    SKIPPED = "skipped"
    LEFT_OVER = "left over"


_WARNINGS = {
    FindingKind.RANGE, FindingKind.CONSTANT, FindingKind.CHANNEL, FindingKind.DUPLICATE,
    FindingKind.FEW, FindingKind.ODD_IMAGE,
    FindingKind.ONE_FOLDER, FindingKind.MIXED, FindingKind.DRAWN,
}  # fmt: skip
_NOTES = {FindingKind.ASSUMED, FindingKind.SURPLUS, FindingKind.SKIPPED, FindingKind.LEFT_OVER}
FINDING_HINTS = {
    FindingKind.UNREADABLE: "remove the file, or write it again",
    FindingKind.NAMES: "save the arrays under the names of the inputs",
    FindingKind.SHAPE: "save samples of the inputs' shapes, or resize images with --preprocess",
    FindingKind.DTYPE: "save the samples in the inputs' dtypes",
    FindingKind.NON_FINITE: "remove the sample, or find out where its NaN comes from",
    FindingKind.EMPTY: "provide samples of this model's inputs",
    FindingKind.FAR: "preprocess the samples as for inference: same scale, mean and std",
    FindingKind.RANGE: "check scale, mean and std, as in --preprocess imagenet",
    FindingKind.CONSTANT: "remove samples without content",
    FindingKind.CHANNEL: "check the channel order and the layout",
    FindingKind.DUPLICATE: "remove the duplicates",
    FindingKind.FEW: "provide 100 to 500 samples that resemble real use",
    FindingKind.ODD_IMAGE: "move label masks out of the folder",
    FindingKind.ONE_FOLDER: "choose over all folders with --calib-select random",
    FindingKind.MIXED: "keep samples of one kind in the folder",
    FindingKind.DRAWN: "provide real samples: synthetic ones do not show real ranges",
}


@dataclass(frozen=True, kw_only=True)
class SampleFinding:
    """One finding, with the numbers of its first file.

    `count` files have it, and `files` are the first of them; both are empty for the whole set.
    """

    kind: FindingKind
    severity: SampleSeverity
    detail: str
    hint: str = ""
    files: tuple[str, ...] = ()
    count: int = 0

    def __str__(self) -> str:
        if not self.files:
            return self.detail
        others = ", ".join(self.files[1:])
        unnamed = self.count - len(self.files)
        more = f"{others} and {unnamed:,} more" if unnamed else others
        return f"{self.files[0]}: {self.detail}" + (f"; also {more}" if more else "")


class FindingCollector:
    """Collects findings; merges those of one kind and topic."""

    def __init__(self) -> None:
        self._found: dict[tuple[FindingKind, str], SampleFinding] = {}

    def add(self, kind: FindingKind, detail: str, *, file: str = "", topic: str = "") -> None:
        """Add a finding, or add `file` to the finding of its kind and topic."""
        known = self._found.get((kind, topic))
        if known is None:
            self._found[kind, topic] = SampleFinding(
                kind=kind,
                severity=_severity(kind),
                detail=detail,
                hint=FINDING_HINTS.get(kind, ""),
                files=(file,) if file else (),
                count=1 if file else 0,
            )
            return
        named = known.files if len(known.files) >= FILES_NAMED else (*known.files, file)
        self._found[kind, topic] = replace(known, files=named, count=known.count + 1)

    def errors(self) -> Iterator[SampleFinding]:
        """Return the findings that prevent a calibration."""
        return (found for found in self._found.values() if found.severity is SampleSeverity.ERROR)

    def all(self) -> tuple[SampleFinding, ...]:
        """Return errors, warnings, then notes, each in the order of detection."""
        order = list(SampleSeverity)
        return tuple(sorted(self._found.values(), key=lambda found: order.index(found.severity)))


def _severity(kind: FindingKind) -> SampleSeverity:
    if kind in _WARNINGS:
        return SampleSeverity.WARNING
    return SampleSeverity.NOTE if kind in _NOTES else SampleSeverity.ERROR
