"""Render what `modelc pack` wrote, and what its check found."""

from __future__ import annotations

from rich.markup import escape

from ..reports.text_format import count_text
from ..serving.repository_records import CheckedRepository, PackReport
from .console import new_table, print_line, result_console


def show_packed(report: PackReport, *, quiet: bool = False) -> None:
    """Show a row for each model, then what was left out and what to know."""
    console = result_console()
    table = new_table(
        "model", "version", "artifact", "max batch", "", right=("version", "max batch")
    )
    for model in report.models:
        table.add_row(
            escape(model.name),
            str(model.version),
            escape(model.artifact),
            str(model.batch) if model.batch else "",
            "new" if model.is_new else "there",
        )
    console.print(table)
    if not quiet:
        for model in report.models:
            for note in model.notes:
                print_line(console, f"  [yellow]{escape(f'{model.name}: {note}')}[/]")
        for one in report.left_out:
            print_line(console, f"  [dim]left out: {escape(one.text)}; {escape(one.hint)}[/]")
    new = sum(model.is_new for model in report.models)
    print_line(
        console,
        f"{new} packed, {len(report.models) - new} there already · {escape(report.repository)}",
    )


def show_checked(found: CheckedRepository, *, quiet: bool = False) -> None:
    """Show a line and a hint for each fault, then the counts."""
    console = result_console()
    for fault in found.faults:
        where = "/".join(filter(None, (fault.model, fault.version)))
        text = escape(f"{where}: {fault.message}" if where else fault.message)
        print_line(console, f"[red]{fault.code}[/] {text}")
        if not quiet:
            print_line(console, f"  [dim]hint: {escape(fault.hint)}[/]")
    for text in () if quiet else found.unchecked:
        print_line(console, f"[yellow]unchecked[/] {escape(text)}")
    counts = ", ".join(
        (
            count_text(len(found.models), "model"),
            f"{count_text(len(found.versions), 'version')} compared with the files",
            count_text(len(found.faults), "fault"),
        )
    )
    print_line(console, f"{counts} · {escape(found.repository)}")
