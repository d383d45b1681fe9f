"""Statistics of paired rounds: medians, ratios, their intervals, and which rows differ."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ...core.records import Interval
from ...validators.confidence_intervals import draw_resamples, percentile_interval
from .benchmark_plan import PASSED, BenchmarkPoint
from .benchmark_records import (
    BenchmarkReport,
    BenchmarkRow,
    RowsAtPoint,
    RowTimes,
    SpeedChange,
)

CONFIDENCE = 0.99
MOST_SPREAD = 1.15  # of an interval's ends, for rows to be called equal
MOST_CHANGE = 1.20  # of an interval's ends, for a speed-up to be called unchanged


def median_interval(values: Sequence[float]) -> tuple[float, Interval]:
    """Return the median and its percentile bootstrap interval at `CONFIDENCE`."""
    import numpy as np

    array = np.asarray(values, np.float64)
    medians = draw_resamples(array.size, lambda places: np.median(array[places], axis=1).tolist())
    found = percentile_interval(medians, CONFIDENCE)
    return float(np.median(array)), Interval(low=found.low, high=found.high)


def ratio_interval(base: Sequence[float], other: Sequence[float]) -> tuple[float, Interval]:
    """Return the median of `base / other` over rounds, with its interval.

    Both were measured in the same rounds, so that what slows a round slows both.
    """
    return median_interval([one / two for one, two in zip(base, other, strict=True)])


def _is_equal(interval: Interval) -> bool:
    """Whether a ratio that is no difference is surely a small one."""
    return not interval.is_difference and interval.high <= interval.low * MOST_SPREAD


def summarize_point(
    rounds: Mapping[str, Sequence[Sequence[float]]],
    point: BenchmarkPoint,
    in_flight: Mapping[str, int],
    baseline: str,
) -> dict[str, RowTimes]:
    """Return the times of each row at one point.

    Args:
        rounds: by row, the milliseconds of the runs of each round.
        point: where they were measured.
        in_flight: the number of requests that run at a time, of the rows with several.
        baseline: the row that speed-ups are of.

    Ratios are of the time for one sample: a row with two requests in flight has half the time of
    each.
    """
    import numpy as np

    by_round = {
        name: [float(np.median(runs)) for runs in turns] for name, turns in rounds.items() if turns
    }
    each = {
        name: [value / in_flight.get(name, 1) for value in values]
        for name, values in by_round.items()
    }
    found: dict[str, RowTimes] = {}
    for name, values in by_round.items():
        median, interval = median_interval(values)
        ratios = {
            other: ratio_interval(theirs, each[name])[1]
            for other, theirs in each.items()
            if other != name
        }
        runs = np.concatenate([np.asarray(one) for one in rounds[name]])
        speedup: tuple[float, Interval] | None = None
        if baseline in by_round and name != baseline:
            speedup = ratio_interval(each[baseline], each[name])
        found[name] = RowTimes(
            sizes=point.sizes,
            median=median,
            interval=interval,
            p90=float(np.quantile(runs, 0.9)),
            throughput=1e3 * point.samples * in_flight.get(name, 1) / median,
            runs=int(runs.size),
            rounds=len(values),
            speedup=None if speedup is None else speedup[0],
            speedup_interval=None if speedup is None else speedup[1],
            equals=tuple(other for other, one in ratios.items() if _is_equal(one)),
            unclear=tuple(
                other for other, one in ratios.items() if not (one.is_difference or _is_equal(one))
            ),
        )
    return found


def group_equals(found: RowsAtPoint) -> tuple[tuple[str, ...], ...]:
    """Return each row with those that it does not differ from, without groups in other ones."""
    groups = [(row.name, *one.equals) for row, one in found if one.equals]
    kept: list[tuple[str, ...]] = []
    for group in sorted(groups, key=len, reverse=True):
        if not any(set(group) <= set(other) for other in kept):
            kept.append(group)
    return tuple(sorted(kept, key=groups.index))


def group_unclear(found: RowsAtPoint) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return each row with those of which it is not known which is faster, each pair once."""
    named: set[frozenset[str]] = set()
    groups = []
    for row, one in found:
        others = tuple(name for name in one.unclear if frozenset((row.name, name)) not in named)
        named |= {frozenset((row.name, name)) for name in others}
        if others:
            groups.append((row.name, others))
    return tuple(groups)


