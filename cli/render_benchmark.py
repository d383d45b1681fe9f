"""Render a benchmark: one table per point, what it was measured on, and a CSV file."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape

from ..core.atomic_write import atomic_write
from ..core.compile_records import COMPILE_BACKENDS, COMPILED, name_compiled
from ..core.errors import join_some
from ..core.records import Interval, size_text
from ..pipeline.benchmark.benchmark_plan import UNJUDGED
from ..pipeline.benchmark.benchmark_records import (
    BenchmarkReport,
    BenchmarkRow,
    RowsAtPoint,
    RowTimes,
)
from ..pipeline.benchmark.benchmark_statistics import (
    find_fastest,
    find_rivals,
    group_equals,
    group_unclear,
)
from .console import fit_table, print_line, result_console

if TYPE_CHECKING:
    from rich.console import Console

_COLUMNS = (
    "row", "precision", "ms", "interval", "p90", "samples/s", "speed-up", "of eager", "load s",
    "first s", "memory", "size", "SQNR dB", "verdict",
)  # fmt: skip
_LESS = ("first s", "interval", "samples/s", "precision", "load s", "p90", "size", "memory")
_MAX_NAMED = 3  # rows without a difference
_SHORT = 0.1  # seconds that need a third digit
_LONGER = "measure longer (--seconds), on an idle machine"
_VERDICTS = {"passed": "[green]passed[/]", "rejected": "[red]rejected[/]"}


def show_benchmark(report: BenchmarkReport, *, titled: bool = False) -> None:
    """Show the tables, the rows without a difference, and the machine."""
    console = result_console()
    if titled:
        print_line(console, f"[bold]{escape(report.folder)}[/]")
    for point in report.points:
        if len(report.points) > 1 or point:
            print_line(console, "  ".join(f"{escape(name)} {size}" for name, size in point))
        _show_point(console, report.rows_at(dict(point)))
    for row in report.failures:
        print_line(console, f"[red]{escape(row.name)}[/]: {escape(row.failure)}")
    for name, reason in report.skipped.items():
        print_line(console, f"{escape(name)}: not measured: {escape(reason)}")
    for mode in find_unjudged_modes(report.rows):
        command = f"modelc validate {report.folder} --compiled {mode}"
        print_line(console, f"{name_compiled(mode)} is not judged: {escape(command)} judges it")
    _show_changes(console, report)
    for note in report.notes:
        print_line(console, f"[yellow]{escape(note)}[/]")
    print_line(console, escape(_machine_text(report)))


def _show_changes(console: Console, report: BenchmarkReport) -> None:
    """Show the speed-ups that differ from those of the earlier benchmark."""
    changed = [one for one in report.compared if one.slower or one.faster]
    for one in changed:
        at = "".join(f" {escape(name)}={size}" for name, size in one.sizes.items())
        word = "[red]slower[/]" if one.slower else "[green]faster[/]"
        times = f"{one.now:.2f} times as fast as eager, {one.before:.2f} before"
        print_line(console, f"{escape(one.row)}{at}: {word}: {times}")
    unclear = [one.row for one in report.compared if one.unclear]
    known = len(report.compared) - len(unclear)
    if known and not changed:
        print_line(console, f"none of {known} speed-ups changed")
    if unclear:
        rows = escape(join_some(tuple(dict.fromkeys(unclear)), _MAX_NAMED))
        text = f"cannot say whether {rows} changed: {_LONGER}"
        print_line(console, f"[yellow]{text}[/]")


def _show_point(console: Console, found: RowsAtPoint) -> None:
    cells = [_cells(row, one) for row, one in found]
    table = fit_table(console, _COLUMNS, cells, right=_COLUMNS[2:-1], less=_LESS)
    console.print(table)
    shown = {str(column.header) for column in table.columns}
    left = [name for name in _COLUMNS if name not in shown]
    if left:
        print_line(console, f"[dim]too narrow for {', '.join(left)}: see --csv or --json[/]")
    for first, *others in group_equals(found):
        print_line(
            console, f"no difference from {escape(first)}: {escape(join_some(others, _MAX_NAMED))}"
        )
    for name, unsure in group_unclear(found):
        others_text = escape(join_some(unsure, _MAX_NAMED))
        print_line(
            console, f"cannot say which is faster, {escape(name)} or {others_text}: {_LONGER}"
        )
    for row, _ in found:
        if row.in_flight > 1:
            text = (
                f"{row.in_flight} requests run at a time: ms is the time of each, and the "
                "speed-up that of samples per second"
            )
            print_line(console, f"{escape(row.name)}: {text}")
    best = find_fastest(found)
    if best is not None:
        row, one = best
        times = ""
        if one.speedup is not None and one.speedup_interval is not None:
            within = _interval(one.speedup_interval)
            times = f", {one.speedup:.2f} times as fast as eager ({within})"
        rivals = join_some(find_rivals(found, one), _MAX_NAMED)
        word = "smallest median" if rivals else "fastest"
        doubt = f"; not known to be faster than {escape(rivals)}" if rivals else ""
        name = f"[bold]{escape(row.name)}[/]"
        print_line(console, f"{word} of those that passed: {name}{times}{doubt}")


def find_unjudged_modes(rows: Sequence[BenchmarkRow]) -> tuple[str, ...]:
    """Return the modes of torch.compile that were measured without a verdict."""
    names = [row.name for row in rows if row.verdict == UNJUDGED and row.times]
    modes = [name.partition(":")[2] or "default" for name in names
             if name.partition(":")[0] == COMPILED]  # fmt: skip
    return tuple(mode for mode in modes if mode.partition("+")[0] not in COMPILE_BACKENDS)


def _cells(row: BenchmarkRow, one: RowTimes) -> dict[str, str]:
    speedup = "" if one.speedup is None else f"{one.speedup:.2f}x"
    return {
        "row": escape(row.name),
        "precision": row.precision,
        "ms": _milliseconds(one.median),
        "interval": _interval(one.interval, _milliseconds),
        "p90": _milliseconds(one.p90),
        "samples/s": f"{one.throughput:,.1f}",
        "speed-up": speedup,
        "of eager": "" if one.speedup_interval is None else _interval(one.speedup_interval),
        "load s": f"{row.load:.1f}",
        "first s": f"{row.first:.3f}" if row.first < _SHORT else f"{row.first:.2f}",
        "memory": size_text(row.memory) if row.memory else "",
        "size": size_text(row.size) if row.size else "",
        "SQNR dB": _sqnr(row),
        "verdict": _VERDICTS.get(row.verdict, row.verdict),
    }


def _sqnr(row: BenchmarkRow) -> str:
    return "exact" if row.exact else "" if row.sqnr is None else f"{row.sqnr:.1f}"


def _milliseconds(value: float) -> str:
    return f"{value:.3f}" if value < 1 else f"{value:,.2f}"


def _interval(one: Interval, write: Callable[[float], str] = "{:.2f}".format) -> str:
    return f"{write(one.low)}..{write(one.high)}"


def _machine_text(report: BenchmarkReport) -> str:
    machine = report.machine
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    return (
        f"{report.device}, {report.threads} of {machine.cores} cores ({machine.processor}), "
        f"{report.seconds:g} s for each row; {report.date[:10]}; {versions}; "
        f"other processes used {machine.other_load:.0%} of the cores; took {report.elapsed:.0f} s, "
        f"{report.seconds_to_open:.0f} s of them to open and warm up"
    )


def write_csv(reports: Sequence[BenchmarkReport], path: Path) -> None:
    """Write one line for each folder, row and point; errors as of the output folder's files."""
    stream = io.StringIO()
    lines = [line for one in reports for line in _csv_lines(one)]
    writer = csv.DictWriter(stream, fieldnames=list(lines[0]) if lines else ["row"])
    writer.writeheader()
    writer.writerows(lines)
    atomic_write(path, stream.getvalue().encode())


def _csv_lines(report: BenchmarkReport) -> Iterator[dict[str, object]]:
    for row in report.rows:
        for one in row.times:
            speedup = one.speedup_interval
            yield {
                "folder": report.folder, "row": row.name,
                "runtime": row.runtime, "precision": row.precision,
                "sizes": " ".join(f"{name}={size}" for name, size in one.sizes.items()),
                "median_ms": one.median, "median_low_ms": one.interval.low,
                "median_high_ms": one.interval.high, "p90_ms": one.p90,
                "samples_per_s": one.throughput, "in_flight": row.in_flight, "speedup": one.speedup,
                "speedup_low": None if speedup is None else speedup.low,
                "speedup_high": None if speedup is None else speedup.high,
                "load_s": row.load, "first_s": row.first, "memory_bytes": row.memory,
                "size_bytes": row.size, "sqnr_db": row.sqnr, "exact": row.exact,
                "accuracy": row.accuracy, "verdict": row.verdict, "equals": " ".join(one.equals),
            }  # fmt: skip
