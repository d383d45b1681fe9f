"""What changed from the run on the base branch, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.markup import escape

from ..projects.regression_records import Changed, Regression
from ..reports.differences import Change
from .tables import new_table, say

if TYPE_CHECKING:
    from rich.console import Console

_MARKS = {
    Change.WORSE: "[red]worse[/]",
    Change.BETTER: "[green]better[/]",
    Change.NEW: "[cyan]new[/]",
    Change.TOLD: "[yellow]info[/]",
}


def show_regression(console: Console, found: Regression) -> None:
    """A row a measure that changed; what was not compared; the sum."""
    if found.changed:
        right = ("base", "now")
        table = new_table("model", "artifact", "measure", "base", "now", "", "why", right=right)
        for one in found.changed:
            table.add_row(*_row(one))
        console.print(table)
    for text in (*found.notes, *found.left_out):
        say(console, f"  [yellow]{escape(text)}[/]")
    worse = len(found.worse)
    told = f"{worse} worse" if worse else "nothing worse"
    say(console, f"{told} of {found.compared} measures beside {escape(found.base)}")


def _row(one: Changed) -> tuple[str, ...]:
    before, after = escape(one.before), escape(one.after)
    cells = (escape(one.model), escape(one.artifact), escape(one.measure), before, after)
    return (*cells, _MARKS[one.change], escape(one.why))