def find_fastest(found: RowsAtPoint) -> tuple[BenchmarkRow, RowTimes] | None:
    """Return the row that passed with the smallest median; None if none passed."""
    passed = [pair for pair in found if pair[0].verdict == PASSED]
    return min(passed, key=lambda pair: pair[1].median, default=None)


def find_rivals(found: RowsAtPoint, best: RowTimes) -> tuple[str, ...]:
    """Return eager and the rows that passed of which it is not known whether `best` is faster."""
    rivals = {row.name for row, _ in found if row.verdict in (PASSED, "reference")}
    return tuple(name for name in best.unclear if name in rivals)


def compare_reports(
    before: Sequence[BenchmarkReport], now: BenchmarkReport, *, several: bool = False
) -> BenchmarkReport:
    """Return the report with how its speed-ups changed since the earlier one of its folder.

    One report is compared with any folder, except of a project with `several` models. A note says
    why speed-ups cannot be compared, or may differ for another reason than the model.
    """
    earlier = before
    if len(before) > 1 or several:
        earlier = [one for one in before if Path(one.folder).name == Path(now.folder).name]
    rows = [row for one in earlier for row in one.rows]
    compared = compare_speedups(rows, now.rows)
    notes = [*now.notes]
    if not compared:
        notes.append("nothing was compared: no speed-up of the earlier benchmark is of a row here")
    for name in ("device", "threads"):
        then = sorted({str(getattr(one, name)) for one in earlier} - {str(getattr(now, name))})
        if compared and then:
            notes.append(
                f"the earlier benchmark had {name} {', '.join(then)}, this one {getattr(now, name)}"
            )
    return replace(now, compared=compared, notes=tuple(notes))


def compare_speedups(
    before: Sequence[BenchmarkRow], now: Sequence[BenchmarkRow]
) -> tuple[SpeedChange, ...]:
    """Return how the speed-ups over eager changed, of the rows and points that are in both.

    Ratios to eager of the same run are compared, not times: machines differ, and their load.
    """
    known = _times_by_point(before)
    return tuple(
        _compare_intervals(
            SpeedChange(
                row=name,
                sizes=one.sizes,
                before=then.speedup or 0.0,
                now=one.speedup or 0.0,
                slower=then.speedup_interval.is_above(one.speedup_interval),
                faster=one.speedup_interval.is_above(then.speedup_interval),
            ),
            then.speedup_interval,
            one.speedup_interval,
        )
        for (name, sizes), one in _times_by_point(now).items()
        if (then := known.get((name, sizes))) is not None
        and then.speedup_interval is not None
        and one.speedup_interval is not None
    )


def _compare_intervals(change: SpeedChange, before: Interval, now: Interval) -> SpeedChange:
    """Return the change, unclear if one interval spans more than two runs differ by themselves."""
    wide = any(one.high > one.low * MOST_CHANGE for one in (before, now))
    return replace(change, unclear=wide and not (change.slower or change.faster))


def _times_by_point(rows: Sequence[BenchmarkRow]) -> dict[tuple[str, frozenset[object]], RowTimes]:
    """Return the times by row and sizes."""
    return {(row.name, frozenset(one.sizes.items())): one for row in rows for one in row.times}


def pareto_front(rows: Mapping[str, tuple[float, float | None]]) -> tuple[str, ...]:
    """Return the rows that no other row dominates, the fastest first.

    A row dominates another one if it is not slower and not worse, and is better in one of both.
    Rows that are equal in both do not dominate each other.

    Args:
        rows: by name, the milliseconds and the quality, of which more is better: infinite for
            exact rows. Rows without a quality (None or NaN) or a finite time are left out.
    """
    known = {
        name: (time, quality)
        for name, (time, quality) in rows.items()
        if math.isfinite(time) and quality is not None and not math.isnan(quality)
    }
    front = [
        name
        for name, (time, quality) in known.items()
        if not any(
            other[0] <= time and other[1] >= quality and other != (time, quality)
            for other in known.values()
        )
    ]
    return tuple(sorted(front, key=lambda name: known[name]))
