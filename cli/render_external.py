"""Render the verdicts on artifacts that ran outside this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.markup import escape

from ..core.external_runtime import ExternalReport, ExternalVerdict, RuntimeDrift, facts_of
from ..core.verdict import Verdict
from ..reports.result_rows import sqnr_text, verdict_outcome
from ..reports.text_format import figure_text
from .console import STATE_MARKS, fit_table, print_line, result_console
from .render_manifest import margin_text

if TYPE_CHECKING:
    from rich.console import Console

_RIGHT = ("max abs", "SQNR dB", "here", "margin")


def show_external(report: ExternalReport) -> None:
    """Show one row for each artifact in each runtime, with its SQNR in this process beside it."""
    console = result_console()
    here = {verdict.artifact: verdict for verdict in report.here}
    rows = [_row(one, here.get(one.verdict.artifact)) for one in report.judged]
    columns = ["artifact", "runtime", "max abs", "SQNR dB", "here", "margin", "verdict"]
    less = ("max abs", "margin", "here")
    console.print(fit_table(console, columns, rows, right=_RIGHT, less=less))
    for runtime in dict.fromkeys(one.runtime for one in report.judged):
        versions = next(one.versions for one in report.judged if one.runtime == runtime)
        if versions:
            print_line(console, f"[dim]{escape(runtime)}: {escape(facts_of(versions))}[/]")
    for one in report.judged:
        if one.verdict.reason:
            text = f"{one.verdict.artifact} in {one.runtime}: {one.verdict.reason}"
            print_line(console, escape(text))
        for note in one.verdict.notes:
            print_line(console, f"  [yellow]{escape(f'{one.verdict.artifact}: {note}')}[/]")
    if report.drift:
        _show_drift(console, report.drift)
    ran = {one.verdict.artifact for one in report.judged}
    for declined in (one for one in report.declined if one.artifact not in ran):
        text = f"{declined.artifact} was not run in {declined.runtime}: {declined.reason}"
        print_line(console, f"[dim]{escape(text)}[/]")


def _show_drift(console: Console, drift: Sequence[RuntimeDrift]) -> None:
    """Show one row for each two runtimes that ran an artifact: how far their outputs are apart."""
    console.print()
    print_line(console, "drift between runtimes, on the feeds nearest to a limit:")
    columns = ["artifact", "feed", "from", "to", "max abs", "SQNR dB", "limit dB", "drift"]
    rows = [
        {
            "artifact": escape(one.artifact),
            "feed": escape(one.feed) if one.max_abs or one.fault else "",
            "from": escape(one.first),
            "to": escape(one.second),
            "max abs": figure_text(one.max_abs),
            "SQNR dB": "equal" if one.sqnr is None and not one.fault else figure_db(one.sqnr),
            "limit dB": f"{one.limit:.1f}",
            "drift": f"[red]{escape(one.fault) or 'beyond noise'}[/]" if one.beyond else "",
        }
        for one in drift
    ]
    right = ("max abs", "SQNR dB", "limit dB")
    console.print(fit_table(console, columns, rows, right=right, less=("feed", "max abs")))


def figure_db(value: float | None) -> str:
    """Return decibels with one decimal; empty without a value."""
    return "" if value is None else f"{value:.1f}"


def _row(one: ExternalVerdict, here: Verdict | None) -> dict[str, str]:
    return {
        "artifact": escape(one.verdict.artifact),
        "runtime": escape(one.runtime),
        "max abs": figure_text(one.verdict.max_abs),
        "SQNR dB": sqnr_text(one.verdict),
        "here": sqnr_text(here),
        "margin": margin_text(one.verdict),
        "verdict": STATE_MARKS[verdict_outcome(one.verdict)],
    }
