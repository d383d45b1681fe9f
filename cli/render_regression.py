"""What changed from the run on the base branch, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.markup import escape

from ..projects.regression_records import Changed, Regression
from ..reports.differences import Change
from .tables import say, show_reasoned

if TYPE_CHECKING:
    from rich.console import Console

CHANGES = {
    Change.WORSE: "[red]worse[/]",
    Change.BETTER: "[green]better[/]",
    Change.NEW: "[cyan]new[/]",
    Change.TOLD: "[yellow]info[/]",
}


def show_regression(console: Console, found: Regression) -> None:
    """A row a measure that changed; what was not compared; the sum."""
    if found.changed:
        rows = [_row(one) for one in found.changed]
        show_reasoned(console, rows, right=("base", "now"))
    for text in (*found.notes, *found.left_out):
        say(console, f"  [yellow]{escape(text)}[/]")
    worse = len(found.worse)
    told = f"{worse} worse" if worse else "nothing worse"
    say(console, f"{told} of {found.compared} measures beside {escape(found.base)}")


def _row(one: Changed) -> dict[str, str]:
    return {
        "model": escape(one.model),
        "artifact": escape(one.artifact),
        "measure": escape(one.measure),
        "base": escape(one.before),
        "now": escape(one.after),
        "": CHANGES[one.change],
        "why": escape(one.why),
    }
