"""Render the first wrong layer, the worst layers and the error along the model."""

from __future__ import annotations

from pathlib import Path

from rich.markup import escape

from ..core.findings import Layer, Localisation
from ..core.records import size_text
from ..reports.text_format import figure_text
from .console import new_table, print_line, result_console

_WORST_COUNT = 10  # rows
_CURVE_WIDTH = 60  # columns of the curve
_BARS = "▁▂▃▄▅▆▇█"
_NAMED_BY = {
    "scopes": "layers are matched by the exporter's scopes",
    "weights": "layers are matched by weight names and values (the file has no scopes)",
    "values": "layers are matched by values only (the file has neither scopes nor weight names)",
}
_CEILING = 150.0  # dB, more than float32 resolves


def no_reproducer_reason(found: Localisation, out: Path | None) -> str:
    """Return why a requested reproducer was not written; it needs a wrong layer."""
    if out is None or found.reproducer:
        return ""
    why = f"{found.artifact} passed" if found.passed else "no layer is wrong by itself"
    return f"no reproducer written to {out}: {why}"


def show_localisation(found: Localisation, artifact: Path, out: Path | None = None) -> None:
    """Show a localisation: the verdict first, the path of the reproducer last.

    Args:
        found: the localisation.
        artifact: the file; its manifest is in the same folder or the one above.
        out: the requested folder of the reproducer, if any.
    """
    console = result_console()
    if found.passed:
        name = escape(found.artifact)
        print_line(console, f"[green]{name} passed[/]: every output is within its limits")
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
    existing = [script for script in scripts if found.reproducer and script.is_file()]
    reason = no_reproducer_reason(found, out)
    if reason:
        print_line(console, f"[yellow]{escape(reason)}[/]")
    elif found.guilty and not found.reproducer:
        print_line(console, "no reproduce.py written: the file has no manifest; add -o DIR")
    if existing:
        print_line(console, f"reproduce: python {escape(str(existing[0]))}")


def _show_verdict(found: Localisation) -> None:
    console = result_console()
    name = escape(found.artifact)
    if found.guilty:
        _show_guilty(found)
    elif found.whole:
        print_line(console, f"[bold red]{name} is wrong as a whole[/]: {escape(found.whole)}")
    elif found.deviating:
        print_line(console, f"{escape(_deviation_text(found))}, within the limits")
    else:
        print_line(console, f"[green]no layer of {name} is wrong by itself[/]")


def _show_guilty(found: Localisation) -> None:
    console = result_console()
    layer = found.layers[0]
    name = f"[bold red]{escape(found.guilty)}[/]"
    print_line(console, f"{name} is the first wrong layer of {escape(found.artifact)}")
    facts = new_table("", "")
    facts.show_header = False
    facts.add_row("class", escape(layer.kind))
    facts.add_row("called at", escape(_place_text(layer)))
    facts.add_row("node", escape(f"{layer.operator} {layer.node}"))
    facts.add_row("error before", _ratio_text(layer.before))
    facts.add_row("own error", _ratio_text(layer.local))
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
        "layer", "class", "operator", "own dB", "before", "after", "called at",
        right=("own dB", "before", "after"),
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
    """Show the SQNR from the first layer to the last; a full bar is no error."""
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
