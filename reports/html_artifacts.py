"""HTML sections on artifacts and layers: lineage, precision, latency, first divergence."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ..core.findings import Histogram, Layer, Localisation, TradeOff
from ..core.manifest import Manifest
from ..core.records import size_text
from .html_verdicts import pill
from .markup import (
    Child,
    Markup,
    code_tag,
    details_tag,
    draw_curve,
    draw_histogram,
    draw_shares,
    join,
    table_tag,
    tag,
)
from .result_rows import STATE_OUTCOMES, LineageNode, Outcome, ResultRow
from .text_format import (
    NO_VALUE,
    count_text,
    digest_text,
    milliseconds_text,
    percent_text,
    ratio,
    seconds_text,
)


def lineage_section(roots: Sequence[LineageNode]) -> Markup:
    """Return the tree from the checkpoint to every artifact and pending step."""
    return tag("ul", [_node_item(node) for node in roots], class_="tree")


def _node_item(node: LineageNode) -> Markup:
    outcome = pill(node.outcome) if node.outcome else None
    digest = tag("small", digest_text(node.digest)) if node.digest else None
    label = tag("span", tag("b", node.name), " ", node.description, " ", digest, " ", outcome)
    below = [_node_item(child) for child in node.children]
    return tag("li", label, tag("ul", below) if below else None)


def precision_section(rows: Sequence[ResultRow]) -> Markup | None:
    """Return the compute dtypes of the artifacts, or None if none was measured."""
    found = [
        (
            row.name,
            draw_shares({**dict.fromkeys(cover.layers, 0.0), **cover.share}),
            ", ".join(f"{dtype} {count_text(n, 'layer')}" for dtype, n in cover.layers.items()),
            f"{cover.work}, by {cover.source}",
        )
        for row in rows
        if row.artifact and (cover := row.artifact.coverage)
    ]
    head = ("artifact", "share of the work", "layers", "measured")
    return table_tag("Compute dtypes", *head, rows=found) if found else None


def latency_section(rows: Sequence[ResultRow]) -> Markup | None:
    """Return the latency at the smallest batch and that of the FP32 parent, or None."""
    found = [
        (
            row.name,
            milliseconds_text(one.milliseconds),
            milliseconds_text(one.parent),
            f"{one.parent / one.milliseconds:.2f} x" if one.milliseconds > 0 else NO_VALUE,
            one.device,
            str(one.runs),
            pill(Outcome.REJECTED, "slower than its parent") if one.slower else "",
        )
        for row in rows
        if row.artifact and (one := row.artifact.latency)
    ]
    head = ("artifact", ">latency", ">fp32 parent", ">speed-up", "device", ">runs", "note")
    return table_tag("Latency", *head, rows=found) if found else None


def calibration_section(rows: Sequence[ResultRow]) -> Markup | None:
    """Return the calibration samples of INT8 artifacts, or None."""
    cards = [
        tag(
            "article",
            tag("h3", tag("span", row.name, class_="name")),
            tag("p", f"{one.used} of {one.found} samples ({one.kind}, {one.selection}, seed "
                f"{one.seed}) from ", code_tag(one.source), f"; judged on {one.held_out} held out"),
            tag("p", f"preprocess {one.preprocess or 'none'} · sha256 {digest_text(one.digest)}",
                class_="quiet"),
            [tag("p", finding, class_="note") for finding in one.findings],
            class_="card",
        )
        for row in rows
        if row.artifact and (one := row.artifact.calibration)
    ]  # fmt: skip
    return join(cards) if cards else None


def accuracy_section(rows: Sequence[ResultRow]) -> Markup | None:
    """Return the accuracy of eager and artifact on labelled data, or None."""
    found, lists = [], []
    for row in rows:
        one = row.artifact.accuracy if row.artifact else None
        if one is None:
            continue
        gate: Child = "no gate"
        if one.max_drop is not None:
            outcome = Outcome.PASSED if one.passed else Outcome.REJECTED
            gate = pill(outcome, f"at most {one.max_drop:g}")
        interval = (
            f"{one.low:.4g} to {one.high:.4g} ({percent_text(one.confidence, 0)}, {one.method})"
        )
        found.append((row.name, code_tag(one.metric), f"{one.eager:.5g}", f"{one.artifact:.5g}",
                      f"{one.drop:.4g}", interval, str(one.samples), gate))  # fmt: skip
        if one.disagreements:
            text = f"{row.name}: {count_text(one.disagreements, 'sample')} with another prediction"
            lists.append(
                details_tag(text, tag("p", [join([code_tag(n), " "]) for n in one.disagreeing]))
            )
    head = ("artifact", "metric", ">eager", ">artifact", ">drop", "interval", ">samples", "gate")
    return (
        join([table_tag("Accuracy on labelled data", *head, rows=found), *lists]) if found else None
    )


def tradeoffs_section(rows: Sequence[ResultRow]) -> Markup | None:
    """Return the points that accuracy-aware INT8 tried, or None."""
    found = [
        tag("article", tag("h3", tag("span", row.name, class_="name")),
            _tradeoff_table(row.name, row.artifact.tradeoffs), class_="card")
        for row in rows
        if row.artifact and row.artifact.tradeoffs
    ]  # fmt: skip
    return join(found) if found else None


def _tradeoff_table(name: str, points: Sequence[TradeOff]) -> Markup:
    rows = [
        (
            str(len(one.kept)),
            ratio(one.sqnr),
            NO_VALUE if one.drop is None else f"{one.drop:.4g}",
            NO_VALUE if one.latency is None else milliseconds_text(one.latency),
            seconds_text(one.seconds),
            pill(Outcome.PASSED, "within budget") if one.passed else "over budget",
            tag("b", "chosen") if one.chosen else "",
            details_tag("layers", tag("p", [join([code_tag(n), " "]) for n in one.kept]))
            if one.kept
            else "",
        )
        for one in points
    ]
    head = (">layers in float", ">SQNR", ">drop", ">latency", ">time", "budget", "choice", "layers")
    return table_tag(f"Trade-offs of {name}", *head, rows=rows)


def attempts_section(rows: Sequence[ResultRow]) -> Markup | None:
    """Return the attempts of artifacts that needed more than one, or None."""
    found = []
    for row in rows:
        tried = row.artifact.attempts if row.artifact else ()
        tried = row.failure.attempts if row.failure else tried
        if len(tried) <= 1:
            continue
        for one in tried:
            outcome = STATE_OUTCOMES.get(one.outcome, one.outcome)
            size = NO_VALUE if one.size is None else size_text(one.size)
            timed = NO_VALUE if one.latency is None else milliseconds_text(one.latency.milliseconds)
            found.append((row.name, code_tag(one.label), outcome, one.reason,
                          ratio(one.sqnr), timed, size, seconds_text(one.seconds)))  # fmt: skip
    head = ("artifact", "method", "outcome", "reason", ">SQNR", ">latency", ">size", ">time")
    return table_tag("Attempts", *head, rows=found) if found else None


def files_section(rows: Sequence[ResultRow]) -> Markup | None:
    """Return every file with its size and digest, or None."""
    found = [
        (code_tag(file.name), file.role, size_text(file.size), code_tag(file.sha256))
        for row in rows
        if row.artifact
        for file in row.artifact.files
    ]
    head = ("file", "role", ">size", "SHA-256")
    return table_tag("Files of all artifacts", *head, rows=found) if found else None


_LAYERS_SHOWN = 20  # the others are folded
_INSTALLED = re.compile(r".*/(site|dist)-packages/")  # a folder that a reader does not need


def layers_section(manifest: Manifest) -> Markup | None:
    """Return the error by layer of each artifact that was debugged, or None."""
    found = [_localisation_part(one) for one in manifest.localisations]
    return join(found) if found else None


def _localisation_part(found: Localisation) -> Markup:
    guilty = next((one for one in found.layers if one.module == found.guilty), None)
    looked = (
        f"feed {found.feed}, {count_text(found.runs, 'run')} in "
        f"{seconds_text(found.seconds)}, at most {size_text(found.memory)} of activations"
    )
    parts = [
        tag("h3", tag("span", found.artifact, class_="name"), " ", tag("small", looked)),
        _guilty_layer_part(found, guilty),
        draw_curve(found.curve, found.guilty),
        _layer_table(found.artifact, found.layers[:_LAYERS_SHOWN], found.guilty),
    ]
    if len(found.layers) > _LAYERS_SHOWN:
        left = found.layers[_LAYERS_SHOWN:]
        more = _layer_table(found.artifact, left, found.guilty)
        parts.append(details_tag(f"{count_text(len(left), 'more layer')}", more))
    if found.reproducer:
        parts.append(tag("p", "One-file reproducer: ", code_tag(found.reproducer), class_="quiet"))
    return tag("article", parts, class_="card")


def _guilty_layer_part(found: Localisation, layer: Layer | None) -> Markup:
    if found.deviating:
        within = " deviates most, within the limits: the artifact passed"
        return tag("p", code_tag(found.deviating), within, class_="reason")
    if not found.guilty:
        why = found.cause or "the error accumulates over many layers"
        return tag("p", "No layer is wrong by itself: ", why, class_="reason")
    place = ["", f" ({layer.kind})"] if layer else []
    if layer and layer.file:
        place += [" at ", code_tag(_source_text(layer))]
    cause = [": ", found.cause] if found.cause else []
    return tag(
        "p",
        "The first wrong layer is ",
        code_tag(found.guilty),
        place,
        cause,
        class_="reason rejected",
    )


def _source_text(layer: Layer) -> str:
    return f"{_INSTALLED.sub('', layer.file)}:{layer.line}"


def _module_tag(module: str, guilty: str) -> Markup:
    if not module:
        return tag("i", "the model itself")
    return tag("b", code_tag(module)) if module == guilty else code_tag(module)


def _layer_table(artifact: str, found: tuple[Layer, ...], guilty: str) -> Markup:
    rows = [
        (
            _module_tag(one.module, guilty),
            one.kind,
            code_tag(_source_text(one)) if one.file else "",
            f"{one.node} {one.operator}".strip(),
            _error_text(one.local),
            _error_text(one.before),
            _error_text(one.accumulated),
            one.cause,
        )
        for one in found
    ]
    head = ("module", "class", "source", "node", ">own error", ">before", ">after",
            "probable cause")  # fmt: skip
    return table_tag(f"Layers of {artifact}", *head, rows=rows)


def _error_text(value: float | None) -> str:
    return "no error" if value is None else ratio(value)


def outputs_section(manifest: Manifest) -> Markup | None:
    """Return histograms of the outputs of eager and artifacts, or None."""
    found = list(_output_histograms(manifest))
    if not found:
        return None
    legend = tag(
        "div",
        tag("span", tag("i", class_="fillkey"), "eager"),
        tag("span", tag("i", class_="outlinekey"), "artifact"),
        tag("span", "heights are square roots of counts"),
        class_="legend",
    )
    return join([legend, *found])


def _output_histograms(manifest: Manifest) -> Iterator[Markup]:
    opened = {verdict.artifact for verdict in manifest.verdicts if not verdict.passed}
    for verdict in manifest.verdicts:
        if not verdict.histograms:
            continue
        drawn = tag("div", [_histogram_part(one) for one in verdict.histograms], class_="grid")
        count = count_text(len(verdict.histograms), "histogram")
        summary = tag("summary", tag("b", verdict.artifact), " ", tag("small", count))
        shown = "" if verdict.artifact in opened else None
        yield tag("details", summary, drawn, open=shown)


def _histogram_part(one: Histogram) -> Markup:
    low, high = (one.edges[0], one.edges[-1]) if one.edges else (0.0, 0.0)
    return tag(
        "figure",
        tag("figcaption", code_tag(one.output), " on ", code_tag(one.feed)),
        draw_histogram(one.edges, one.eager, one.artifact),
        tag("div", tag("span", f"{low:.4g}"), tag("span", f"{high:.4g}"), class_="ends"),
    )
