"""A benchmark as one self-contained HTML page with tables and charts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import count

from ...core.errors import join_some
from ...core.records import Interval, size_text
from ...reports.benchmark_charts import (
    CurvePoint,
    MarkKind,
    QualityMark,
    RowCurve,
    SpeedupBar,
    curve_chart,
    curve_legend,
    quality_chart,
    speedup_chart,
)
from ...reports.html_page import make_page
from ...reports.html_verdicts import make_banner, pill
from ...reports.markup import Child, Markup, card_table, code_tag, join, table_tag, tag
from ...reports.result_rows import Outcome
from ...reports.text_format import (
    NO_VALUE,
    count_text,
    day_text,
    digest_text,
    one_line,
    percent_text,
)
from .benchmark_plan import PASSED, REJECTED
from .benchmark_records import EAGER_ROW, BenchmarkReport, BenchmarkRow, RowsAtPoint, RowTimes
from .benchmark_statistics import (
    find_fastest,
    find_rivals,
    group_equals,
    group_unclear,
    pareto_front,
)

_REFERENCE = "reference"
_KINDS = {PASSED: MarkKind.PASSED, REJECTED: MarkKind.REJECTED, _REFERENCE: MarkKind.REFERENCE}
_OUTCOMES = {PASSED: Outcome.PASSED, REJECTED: Outcome.REJECTED}
_COLUMNS = (
    "row", "precision", ">ms (99 %)", ">p90", ">samples/s", ">speed-up (99 %)", ">load s",
    ">first s", ">memory", ">size", ">SQNR dB", ">accuracy", "verdict",
)  # fmt: skip
_MAX_NAMED = 3  # rows without a difference
_GENERATOR = "modelc bench"


def render_benchmark_page(report: BenchmarkReport) -> str:
    """Render the benchmark as a page that contains its styles, script and charts."""
    points = report.points
    shown = [(_sizes_text(dict(point)) or "Rows", report.rows_at(dict(point))) for point in points]
    sections: list[tuple[str, str, Child]] = [
        (f"point-{index}", title, _point_section(found))
        for index, (title, found) in enumerate(shown)
    ]
    varied = _find_varied_dims(points)
    sections += [
        (f"dim-{index}", f"By {one_line(dim, 40)}", _dim_section(report, dim, dict(points[0])))
        for index, dim in enumerate(varied)
    ]
    sections += [
        ("failures", "Not measured", _failures_section(report)),
        ("changes", "Changes", _changes_section(report)),
        ("machine", "How it was measured", _machine_section(report)),
    ]
    title = report.folder.replace("\\", "/").rstrip("/").rpartition("/")[2] or "benchmark"
    subtitle = (
        f"Benchmark of sha256 {digest_text(report.checkpoint)} on {report.device} with "
        f"{count_text(report.threads, 'thread')} · {day_text(report.date)} · modelc {report.modelc}"
    )
    banner = _banner(report, shown)
    return make_page(title, subtitle, banner, sections, generator=_GENERATOR)


def _banner(report: BenchmarkReport, shown: Sequence[tuple[str, RowsAtPoint]]) -> Markup:
    """Return the fastest row that passed at each point, and how much was measured."""
    answers = [_fastest_text(found, title if len(shown) > 1 else "") for title, found in shown]
    slower = sum(1 for change in report.compared if change.slower)
    state, word = Outcome.PASSED, "measured"
    if report.failures or not shown:
        state, word = Outcome.FAILED, "failed" if report.failures else "nothing measured"
    elif slower:
        state, word = Outcome.REJECTED, f"{slower} slower"
    measured = sum(1 for row in report.rows if row.times)
    numbers = [(str(measured), "rows", "neutral")]
    numbers += [(str(len(report.failures)), "failed", "failed")] if report.failures else []
    numbers += [(str(len(report.skipped)), "not measured", "neutral")] if report.skipped else []
    load = percent_text(report.machine.other_load, 0)
    numbers.append((load, "load by other processes", "pending" if report.machine.loaded else ""))
    lines = [part for answer in answers for part in (tag("br"), answer)]
    answer = join(lines[1:]) or "No row has times."
    banner = make_banner(state, pill(state, word), answer, numbers)
    return join([banner, *(tag("p", note, class_="note") for note in report.notes)])


def _fastest_text(found: RowsAtPoint, where: str) -> str:
    best = find_fastest([pair for pair in found if _is_finite(pair[1])])
    prefix = f"{where}: " if where else ""
    if best is None:
        return f"{prefix}no row that passed has times."
    row, one = best
    rivals = find_rivals(found, one)
    word = "has the smallest median of those" if rivals else "is the fastest row"
    text = f"{prefix}{row.name} {word} that passed: {_number(one.median)} ms"
    if one.speedup is not None:
        text += f", {_number(one.speedup)} times as fast as eager"
    if one.speedup_interval is not None:
        text += f" ({_interval(one.speedup_interval)}, 99 % interval)"
    if one.equals:
        text += f"; no difference from {join_some(one.equals, _MAX_NAMED)}"
    if rivals:
        text += f"; not known to be faster than {join_some(rivals, _MAX_NAMED)}"
    return f"{text}."


def _point_section(found: RowsAtPoint) -> Markup:
    """Return the table of a point, the rows without a difference, and the charts."""
    table = table_tag("Rows", *_COLUMNS, rows=(_cells(row, one) for row, one in found))
    equals = [tag("p", f"No difference from {name}: {', '.join(others)}", class_="quiet")
              for name, *others in group_equals(found)]  # fmt: skip
    equals += [tag("p", f"Not known which is faster: {name} or {', '.join(others)}", class_="quiet")
               for name, others in group_unclear(found)]  # fmt: skip
    charts = [_quality_figure(found), _speedup_figure(found)]
    return join([table, *equals, *charts])


def _cells(row: BenchmarkRow, one: RowTimes) -> list[Child]:
    outcome = _OUTCOMES.get(row.verdict)
    speedup = one.speedup_interval
    return [
        row.name,
        row.precision,
        _with_interval(one.median, one.interval),
        _number(one.p90),
        f"{one.throughput:,.1f}" if math.isfinite(one.throughput) else NO_VALUE,
        "" if one.speedup is None else _with_interval(one.speedup, speedup, "x"),
        _number(row.load, 1),
        _number(row.first),
        size_text(row.memory) if row.memory else "",
        size_text(row.size) if row.size else "",
        "exact" if row.exact else "" if row.sqnr is None else _number(row.sqnr, 1),
        "" if row.accuracy is None else percent_text(row.accuracy, 2),
        row.verdict if outcome is None else pill(outcome),
    ]


def _with_interval(value: float, interval: Interval | None, unit: str = "") -> Markup:
    text = f"{_number(value)}{unit}" if math.isfinite(value) else NO_VALUE
    if interval is None or not (math.isfinite(interval.low) and math.isfinite(interval.high)):
        return tag("span", text)
    return tag("span", text, tag("br"), tag("small", _interval(interval)))


def _quality_figure(found: RowsAtPoint) -> Markup | None:
    """Return latency against accuracy, or against SQNR if no row has an accuracy."""
    by_accuracy = any(row.accuracy is not None for row, _ in found)
    qualities = {row.name: _quality(row, by_accuracy=by_accuracy) for row, _ in found}
    drawn = [
        (row, one) for row, one in found if qualities[row.name] is not None and _is_finite(one)
    ]
    left = [row.name for row, _ in found if qualities[row.name] is None]
    quality, unit = ("accuracy %", " %") if by_accuracy else ("SQNR dB", " dB")
    if not any(_KINDS.get(row.verdict) is not MarkKind.REFERENCE for row, _ in drawn):
        return None
    front = pareto_front({
        row.name: (one.median, qualities[row.name])
        for row, one in drawn
        if row.verdict in (PASSED, _REFERENCE)
    })  # fmt: skip
    marks = [_quality_mark(row, one, qualities[row.name], unit) for row, one in drawn]
    below = []
    if front:
        text = f"Pareto front of the rows that passed and eager: {', '.join(front)}."
        below.append(tag("p", text, class_="quiet"))
    if left:
        what = "accuracy" if by_accuracy else "SQNR"
        below.append(tag("p", f"Without {what}: {', '.join(left)}.", class_="quiet"))
    chart = quality_chart(marks, front, quality)
    return _figure("Latency against quality", chart, *below)


def _quality_mark(row: BenchmarkRow, one: RowTimes, value: float | None, unit: str) -> QualityMark:
    known = None if value is None or math.isinf(value) else value
    how_good = "exact" if known is None else f"{known:.1f}{unit}"
    return QualityMark(
        name=row.name,
        text=f"{_times_text(row, one)}, {how_good}, {row.verdict}",
        kind=_KINDS.get(row.verdict, MarkKind.UNJUDGED),
        ms=one.median,
        low=one.interval.low,
        high=one.interval.high,
        value=known,
    )


def _quality(row: BenchmarkRow, *, by_accuracy: bool) -> float | None:
    """Return the accuracy in per cent, or the SQNR, infinite if exact; None if unknown."""
    value = row.sqnr
    if by_accuracy:
        value = None if row.accuracy is None else 100 * row.accuracy
    elif row.exact or row.verdict == _REFERENCE:
        return math.inf
    return value if value is not None and math.isfinite(value) else None


def _speedup_figure(found: RowsAtPoint) -> Markup | None:
    bars = [
        SpeedupBar(
            name=row.name,
            text=f"{_times_text(row, one)}, {_number(one.speedup)} times as fast as {EAGER_ROW}",
            kind=_KINDS.get(row.verdict, MarkKind.UNJUDGED),
            value=one.speedup,
            low=interval.low,
            high=interval.high,
            is_equal=EAGER_ROW in one.equals,
        )
        for row, one in found
        if one.speedup is not None and (interval := one.speedup_interval) is not None
        if _are_drawable(one.speedup, interval.low, interval.high)
    ]
    if not bars:
        return None
    chart = speedup_chart(bars, EAGER_ROW)
    return _figure("Speed-up over eager", chart)


def _figure(title: str, chart: Markup, *below: Markup) -> Markup:
    return tag("figure", tag("h3", title), chart, *below, class_="card plotted")


def _find_varied_dims(points: Sequence[tuple[tuple[str, int], ...]]) -> list[str]:
    sizes: dict[str, set[int]] = {}
    for name, size in (pair for point in points for pair in point):
        sizes.setdefault(name, set()).add(size)
    return [name for name, values in sizes.items() if len(values) > 1]


def _dim_section(report: BenchmarkReport, dim: str, first: Mapping[str, int]) -> Markup | None:
    """Return latency and throughput by one dim; the other dims have the first point's sizes."""
    fixed = {name: size for name, size in first.items() if name != dim}
    latency, throughput = [], []
    for number, row in zip(count(), report.rows, strict=False):
        times = sorted(_times_along(row, dim, fixed), key=lambda one: one.sizes[dim])
        if times:
            points = [_curve_point(one, dim) for one in times]
            latency.append(RowCurve(name=row.name, number=number, points=tuple(points)))
            rates = [_rate_point(one, dim) for one in times]
            throughput.append(RowCurve(name=row.name, number=number, points=tuple(rates)))
    if not latency:
        return None
    where = f"At {_sizes_text(fixed)}." if fixed else ""
    return join([
        tag("p", where, class_="quiet") if where else None,
        _figure("Latency", curve_chart(latency, dim, "median ms"), curve_legend(latency)),
        _figure("Throughput", curve_chart(throughput, dim, "samples/s"), curve_legend(throughput)),
    ])  # fmt: skip


