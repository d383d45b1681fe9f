"""The page's part on layers: where the error begins, how it grows, which layers are worst."""

from __future__ import annotations

from collections.abc import Iterator

from ..core.findings import Histogram, Layer, Localisation
from ..core.manifest import Manifest
from .charts import draw_curve, draw_histogram
from .markup import Markup, code_tag, details_tag, join, table_tag, tag
from .words import count_text, ratio, seconds_text, size_text

_LAYERS_SHOWN = 20  # layers; the rest open at a click


def layers_section(manifest: Manifest) -> Markup | None:
    """What was found of each artifact that was looked into; None where none was."""
    found = [_localisation_part(one) for one in manifest.localisations]
    return join(found) if found else None


def _localisation_part(found: Localisation) -> Markup:
    guilty = next((one for one in found.layers if one.module == found.guilty), None)
    looked = (
        f"on feed {found.feed}, with {count_text(found.runs, 'run')} in "
        f"{seconds_text(found.seconds)}, {size_text(found.memory)} at the most"
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
        kept = ": the artifact passed, its limits allow it"
        return tag("p", "Most deviates ", code_tag(found.deviating), kept, class_="reason")
    if not found.guilty:
        why = found.cause or "the error grows a little everywhere"
        return tag("p", "No layer is wrong by itself: ", why, class_="reason")
    place = ["", f" ({layer.kind}) at ", code_tag(f"{layer.file}:{layer.line}")] if layer else []
    cause = [": ", found.cause] if found.cause else []
    return tag(
        "p",
        "The first wrong layer is ",
        code_tag(found.guilty),
        place,
        cause,
        class_="reason failed",
    )


def _layer_table(artifact: str, found: tuple[Layer, ...], guilty: str) -> Markup:
    rows = [
        (
            tag("b", code_tag(one.module)) if one.module == guilty else code_tag(one.module),
            one.kind,
            code_tag(f"{one.file}:{one.line}") if one.file else "",
            f"{one.node} {one.operator}".strip(),
            _error_text(one.local),
            _error_text(one.before),
            _error_text(one.accumulated),
            one.cause,
        )
        for one in found
    ]
    head = ("module", "class", "source", "node", ">by itself", ">before it", ">after it",
            "probable cause")  # fmt: skip
    return table_tag(f"Layers of {artifact}", *head, rows=rows)


def _error_text(value: float | None) -> str:
    return "no error" if value is None else ratio(value)


def outputs_section(manifest: Manifest) -> Markup | None:
    """Histograms of outputs by artifact, eager's beside the artifact's; None where none are."""
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
