"""What is wrong, doubtful or worth knowing about a calibration set, with files and numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

FILES_NAMED = 8  # a finding names as many files; the others are counted


class Severity(StrEnum):
    """An error stops a calibration, a warning may spoil it, a note only says what was done."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Kind(StrEnum):
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
    Kind.RANGE, Kind.CONSTANT, Kind.CHANNEL, Kind.DUPLICATE, Kind.FEW, Kind.ODD_IMAGE,
    Kind.ONE_FOLDER, Kind.MIXED, Kind.DRAWN,
}  # fmt: skip
_NOTES = {Kind.ASSUMED, Kind.SURPLUS, Kind.SKIPPED, Kind.LEFT_OVER}
HINTS = {
    Kind.UNREADABLE: "remove the file, or write it again",
    Kind.NAMES: "save the arrays under the names of the inputs",
    Kind.SHAPE: "save samples of the inputs' shapes, or resize images with --preprocess",
    Kind.DTYPE: "save the samples in the inputs' dtypes",
    Kind.NON_FINITE: "remove the sample, or find out where its NaN comes from",
    Kind.EMPTY: "give samples of this model's inputs",
    Kind.FAR: "feed the samples as the model is fed: with the same scale, mean and std",
    Kind.RANGE: "check scale, mean and std, as in --preprocess imagenet",
    Kind.CONSTANT: "remove samples without content",
    Kind.CHANNEL: "check the channel order and the layout",
    Kind.DUPLICATE: "remove the copies: they add nothing",
    Kind.FEW: "give 100 to 500 samples like those of real use",
    Kind.ODD_IMAGE: "move label masks out of the folder",
    Kind.ONE_FOLDER: "choose over all folders with --calib-select random",
    Kind.MIXED: "keep samples of one kind in the folder",
    Kind.DRAWN: "give real samples: drawn ones say nothing of real ranges",
}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was found, in its first file's numbers; `count` files have it.

    `files` are the first of these. A finding about the whole set has no files.
    """

    kind: Kind
    severity: Severity
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


class Findings:
    """Collects findings; those of one kind and topic become one."""

    def __init__(self) -> None:
        self._found: dict[tuple[Kind, str], Finding] = {}

    def add(self, kind: Kind, detail: str, *, file: str = "", topic: str = "") -> None:
        """Note a finding; where there is one of its kind and topic, `file` joins that."""
        known = self._found.get((kind, topic))
        if known is None:
            self._found[kind, topic] = Finding(
                kind=kind,
                severity=_severity(kind),
                detail=detail,
                hint=HINTS.get(kind, ""),
                files=(file,) if file else (),
                count=1 if file else 0,
            )
            return
        named = known.files if len(known.files) >= FILES_NAMED else (*known.files, file)
        self._found[kind, topic] = Finding(
            kind=kind,
            severity=known.severity,
            detail=known.detail,
            hint=known.hint,
            files=named,
            count=known.count + 1,
        )

    def errors(self) -> Iterator[Finding]:
        """What stops a calibration."""
        return (found for found in self._found.values() if found.severity is Severity.ERROR)

    def all(self) -> tuple[Finding, ...]:
        """Errors first, then warnings, then notes; in the order they were found."""
        order = list(Severity)
        return tuple(sorted(self._found.values(), key=lambda found: order.index(found.severity)))


def _severity(kind: Kind) -> Severity:
    if kind in _WARNINGS:
        return Severity.WARNING
    return Severity.NOTE if kind in _NOTES else Severity.ERROR
