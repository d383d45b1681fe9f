"""Charts as inline SVG: drawn from figures alone, with their values as text beside them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from .markup import Markup, join, scroll_box, tag
from .words import percent_text

_WIDTH, _HEIGHT = 1080, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 12, 12, 26
_SMALL_WIDTH, _SMALL_HEIGHT = 300, 96
_MAX_DOTS = 160  # beyond, dots would be a band
_EXACT_TEXT = "no error"


def draw_curve(points: Sequence[tuple[str, float | None]], marked: str = "") -> Markup:
    """SQNR in dB along the model, in order of execution; the `marked` point stands out.

    A point without error has no figure: the line is broken there and starts anew.
    """
    known = [value for _, value in points if value is not None and math.isfinite(value)]
    if not known:
        return tag("p", "No layer has an error that can be drawn.", class_="quiet")
    low, high = _round_bounds(known)
    places = [
        _chart_point(index, len(points), value, (low, high))
        for index, (_, value) in enumerate(points)
    ]
    marks = [
        _draw_dot(place, *point, marked=point[0] == marked)
        for place, point in zip(places, points, strict=True)
        if place is not None and (len(points) <= _MAX_DOTS or point[0] == marked)
    ]
    label = f"SQNR along the model, {min(known):.0f} to {max(known):.0f} dB"
    inner = join(
        [
            *(_draw_gridline(low + (high - low) * step / 4, (low, high)) for step in range(5)),
            tag("path", d=_line_path(places), class_="line"),
            *marks,
            tag("text", "first layer", x=_LEFT, y=_HEIGHT - 6, class_="tick"),
            tag("text", "last layer", x=_WIDTH - _RIGHT, y=_HEIGHT - 6, class_="tick end"),
        ]
    )
    drawn = _wrap_svg(inner, (_WIDTH, _HEIGHT), label, "chart")
    return scroll_box(label, drawn, "plot")


def draw_histogram(edges: Sequence[float], eager: Sequence[int], artifact: Sequence[int]) -> Markup:
    """Eager's counts filled, the artifact's as an outline; heights are square roots of counts."""
    peak = math.sqrt(max([1, *eager, *artifact]))
    base = _SMALL_HEIGHT - 4

    def outline(counts: Sequence[int]) -> str:
        width = _SMALL_WIDTH / max(1, len(counts))
        steps = [f"M0 {base}"]
        for index, count in enumerate(counts):
            top = base - (base - 6) * math.sqrt(max(0, count)) / peak
            steps.append(f"V{top:.1f}H{(index + 1) * width:.1f}")
        return f"{''.join(steps)}V{base}Z"

    low, high = (edges[0], edges[-1]) if edges else (0.0, 0.0)
    label = f"values from {low:.4g} to {high:.4g}"
    inner = [
        tag("path", d=outline(eager), class_="fill"),
        tag("path", d=outline(artifact), class_="outline"),
    ]
    return _wrap_svg(join(inner), (_SMALL_WIDTH, _SMALL_HEIGHT), label, "small")


def draw_shares(parts: Mapping[str, float]) -> Markup:
    """Parts of one whole as a bar; the legend names each with its share."""
    total = sum(share for share in parts.values() if share > 0 and math.isfinite(share)) or 1.0
    ordered = sorted(parts.items(), key=lambda part: -part[1])
    bars, legend, left = [], [], 0.0
    for index, (name, share) in enumerate(ordered):
        width = 100 * max(0.0, share if math.isfinite(share) else 0.0) / total
        kind = f"part{min(index, 4)}"
        bars.append(tag("rect", tag("title", f"{name} {percent_text(share)}"), x=left, y=0,
                        width=width, height=10, class_=kind))  # fmt: skip
        legend.append(tag("span", tag("i", class_=kind), f"{name} {percent_text(share)}"))
        left += width
    label = ", ".join(f"{name} {percent_text(share)}" for name, share in ordered)
    drawn = _wrap_svg(join(bars), (100, 10), label, "shares", stretch=True)
    return join([drawn, tag("div", legend, class_="legend")])


def _wrap_svg(
    inner: Markup, size: tuple[int, int], label: str, class_: str, *, stretch: bool = False
) -> Markup:
    fit = "none" if stretch else None
    return tag("svg", tag("title", label), inner, viewBox=f"0 0 {size[0]} {size[1]}",
               preserveAspectRatio=fit, role="img", aria_label=label, class_=class_)  # fmt: skip


def _round_bounds(values: Sequence[float]) -> tuple[float, float]:
    """Round tens around the values."""
    low, high = math.floor(min(values) / 10) * 10, math.ceil(max(values) / 10) * 10
    return (low, high) if high > low else (low - 10, low + 10)


def _chart_point(
    index: int, count: int, value: float | None, bounds: tuple[float, float]
) -> tuple[float, float] | None:
    if value is None or not math.isfinite(value):
        return None
    inner = _WIDTH - _LEFT - _RIGHT
    return _LEFT + inner * (index / (count - 1) if count > 1 else 0.5), _chart_height(value, bounds)


def _chart_height(value: float, bounds: tuple[float, float]) -> float:
    low, high = bounds
    return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - (value - low) / (high - low))


def _line_path(places: Sequence[tuple[float, float] | None]) -> str:
    """The line through the places, broken where there is none."""
    steps, drawing = [], False
    for place in places:
        if place is not None:
            steps.append(f"{'L' if drawing else 'M'}{place[0]:.1f} {place[1]:.1f}")
        drawing = place is not None
    return "".join(steps)


def _draw_dot(
    place: tuple[float, float], name: str, value: float | None, *, marked: bool
) -> Markup:
    title = tag("title", f"{name}: {_EXACT_TEXT if value is None else f'{value:.1f} dB'}")
    kind = "dot guilty" if marked else "dot"
    return tag("circle", title, cx=round(place[0], 1), cy=round(place[1], 1),
               r=6 if marked else 3, class_=kind)  # fmt: skip


def _draw_gridline(value: float, bounds: tuple[float, float]) -> Markup:
    y = round(_chart_height(value, bounds), 1)
    line = tag("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=y, y2=y, class_="grid")
    return join([line, tag("text", f"{value:.0f} dB", x=_LEFT - 6, y=y + 4, class_="tick end")])
