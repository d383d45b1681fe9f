"""Accuracy on labelled data as a table: eager, artifact, drop with its interval, disagreements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.markup import escape

from ..core.findings import Accuracy
from ..core.records import Artifact
from ..validators.accuracy_text import drop_text, interval_text, value_text
from .tables import new_table, print_line

if TYPE_CHECKING:
    from rich.console import Console

_SAMPLES_SHOWN = 5  # disagreeing samples in the terminal; the manifest has a hundred


def show_accuracy(console: Console, shown: Sequence[Artifact]) -> None:
    """One row an artifact that was measured, then the first samples they disagree on."""
    measured = [(a.name, a.accuracy) for a in shown if a.accuracy is not None]
    if not measured:
        return
    first = measured[0][1]
    figures = (
        "eager", "artifact", "drop", f"{first.confidence:.0%} interval", "disagree", "limit",
    )  # fmt: skip
    title = f"{escape(first.metric)} of {first.samples:,} samples"
    table = new_table(title, *figures, right=figures)
    for name, accuracy in measured:
        table.add_row(escape(name), *_accuracy_cells(accuracy))
    console.print(table)
    for name, accuracy in measured:
        _show_disagreements(console, name, accuracy)


def _accuracy_cells(accuracy: Accuracy) -> tuple[str, ...]:
    limit = ""
    if accuracy.max_drop is not None:
        text = drop_text(accuracy, accuracy.max_drop)
        limit = f"[green]{text}[/]" if accuracy.passed else f"[red]{text}[/]"
    classes = accuracy.metric in ("top1", "top5")
    return (
        value_text(accuracy, accuracy.eager),
        value_text(accuracy, accuracy.artifact),
        drop_text(accuracy, accuracy.drop),
        interval_text(accuracy),
        f"{accuracy.disagreements:,}" if classes else "-",
        limit,
    )


def _show_disagreements(console: Console, name: str, accuracy: Accuracy) -> None:
    """The first samples that are answered otherwise, with what each answered."""
    for answer in accuracy.answers[:_SAMPLES_SHOWN]:
        text = f"{answer.sample}: {answer.label}; eager {answer.eager}, artifact {answer.artifact}"
        print_line(console, f"  [dim]{escape(name)}: {escape(text)}[/]")
    more = accuracy.disagreements - min(len(accuracy.answers), _SAMPLES_SHOWN)
    if more > 0 and accuracy.answers:
        print_line(
            console, f"  [dim]{escape(name)}: {more:,} more; up to 100 are in the manifest[/]"
        )
