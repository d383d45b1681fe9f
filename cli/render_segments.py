"""Show the segments that torch-tensorrt would make of a program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from rich.markup import escape

from ..converters.trt.torch_segments import LeftOut, Segment, SegmentPlan
from ..reports.text_format import percent_text
from .console import new_table, print_line, result_console

if TYPE_CHECKING:
    from rich.console import Console

_MOST_OPERATORS = 6  # of one segment


def show_segments(plan: SegmentPlan) -> None:
    """Show each segment with its operators and its share of the work, and what stays in torch."""
    console = result_console()
    table = new_table("segment", "runs in", "nodes", "work", "operators", right=("nodes", "work"))
    for number, one in enumerate(plan.segments, start=1):
        table.add_row(str(number), *_segment_cells(one))
    console.print(table)
    engines = sum(one.engine for one in plan.segments)
    print_line(
        console,
        f"{percent_text(plan.share)} of the {plan.work} in TensorRT, engines: {engines}, "
        f"switches: {plan.switches}, --min-block-size {plan.min_block_size}, by {plan.source}",
    )
    _show_left_out(console, plan.left_out)
    if plan.uncertain:
        print_line(
            console,
            f"[yellow]may be refused when an engine is built[/]: {_count_text(plan.uncertain)}",
        )
    if plan.data_dependent:
        print_line(console, f"output sizes depend on the data: {_count_text(plan.data_dependent)}")


def _segment_cells(one: Segment) -> tuple[str, str, str, str]:
    names = sorted(one.operators.items(), key=lambda pair: -pair[1])
    more = f", and {len(names) - _MOST_OPERATORS} more" if len(names) > _MOST_OPERATORS else ""
    operators = _count_text(dict(names[:_MOST_OPERATORS])) + more
    place = "[green]TensorRT[/]" if one.engine else "[yellow]torch[/]"
    return place, str(one.nodes), percent_text(one.share), operators


def _show_left_out(console: Console, found: Iterable[LeftOut]) -> None:
    for one in found:
        where = f" in {one.module}" if one.module else ""
        text = f"{one.count} {one.operator}{where}: {one.reason}"
        print_line(console, f"  [yellow]in torch[/]: {escape(text)}")


def _count_text(counts: Mapping[str, int]) -> str:
    return escape(", ".join(f"{count} {name}" for name, count in counts.items()))
