"""Draws what is in the cache, what was freed, and what was wrong."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape

from ..reports.words import count_text, size_text
from .tables import new_table, print_line, result_console

if TYPE_CHECKING:
    from ..pipeline.cache.store_layout import ListedResult

_TIME_UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))


def show_cache(rows: Sequence[ListedResult], size: int, folder: Path) -> None:
    """A row for each result, then the size of all and where they are."""
    console = result_console()
    if rows:
        heads = ("model", "artifact", "size", "last used", "key", "result")
        table = new_table(*heads, right=("size",))
        for row in rows:
            used = _age_text(time.time() - row.used)
            names = (row.key[:12], row.name[:12])
            table.add_row(
                escape(row.model), escape(row.artifact), size_text(row.size), used, *names
            )
        console.print(table)
    print_line(
        console, f"{count_text(len(rows), 'result')}, {size_text(size)} in {escape(str(folder))}"
    )


def show_cache_freed(freed: int, left: int) -> None:
    """What went and what stays."""
    print_line(result_console(), f"{size_text(freed)} freed, {size_text(left)} left")


def show_cache_faults(wrong: Sequence[str], left: int) -> None:
    """A line for each thing that was wrong, then one that sums it up."""
    console = result_console()
    for line in wrong:
        print_line(console, f"[red]removed[/]: {escape(line)}")
    told = f"{len(wrong)} wrong and removed" if wrong else "all digests are right"
    print_line(console, f"{told}, {size_text(left)} left")


def _age_text(seconds: float) -> str:
    for step, unit in _TIME_UNITS:
        if seconds >= step:
            return f"{seconds / step:.0f} {unit} ago"
    return "just now"
