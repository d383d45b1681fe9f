"""What a look at the calibration samples gives: counts, ranges, histograms, findings."""

from __future__ import annotations

from dataclasses import dataclass, field

from .findings import SampleFinding, SampleSeverity

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
