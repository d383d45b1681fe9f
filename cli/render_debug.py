"""The guilty layer, the worst layers and the growth of the error, on stdout."""

from __future__ import annotations

from pathlib import Path

from rich.markup import escape

from ..core.findings import Layer, Localisation
from ..reports.text_format import figure_text, size_text
from .console import new_table, print_line, result_console
from .render_setup import print_warnings

_WORST_COUNT = 10  # rows
_CURVE_WIDTH = 60  # columns of the curve
_BARS = "▁▂▃▄▅▆▇█"
_NAMED_BY = {
    "scopes": "layers by the exporter's scopes",
    "weights": "layers by the names of weights and by values, as the file keeps no scopes",
    "values": "layers by values alone, as the file keeps neither scopes nor names of weights",
}
_CEILING = 150.0  # dB: all of float32's digits and some


def warn_no_reproducer(found: Localisation, out: Path | None) -> None:
    """Say on stderr why nothing was written to the folder that was asked for, where that is so."""
    unwritten = _no_reproducer_reason(found, out)
    print_warnings([unwritten] if unwritten else [])


def _no_reproducer_reason(found: Localisation, out: Path | None) -> str:
    """Why there is no reproducer: it shows the operation of a guilty layer."""
    if out is None or found.reproducer:
        return ""
    why = f"{found.artifact} passed" if found.passed else "no layer is wrong by itself"
    return f"nothing was written to {out}: a reproducer is of a guilty layer, and {why}"


def show_localisation(found: Localisation, artifact: Path, out: Path | None = None) -> None:
    """Everything that was found, the verdict first, and where the reproducer is.

    Args:
        found: what is shown.
        artifact: the file; the folder of its manifest may be one up.
        out: the folder that was asked for, if one was.
    """
    console = result_console()
    if found.passed:
        name = escape(found.artifact)
        print_line(
            console, f"[green]{name} passed[/]: its outputs are within the limits on every feed"
        )
    _show_verdict(found)
    _show_worst(found)
    _show_curve(found)
    for note in found.notes:
        print_line(console, f"[yellow]{escape(note)}[/]")
    effort = f"{found.runs} runs, {found.seconds:.1f} s, {size_text(found.memory)} of activations"
    print_line(console, f"[dim]feed {escape(found.feed)}; {effort}[/]")
    if found.named_by in _NAMED_BY:
        print_line(console, f"[dim]{_NAMED_BY[found.named_by]}[/]")
    _show_reproducer(found, artifact, out)


def _show_reproducer(found: Localisation, artifact: Path, out: Path | None) -> None:
    console = result_console()
    folders = (out or artifact.parent, artifact.parent, artifact.parent.parent)
    scripts = [folder / found.reproducer / "reproduce.py" for folder in folders]
    there = [script for script in scripts if found.reproducer and script.is_file()]
    unwritten = _no_reproducer_reason(found, out)
    if unwritten:
        print_line(console, f"[yellow]{escape(unwritten)}[/]")
    elif found.guilty and not found.reproducer:
        print_line(console, "no reproduce.py was written: no manifest says where to, -o DIR does")
    if there:
        print_line(console, f"reproduce it: python {escape(str(there[0]))}")


def _show_verdict(found: Localisation) -> None:
    console = result_console()
    name = escape(found.artifact)
    if found.guilty:
        _show_guilty(found)
    elif found.whole:
        print_line(console, f"[bold red]{name} is wrong as a whole[/]: {escape(found.whole)}")
    elif found.deviating:
        print_line(console, f"{escape(_deviation_text(found))}: the limits allow it")
    else:
        print_line(console, f"[green]no layer of {name} is wrong by itself[/]")


def _show_guilty(found: Localisation) -> None:
    console = result_console()
    layer = found.layers[0]
    print_line(
        console, f"[bold red]{escape(found.guilty)}[/] is where {escape(found.artifact)} goes wrong"
    )
    facts = new_table("", "")
    facts.show_header = False
    facts.add_row("class", escape(layer.kind))
    facts.add_row("called at", escape(_place_text(layer)))
    facts.add_row("node", escape(f"{layer.operator} {layer.node}"))
    facts.add_row("error before", _ratio_text(layer.before))
    facts.add_row("its own error", _ratio_text(layer.local))
    facts.add_row("error after", _ratio_text(layer.accumulated))
    facts.add_row("cause", escape(found.cause) or "[dim]not found[/]")
    console.print(facts)


def _deviation_text(found: Localisation) -> str:
    layer = found.layers[0]
    cause = f" ({layer.cause})" if layer.cause else ""
    operation = f"{layer.operator} {layer.node}"
    return f"{found.deviating} deviates in {operation}, {_ratio_text(layer.local)}{cause}"


def _show_worst(found: Localisation) -> None:
    if not found.layers:
        return
    table = new_table(
        "layer", "class", "operator", "own dB", "before dB", "after dB", "called at",
        right=("own dB", "before dB", "after dB"),
    )  # fmt: skip
    for layer in found.layers[:_WORST_COUNT]:
        table.add_row(
            escape(layer.module or "(the model)"),
            escape(layer.kind.rpartition(".")[2]),
            escape(layer.operator),
            _short_figure(layer.local),
            _short_figure(layer.before),
            _short_figure(layer.accumulated),
            escape(_place_text(layer)),
        )
    result_console().print(table)


def _show_curve(found: Localisation) -> None:
    """The signal that is left, from the first layer to the last: full is no error."""
    values = [_CEILING if value is None else value for _, value in found.curve]
    if not values:
        return
    size = -(-len(values) // _CURVE_WIDTH)
    groups = [values[i : i + size] for i in range(0, len(values), size)]
    bars = "".join(_curve_bar(min(group)) for group in groups)
    first, last = found.curve[0][0] or "(the model)", found.curve[-1][0] or "(the model)"
    known = [value for _, value in found.curve if value is not None]
    lowest = f"lowest {min(known):.1f} dB" if known else "no error anywhere"
    console = result_console()
    print_line(console, f"SQNR from {escape(first)} to {escape(last)}, {lowest}:")
    print_line(console, f"  {bars}")


def _curve_bar(value: float) -> str:
    share = min(max(value, 0.0), _CEILING) / _CEILING
    return _BARS[min(int(share * len(_BARS)), len(_BARS) - 1)]


def _place_text(layer: Layer) -> str:
    return f"{layer.file}:{layer.line}" if layer.file else "-"


def _ratio_text(value: float | None) -> str:
    return "none" if value is None else f"SQNR {value:.1f} dB"


def _short_figure(value: float | None) -> str:
    return "exact" if value is None else figure_text(value, ".1f")
