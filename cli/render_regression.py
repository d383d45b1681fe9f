"""What changed from the run on the base branch, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.markup import escape

from ..projects.regression_records import MeasureChange, Regression
from ..reports.differences import Change
from .tables import print_line, show_reasons_table

if TYPE_CHECKING:
    from rich.console import Console

CHANGE_MARKS = {
    Change.WORSE: "[red]worse[/]",
    Change.BETTER: "[green]better[/]",
    Change.NEW: "[cyan]new[/]",
    Change.TOLD: "[yellow]info[/]",
}


def show_regression(console: Console, found: Regression) -> None:
    """A row a measure that changed; what was not compared; the sum."""
    if found.changed:
        rows = [_change_row(one) for one in found.changed]
        show_reasons_table(console, rows, right=("base", "now"))
    for text in (*found.notes, *found.left_out):
        print_line(console, f"  [yellow]{escape(text)}[/]")
    worse = len(found.worse)
    told = f"{worse} worse" if worse else "nothing worse"
    print_line(console, f"{told} of {found.compared} measures beside {escape(found.base)}")


def _change_row(one: MeasureChange) -> dict[str, str]:
    return {
        "model": escape(one.model),
        "artifact": escape(one.artifact),
        "measure": escape(one.measure),
        "base": escape(one.before),
        "now": escape(one.after),
        "": CHANGE_MARKS[one.change],
        "why": escape(one.why),
    }