def _times_along(row: BenchmarkRow, dim: str, fixed: Mapping[str, int]) -> Iterator[RowTimes]:
    for one in row.times:
        others = {name: size for name, size in one.sizes.items() if name != dim}
        if dim in one.sizes and others == fixed and _is_finite(one):
            yield one


def _curve_point(one: RowTimes, dim: str) -> CurvePoint:
    return CurvePoint(size=one.sizes[dim], value=one.median, low=one.interval.low,
                      high=one.interval.high)  # fmt: skip


def _rate_point(one: RowTimes, dim: str) -> CurvePoint:
    """Return the throughput, with the ends of the latency's interval in the other order."""
    samples = one.throughput * one.median
    return CurvePoint(size=one.sizes[dim], value=one.throughput, low=samples / one.interval.high,
                      high=samples / one.interval.low)  # fmt: skip


def _failures_section(report: BenchmarkReport) -> Markup | None:
    cells: list[tuple[Child, ...]] = [
        (row.name, pill(Outcome.FAILED), row.failure) for row in report.failures
    ]
    cells += [(name, pill(Outcome.SKIPPED), why) for name, why in report.skipped.items()]
    return card_table("Rows without times", "row", "state", "reason", rows=cells) if cells else None


def _changes_section(report: BenchmarkReport) -> Markup | None:
    """Return the speed-ups of this and of the earlier benchmark, slower rows first."""
    if not report.compared:
        return None
    ordered = sorted(report.compared, key=lambda one: (not one.slower, not one.faster))
    cells: list[tuple[Child, ...]] = []
    for one in ordered:
        change: Child = "no change"
        if one.slower:
            change = pill(Outcome.REJECTED, "slower")
        elif one.faster:
            change = pill(Outcome.PASSED, "faster")
        elif one.unclear:
            change = "not known: an interval is wide"
        times = f"{_number(one.before)}x", f"{_number(one.now)}x"
        cells.append((one.row, _sizes_text(one.sizes) or NO_VALUE, *times, change))
    head = ("row", "sizes", ">before", ">now", "change")
    return card_table("Speed-ups over eager", *head, rows=cells)


