"""Render accuracy on labelled data and the trade-offs of accuracy-aware INT8."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.markup import escape

from ..core.errors import join_some
from ..core.findings import Accuracy, TradeOff
from ..core.records import Artifact
from ..reports.text_format import figure_text
from ..validators.accuracy_text import drop_text, interval_text, value_text
from .console import new_table, print_line

if TYPE_CHECKING:
    from rich.console import Console

_SAMPLES_SHOWN = 5  # disagreeing samples; the manifest has up to 100


def show_accuracy(console: Console, shown: Sequence[Artifact]) -> None:
    """Show the accuracy of each measured artifact, then the first disagreeing samples."""
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
    """Show the first samples with different predictions."""
    for answer in accuracy.answers[:_SAMPLES_SHOWN]:
        text = f"{answer.sample}: {answer.label}; eager {answer.eager}, artifact {answer.artifact}"
        print_line(console, f"  [dim]{escape(name)}: {escape(text)}[/]")
    more = accuracy.disagreements - min(len(accuracy.answers), _SAMPLES_SHOWN)
    if more > 0 and accuracy.answers:
        print_line(console, f"  [dim]{escape(name)}: {more:,} more (manifest: up to 100)[/]")


_LAYERS_SHOWN = 12
_MAX_ROWS = 12  # points


def show_tradeoffs(console: Console, artifact: Artifact) -> None:
    """Show the Pareto table of a layer search, and the layers kept in floating point."""
    points = artifact.tradeoffs
    if len(points) < 2:  # noqa: PLR2004 - INT8 in all layers passed, without a search
        return
    shown = select_pareto(points)
    columns = {
        "SQNR dB": any(p.sqnr is not None for p in shown),
        "drop": any(p.drop is not None for p in shown),
        "ms (fp32)": any(p.latency is not None for p in shown),
        "quantized work": any(p.share is not None for p in shown),
    }
    named = [name for name, used in columns.items() if used]
    table = new_table(
        f"{escape(artifact.name)}: layers in float", *named, "seconds", "budget",
        right=(*named, "seconds"),
    )  # fmt: skip
    for point in _select_few(shown):
        cells = _tradeoff_cells(point, artifact.accuracy)
        table.add_row(str(len(point.kept)), *(cells[name] for name in named), *_outcome_cell(point))
    console.print(table)
    _show_rest(console, artifact, len(points) - len(_select_few(shown)))


def select_pareto(points: Sequence[TradeOff]) -> list[TradeOff]:
    """Return the Pareto-optimal points and the chosen one."""
    best = -math.inf
    found: list[TradeOff] = []
    for point in sorted(points, key=lambda p: (len(p.kept), -_rank_value(p))):
        if point.chosen or _rank_value(point) > best:
            found.append(point)
        best = max(best, _rank_value(point))
    return found


def _rank_value(point: TradeOff) -> float:
    """Rank by the metric if there is one, else by SQNR; higher is better."""
    if point.drop is not None:
        return -point.drop
    if point.sqnr is not None:
        return point.sqnr
    return math.inf if point.passed else -math.inf


def _select_few(points: Sequence[TradeOff]) -> list[TradeOff]:
    """Return at most `_MAX_ROWS` points: the first, and those around the chosen one."""
    if len(points) <= _MAX_ROWS:
        return list(points)
    middle = next((i for i, point in enumerate(points) if point.chosen), len(points) - 1)
    start = max(1, min(middle - _MAX_ROWS // 2, len(points) - _MAX_ROWS + 1))
    return [points[0], *points[start : start + _MAX_ROWS - 1]]


def _tradeoff_cells(point: TradeOff, accuracy: Accuracy | None) -> dict[str, str]:
    latency = ""
    if point.latency is not None:
        latency = f"{point.latency:.2f}"
        latency += "" if point.parent is None else f" ({point.parent:.2f})"
    return {
        "SQNR dB": figure_text(point.sqnr, ".1f"),
        "drop": figure_text(point.drop, ".4g")
        if accuracy is None or point.drop is None
        else drop_text(accuracy, point.drop),
        "ms (fp32)": latency,
        "quantized work": figure_text(point.share, ".0%"),
    }


def _outcome_cell(point: TradeOff) -> tuple[str, str]:
    state = "met" if point.passed else "exceeded"
    seconds = f"{point.seconds:.1f}" if point.seconds else ""
    return seconds, "[green]chosen[/]" if point.chosen else state


def _show_rest(console: Console, artifact: Artifact, hidden: int) -> None:
    if hidden:
        print_line(console, f"  [dim]{hidden} more trade-offs in the manifest[/]")
    chosen = next((point for point in artifact.tradeoffs if point.chosen), None)
    if chosen is None or not chosen.kept:
        return
    names = join_some(chosen.kept, _LAYERS_SHOWN)
    print_line(console, f"  {escape(artifact.name)}: layers in floating point: {escape(names)}")
