"""Render a calibration report: counts, statistics by input and channel, findings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.markup import escape

from ..calibration.calibration_report import (
    CalibrationReport,
    InputReport,
    SampleSeverity,
    ValueSpread,
)
from ..reports.text_format import count_text, figure_text
from .console import fit_table, print_line, result_console

if TYPE_CHECKING:
    from rich.console import Console

_STYLES = {
    SampleSeverity.ERROR: "red",
    SampleSeverity.WARNING: "yellow",
    SampleSeverity.NOTE: "dim",
}
_BLOCKS = "·▁▂▃▄▅▆▇█"
_FIGURES = ("min", "max", "mean", "std", "0.1 %", "99.9 %")
_CHANNELS = 4  # rows per input; --json has all channels


def show_calibration(report: CalibrationReport) -> None:
    """Show the report, its findings, and whether the samples are usable."""
    console = result_console()
    _show_counts(console, report)
    if report.inputs:
        _show_values(console, report.inputs)
    for finding in report.findings:
        style = _STYLES[finding.severity]
        print_line(console, f"[{style}]{finding.severity}[/]: {escape(str(finding))}")
        if finding.hint:
            print_line(console, f"  [dim]hint: {escape(finding.hint)}[/]")
    warnings = sum(one.severity is SampleSeverity.WARNING for one in report.findings)
    if report.errors:
        print_line(console, f"[red]not usable[/]: {count_text(len(report.errors), 'error')}")
    else:
        suffix = f", {count_text(warnings, 'warning')}" if warnings else ""
        print_line(console, f"[green]usable[/]{suffix}")


def _show_counts(console: Console, report: CalibrationReport) -> None:
    kind = f"{escape(report.source)} ({report.kind})"
    chosen = report.selection + (
        f" with seed {report.seed}" if report.selection == "random" else ""
    )
    print_line(
        console,
        f"{kind}: {report.found:,} samples, {report.read:,} read; "
        f"{report.used:,} for calibration, {report.held_out:,} held out; {chosen}",
    )
    if report.preprocess:
        print_line(console, f"preprocess: {escape(report.preprocess)}")


def _show_values(console: Console, inputs: Sequence[InputReport]) -> None:
    rows: list[dict[str, str]] = []
    for one in inputs:
        shapes = ", ".join(one.shapes[:2]) + (", …" if len(one.shapes) > 2 else "")  # noqa: PLR2004 - two fit
        row = {
            "input": escape(one.name),
            "dtype": one.dtype,
            "shape": shapes,
            "0.1 %": figure_text(one.percentiles["0.1"], ".4g"),
            "99.9 %": figure_text(one.percentiles["99.9"], ".4g"),
            "histogram": f"[cyan]{bars_text(one.histogram)}[/]",
        }
        rows.append(row | _spread_cells(one.total))
        rows += [
            {"input": f"  [dim]channel {index}[/]"} | _spread_cells(channel)
            for index, channel in enumerate(one.channels[:_CHANNELS])
            if len(one.channels) > 1
        ]
    columns = ("input", "dtype", "shape", *_FIGURES, "histogram")
    less = ("0.1 %", "99.9 %", "dtype", "std", "shape")
    console.print(fit_table(console, columns, rows, right=_FIGURES, less=less))


def _spread_cells(spread: ValueSpread) -> dict[str, str]:
    figures = (spread.low, spread.high, spread.mean, spread.std)
    texts = (figure_text(value, ".4g") for value in figures)
    return dict(zip(_FIGURES, texts, strict=False))  # the first four


def bars_text(counts: Sequence[int]) -> str:
    """Draw a histogram in one line; a bin that is not empty is never blank."""
    most = max(counts, default=0)
    steps = len(_BLOCKS) - 1
    heights = [0 if not count else max(1, round(steps * count / most)) for count in counts]
    return "".join(_BLOCKS[height] for height in heights)
