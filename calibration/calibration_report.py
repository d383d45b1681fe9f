"""What a look at the calibration samples gives: counts, ranges, histograms, findings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
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
    approximate: the bins that they come from are at most 1/1024 of the range wide. `channels` is
    empty where no axis is one of channels.
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
    """The samples that a calibration would read.

    `found` is how many there are, as far as that is known without reading all; `read` were read,
    `used` would be calibrated with and `held_out` kept to judge with. `skipped` counts files that
    hold no samples, by suffix.
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
        """What must be mended before a calibration."""
        return tuple(one for one in self.findings if one.severity is SampleSeverity.ERROR)

    @property
    def exit_code(self) -> int:
        """0 if a calibration may use the samples, 1 if not."""
        return 1 if self.errors else 0


# What is wrong, doubtful or worth knowing about a calibration set, with files and numbers.


FILES_NAMED = 8  # a finding names as many files; the others are counted


class SampleSeverity(StrEnum):
    """An error stops a calibration, a warning may spoil it, a note only says what was done."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class FindingKind(StrEnum):
    """What a finding is about: one finding a kind (and a few by input), however many files."""

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
    FindingKind.EMPTY: "give samples of this model's inputs",
    FindingKind.FAR: "feed the samples as the model is fed: with the same scale, mean and std",
    FindingKind.RANGE: "check scale, mean and std, as in --preprocess imagenet",
    FindingKind.CONSTANT: "remove samples without content",
    FindingKind.CHANNEL: "check the channel order and the layout",
    FindingKind.DUPLICATE: "remove the copies: they add nothing",
    FindingKind.FEW: "give 100 to 500 samples like those of real use",
    FindingKind.ODD_IMAGE: "move label masks out of the folder",
    FindingKind.ONE_FOLDER: "choose over all folders with --calib-select random",
    FindingKind.MIXED: "keep samples of one kind in the folder",
    FindingKind.DRAWN: "give real samples: drawn ones say nothing of real ranges",
}


@dataclass(frozen=True, kw_only=True)
class SampleFinding:
    """One thing that was found, in its first file's numbers; `count` files have it.

    `files` are the first of these. A finding about the whole set has no files.
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
    """Collects findings; those of one kind and topic become one."""

    def __init__(self) -> None:
        self._found: dict[tuple[FindingKind, str], SampleFinding] = {}

    def add(self, kind: FindingKind, detail: str, *, file: str = "", topic: str = "") -> None:
        """Note a finding; where there is one of its kind and topic, `file` joins that."""
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
        self._found[kind, topic] = SampleFinding(
            kind=kind,
            severity=known.severity,
            detail=known.detail,
            hint=known.hint,
            files=named,
            count=known.count + 1,
        )

    def errors(self) -> Iterator[SampleFinding]:
        """What stops a calibration."""
        return (found for found in self._found.values() if found.severity is SampleSeverity.ERROR)

    def all(self) -> tuple[SampleFinding, ...]:
        """Errors first, then warnings, then notes; in the order they were found."""
        order = list(SampleSeverity)
        return tuple(sorted(self._found.values(), key=lambda found: order.index(found.severity)))


def _severity(kind: FindingKind) -> SampleSeverity:
    if kind in _WARNINGS:
        return SampleSeverity.WARNING
    return SampleSeverity.NOTE if kind in _NOTES else SampleSeverity.ERROR