def _machine_section(report: BenchmarkReport) -> Markup:
    machine = report.machine
    cells: list[tuple[Child, ...]] = [
        ("folder", code_tag(report.folder)),
        ("checkpoint", code_tag(report.checkpoint)),
        ("device", report.device),
        ("threads", f"{report.threads} of {machine.cores} cores"),
        ("processor", machine.processor),
        ("memory", size_text(machine.memory) if machine.memory else ""),
        ("system", machine.system),
        ("frequencies", ", ".join(f"{value:.0f} MHz" for value in machine.frequencies)),
        ("load by other processes", percent_text(machine.other_load, 0)),
        (
            "measured for",
            f"{report.seconds:g} s for each row; {report.elapsed:.0f} s in all",
        ),
        ("opening and warm-up", f"{report.seconds_to_open:.0f} s"),
        ("Python", machine.python),
        *machine.versions.items(),
    ]
    return table_tag("Machine", "what", "value", rows=(cell for cell in cells if cell[1]))


def _sizes_text(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{one_line(name, 60)} {size}" for name, size in sizes.items())


def _times_text(row: BenchmarkRow, one: RowTimes) -> str:
    return f"{row.name}: {_number(one.median)} ms ({_interval(one.interval)})"


def _is_finite(one: RowTimes) -> bool:
    rate = one.throughput
    return _are_drawable(one.median, one.interval.low, one.interval.high, rate)


def _are_drawable(*values: float) -> bool:
    return all(math.isfinite(value) and value > 0 for value in values)


def _number(value: float, digits: int = 2) -> str:
    """Format with two digits, below 1 with three."""
    if not math.isfinite(value):
        return NO_VALUE
    return f"{value:.3f}" if 0 < value < 1 and digits > 1 else f"{value:,.{digits}f}"


def _interval(one: Interval) -> str:
    return f"{_number(one.low)} to {_number(one.high)}"
