"""The page's part on layers: where the error begins, how it grows, which layers are worst."""

from __future__ import annotations

from collections.abc import Iterator

from ..core.findings import Histogram, Layer, Localisation
from ..core.manifest import Manifest
from .charts import curve, histogram
from .markup import Markup, code, details, join, table, tag
from .words import counted, ratio, seconds_text, size_text

_SHOWN = 20  # layers; the rest open at a click


def layers(manifest: Manifest) -> Markup | None:
    """What was found of each artifact that was looked into; None where none was."""
    found = [_localisation(one) for one in manifest.localisations]
    return join(found) if found else None


def _localisation(found: Localisation) -> Markup:
    guilty = next((one for one in found.layers if one.module == found.guilty), None)
    looked = (
        f"on feed {found.feed}, with {counted(found.runs, 'run')} in "
        f"{seconds_text(found.seconds)}, {size_text(found.memory)} at the most"
    )
    parts = [
        tag("h3", tag("span", found.artifact, class_="name"), " ", tag("small", looked)),
        _blame(found, guilty),
        curve(found.curve, found.guilty),
        _layers(found.artifact, found.layers[:_SHOWN], found.guilty),
    ]
    if len(found.layers) > _SHOWN:
        left = found.layers[_SHOWN:]
        more = _layers(found.artifact, left, found.guilty)
        parts.append(details(f"{counted(len(left), 'more layer')}", more))
    if found.reproducer:
        parts.append(tag("p", "One-file reproducer: ", code(found.reproducer), class_="quiet"))
    return tag("article", parts, class_="card")


def _blame(found: Localisation, layer: Layer | None) -> Markup:
    if found.deviating:
        kept = ": the artifact passed, its limits allow it"
        return tag("p", "Most deviates ", code(found.deviating), kept, class_="reason")
    if not found.guilty:
        why = found.cause or "the error grows a little everywhere"
        return tag("p", "No layer is wrong by itself: ", why, class_="reason")
    place = ["", f" ({layer.kind}) at ", code(f"{layer.file}:{layer.line}")] if layer else []
    cause = [": ", found.cause] if found.cause else []
    return tag(
        "p", "The first wrong layer is ", code(found.guilty), place, cause, class_="reason failed"
    )


def _layers(artifact: str, found: tuple[Layer, ...], guilty: str) -> Markup:
    rows = [
        (
            tag("b", code(one.module)) if one.module == guilty else code(one.module),
            one.kind,
            code(f"{one.file}:{one.line}") if one.file else "",
            f"{one.node} {one.operator}".strip(),
            _error(one.local),
            _error(one.before),
            _error(one.accumulated),
            one.cause,
        )
        for one in found
    ]
    head = ("module", "class", "source", "node", ">by itself", ">before it", ">after it",
            "probable cause")  # fmt: skip
    return table(f"Layers of {artifact}", *head, rows=rows)


def _error(value: float | None) -> str:
    return "no error" if value is None else ratio(value)


def outputs(manifest: Manifest) -> Markup | None:
    """Histograms of outputs by artifact, eager's beside the artifact's; None where none are."""
    found = list(_outputs(manifest))
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


def _outputs(manifest: Manifest) -> Iterator[Markup]:
    opened = {verdict.artifact for verdict in manifest.verdicts if not verdict.passed}
    for verdict in manifest.verdicts:
        if not verdict.histograms:
            continue
        drawn = tag("div", [_histogram(one) for one in verdict.histograms], class_="grid")
        count = counted(len(verdict.histograms), "histogram")
        summary = tag("summary", tag("b", verdict.artifact), " ", tag("small", count))
        shown = "" if verdict.artifact in opened else None
        yield tag("details", summary, drawn, open=shown)


def _histogram(one: Histogram) -> Markup:
    low, high = (one.edges[0], one.edges[-1]) if one.edges else (0.0, 0.0)
    return tag(
        "figure",
        tag("figcaption", code(one.output), " on ", code(one.feed)),
        histogram(one.edges, one.eager, one.artifact),
        tag("div", tag("span", f"{low:.4g}"), tag("span", f"{high:.4g}"), class_="ends"),
    )
