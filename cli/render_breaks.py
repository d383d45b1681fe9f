"""Render what torch.compile makes of a model: `modelc inspect --breaks`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.markup import escape

from ..core.compile_records import (
    CompileReport,
    CompileTrace,
    GraphBreak,
    Recompile,
    SizeGuard,
    ValueGuard,
)
from .console import new_table, print_line, print_lines, result_console

_MAX_SHOWN = 10  # lines of one kind
_MAX_KINDS = 6  # kinds of guards


def show_breaks(report: CompileReport) -> None:
    """Show the counts in a table, then each break, limit and recompile with its source line."""
    console, first = result_console(), report.traces[0]
    domain = "  ".join(report.inputs)
    print_line(console, escape(f"{report.checkpoint}: torch.compile {report.torch} over {domain}"))
    table = new_table("", *(_dynamic_text(trace) for trace in report.traces))
    rows = [_cells(trace) for trace in report.traces]
    for name in rows[0]:
        table.add_row(name, *(escape(row[name]) for row in rows))
    console.print(table)
    print_line(console, _conclusion(report.traces))
    print_line(console, _fullgraph_line(report))
    print_lines(console, _few(_break_lines(_merge_breaks(report.traces))))
    print_lines(console, _few(_size_lines(report.traces)))
    if first.guards:
        print_line(console, f"[bold]guards[/] {_guards_text(first)}")
    if first.values:
        print_line(console, "[bold]constants[/] of the graphs: another value recompiles")
        print_lines(console, _few(_value_lines(first.values)))
    if first.recompiles:
        print_line(console, "[bold]recompiles[/]")
        print_lines(console, _few(map(_recompile_line, first.recompiles)))
    print_lines(console, _problem_lines(report.traces))


def _dynamic_text(trace: CompileTrace) -> str:
    return "default" if trace.dynamic is None else f"dynamic={trace.dynamic}"


def _cells(trace: CompileTrace) -> dict[str, str]:
    recompiles = str(len(trace.recompiles))
    return {
        "graphs": str(trace.graphs) if trace.graphs or trace.failure else "0: all runs eagerly",
        "operators": str(trace.operators),
        "graph breaks": str(sum(one.count for one in trace.breaks)),
        "feeds": str(trace.feeds),
        "recompiles": recompiles if trace.limit is None else f"{recompiles}, then eager",
        "guards": str(sum(trace.guards.values())),
    }


def _guards_text(trace: CompileTrace) -> str:
    """Return the most frequent kinds of guards."""
    kinds = [f"{count} {kind}" for kind, count in trace.guards.items()]
    rest = len(kinds) - _MAX_KINDS
    return ", ".join(kinds[:_MAX_KINDS]) + (f", {rest} more kinds" if rest > 0 else "")


def _conclusion(traces: Sequence[CompileTrace]) -> str:
    """Return in one line whether the model can be compiled over its domain, and how best."""
    if any(one.failure is not None for one in traces):
        return "[red]torch.compile fails on this domain[/]: see below"
    usual = traces[0]
    best = min(traces, key=lambda one: (one.limit is not None, len(one.recompiles)))
    breaks = sum(one.count for one in usual.breaks)
    if not usual.graphs:
        return "[yellow]nothing is compiled[/]: the whole model runs eagerly"
    whole = "one graph, no breaks"
    if breaks:
        whole = f"{_count(breaks, 'graph break')}, {_count(usual.graphs, 'graph')}"
    color = "yellow" if breaks or best.limit is not None else "green"
    if not usual.recompiles:
        return f"[{color}]{whole}[/], no recompiles on {usual.feeds} feeds"
    counts = f"{_count(len(usual.recompiles), 'recompile')} on {usual.feeds} feeds"
    if len(best.recompiles) < len(usual.recompiles):
        counts += f", {len(best.recompiles)} with {_dynamic_text(best)}"
    return f"[{color}]{whole}[/], {counts}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _fullgraph_line(report: CompileReport) -> str:
    reason = report.fullgraph_reason
    if reason is None:
        return "[green]fullgraph=True compiles[/] at the opt sizes"
    place = f" ({reason.place})" if reason.place else ""
    return f"[yellow]fullgraph=True fails[/]: {escape(reason.kind)}{escape(place)}"


def _merge_breaks(traces: Sequence[CompileTrace]) -> list[GraphBreak]:
    """Return every break once: the settings share most of them."""
    found = {(one.kind, one.place): one for trace in reversed(traces) for one in trace.breaks}
    return list(found.values())


def _break_lines(breaks: Sequence[GraphBreak]) -> Iterator[str]:
    for one in breaks:
        place = str(one.place) if one.place else "without a source line"
        times = f", {one.count} times" if one.count > 1 else ""
        code = f"  {one.place.code}" if one.place else ""
        yield f"[bold]graph break[/] {escape(f'{place}{times}{code}')}" + _break_text(one)


def _break_text(one: GraphBreak) -> str:
    given_up = f"\n  {one.function} as a whole runs eagerly" if one.function else ""
    text = f": {one.explanation}" if one.explanation else ""
    hint = f"\n  hint: {one.hint}" if one.hint else ""
    return escape(f"\n  {one.kind}{text}{given_up}{hint}")


def _size_lines(traces: Sequence[CompileTrace]) -> Iterator[str]:
    """Yield a line for each dim and source line, with all its limits."""
    groups: dict[tuple[str, str], dict[SizeGuard, None]] = {}
    for trace in traces:
        for one in trace.sizes:
            groups.setdefault((one.dim, str(one.place or "")), {})[one] = None
    for (dim, place), guards in groups.items():
        fixed = [str(one.low) for one in guards if one.low == one.high]
        ranges = [str(one) for one in guards if one.low != one.high]
        if fixed:
            apart = f"a graph for {dim} = {', '.join(fixed)} alone"
            ranges.insert(0, apart)
        yield f"[bold]limited size[/] {escape(place)}  {escape('; '.join(ranges))}"


def _value_lines(values: Sequence[ValueGuard]) -> Iterator[str]:
    """Yield a line for each value, with the number of its other values."""
    groups: dict[tuple[str, str], list[ValueGuard]] = {}
    for one in values:
        groups.setdefault((one.name, str(one.place)), []).append(one)
    for (_, place), found in groups.items():
        more = f" and {len(found) - 1} other values" if len(found) > 1 else ""
        yield escape(f"  {found[0].text}{more}  {place}")


def _recompile_line(one: Recompile) -> str:
    sizes = ", ".join(f"{name} {size}" for name, size in one.sizes.items())
    feed = one.feed if not sizes or sizes == one.feed else f"{one.feed} ({sizes})"
    place = f" {one.place}" if one.place else ""
    guards = f" [was limited to {'; '.join(map(str, one.guards))}]" if one.guards else ""
    return escape(f"  {feed}: {one.function}{place}: {one.reason}{guards}")


def _problem_lines(traces: Sequence[CompileTrace]) -> Iterator[str]:
    for trace in traces:
        setting = "" if trace.dynamic is None else f"with {_dynamic_text(trace)}, "
        if trace.limit is not None:
            yield (
                f"[yellow]{setting}the limit of {trace.limit} compilations of a function is "
                f"reached[/]: {escape(', '.join(trace.limited))} runs eagerly on further feeds, "
                "without notice (with fullgraph=True, it raises)"
            )
        if trace.failure is not None:
            at = f" ({trace.failure.place})" if trace.failure.place else ""
            text = f"{trace.failure.error}: {trace.failure.message}{at}, feed {trace.failure.feed}"
            yield f"[red]{setting}torch.compile fails where eager runs[/]: {escape(text)}"


def _few(texts: Iterable[str]) -> Iterator[str]:
    """Yield the lines of the first texts, and how many texts there are more."""
    found = list(texts)
    for text in found[:_MAX_SHOWN]:
        yield from text.split("\n")
    if len(found) > _MAX_SHOWN:
        yield f"  … {len(found) - _MAX_SHOWN} more (--json)"
