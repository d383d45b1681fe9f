"""Draws a diagnosis: the checks, what can be built here, and what to do first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.markup import escape

from ..core.diagnosis import Buildable, Check, CheckState, Diagnosis
from .tables import new_table, print_line, result_console

if TYPE_CHECKING:
    from rich.console import Console

_CHECK_MARKS = {
    CheckState.OK: "[green]ok[/]",
    CheckState.WARN: "[yellow]warn[/]",
    CheckState.MISSING: "[dim]missing[/]",
    CheckState.BROKEN: "[red]broken[/]",
}


def show_diagnosis(diagnosis: Diagnosis, *, quiet: bool = False) -> None:
    """The checks, then the formats and quantizers, then one line that sums it up.

    Where it is to be quiet, only the checks that something came of, and that line.
    """
    console = result_console()
    if quiet:
        found = [
            check
            for check in diagnosis.checks
            if check.state in (CheckState.WARN, CheckState.BROKEN)
        ]
        if found:
            _show_checks(console, found)
        print_line(console, _diagnosis_summary(diagnosis))
        return
    _show_checks(console, diagnosis.checks)
    _show_buildable(console, "format", "precisions", diagnosis.targets)
    if diagnosis.quantizers:
        _show_buildable(console, "quantizer", "for", diagnosis.quantizers)
    print_line(console, _diagnosis_summary(diagnosis))


def _show_checks(console: Console, checks: Sequence[Check]) -> None:
    table = new_table("check", "", "found", "what mends it")
    table.columns[0].no_wrap = True
    for check in checks:
        # What is as it should be, or need not be there, is not to be mended.
        mend = check.mend if check.state is not CheckState.OK else ""
        row = (check.name, _CHECK_MARKS[check.state], check.told, mend)
        table.add_row(escape(row[0]), row[1], escape(row[2]), escape(row[3]))
    console.print(table)


def _show_buildable(console: Console, title: str, makes: str, rows: Sequence[Buildable]) -> None:
    table = new_table(title, "here", makes, "version, or why not", "what mends it")
    table.columns[0].no_wrap = True
    for row in rows:
        mark = "[green]yes[/]" if row.ready else "[red]no[/]"
        table.add_row(row.name, mark, escape(row.makes), escape(row.told), escape(row.mend))
    console.print(table)


def _diagnosis_summary(diagnosis: Diagnosis) -> str:
    ready = sum(row.ready for row in diagnosis.targets)
    can = f"{ready} of {len(diagnosis.targets)} formats can be built here"
    if not diagnosis.failures:
        return can
    names = ", ".join(escape(check.name) for check in diagnosis.failures)
    return f"[red]broken[/]: {names}; {can}"
