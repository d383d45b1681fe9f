"""Records of a benchmark: its rows with their intervals, the machine, and what was asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ...core.errors import RunnerError
from ...core.records import Interval

SCHEMA_VERSION = 1
EAGER_ROW = "eager"
SLOWER = 1  # the exit code


@dataclass(frozen=True, kw_only=True)
class RowTimes:
    """One row at one point: times of single runs, in milliseconds.

    `median` is that of the rounds' medians, with its interval; `p90` is of all runs. `speedup` is
    eager's time for a sample divided by the row's, of the same rounds; None for eager, and where
    eager did not run. `equals` are the rows without a difference from this one;
    `unclear` those whose ratio has so wide an interval that both may be true. `throughput` is in
    samples per second.
    """

    sizes: Mapping[str, int]
    median: float
    interval: Interval
    p90: float
    throughput: float
    runs: int
    rounds: int
    speedup: float | None = None
    speedup_interval: Interval | None = None
    equals: tuple[str, ...] = ()
    unclear: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class BenchmarkRow:
    """One model in one runtime.

    `load` is the seconds to open it, `first` those of its first run, in which a compiler may work,
    `opening` those of both, with the start of its process and the warm-up at all points.
    `memory` is the peak of its process in bytes, `size` that of its files. `sqnr` is the verdict's,
    None where all outputs are `exact`; of a row that no verdict covers, both are measured at the
    points of the benchmark. `in_flight` requests run at a time. `failure` is why there are no
    times.
    """

    name: str
    runtime: str
    precision: str
    verdict: str
    times: tuple[RowTimes, ...] = ()
    sqnr: float | None = None
    exact: bool = False
    accuracy: float | None = None
    load: float = 0.0
    first: float = 0.0
    opening: float = 0.0
    memory: int = 0
    size: int = 0
    threads: int | None = None
    in_flight: int = 1
    failure: str = ""


RowsAtPoint: TypeAlias = Sequence[tuple[BenchmarkRow, RowTimes]]


@dataclass(frozen=True, kw_only=True)
class BenchmarkMachine:
    """The machine, and what else ran on it.

    `frequencies` are the cores' mean in MHz before and after, empty if unknown. `other_load` is the
    share of the machine's cores that other processes used while rows ran, as the median of turns;
    `loaded` whether that is too much to believe small differences.
    """

    processor: str
    cores: int
    memory: int
    system: str
    python: str
    versions: Mapping[str, str]
    frequencies: tuple[float, ...] = ()
    load_before: float = 0.0
    other_load: float = 0.0
    loaded: bool = False


@dataclass(frozen=True, kw_only=True)
class SpeedChange:
    """The speed-up of a row at one point, here and in an earlier benchmark.

    `slower` and `faster`: their intervals lie apart by more than the noise of processes. `unclear`:
    they do not, but are too wide to say that nothing changed.
    """

    row: str
    sizes: Mapping[str, int]
    before: float
    now: float
    slower: bool
    faster: bool
    unclear: bool = False


@dataclass(frozen=True, kw_only=True)
class BenchmarkReport:
    """A benchmark: its rows in the order of the table, and how it was measured.

    `cores` are those that the threads of every row stayed on; empty if on all.
    """

    schema_version: int
    modelc: str
    date: str
    folder: str
    checkpoint: str
    device: str
    threads: int
    seconds: float
    machine: BenchmarkMachine
    rows: tuple[BenchmarkRow, ...]
    notes: tuple[str, ...] = ()
    elapsed: float = 0.0
    cores: tuple[int, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)
    compared: tuple[SpeedChange, ...] = ()

    @property
    def exit_code(self) -> int:
        """0; 6 if a row could not be run, 1 if one is slower than in the earlier benchmark."""
        if self.failures:
            return RunnerError.exit_code
        return SLOWER if any(one.slower for one in self.compared) else 0

    @property
    def seconds_to_open(self) -> float:
        """The seconds to start, open and warm up all rows, one after the other."""
        return sum(row.opening for row in self.rows)

    @property
    def points(self) -> tuple[tuple[tuple[str, int], ...], ...]:
        """The points that have times: names and sizes of their dims, in the order of the table."""
        return tuple(
            dict.fromkeys(tuple(one.sizes.items()) for row in self.rows for one in row.times)
        )

    def rows_at(self, sizes: Mapping[str, int]) -> RowsAtPoint:
        """Return the rows that have times at a point, with these times."""
        return [(row, one) for row in self.rows for one in row.times if one.sizes == sizes]

    @property
    def failures(self) -> tuple[BenchmarkRow, ...]:
        """The rows without times."""
        return tuple(row for row in self.rows if row.failure)
