"""Build HTML and SVG charts; text is always escaped."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TypeAlias

from .text_format import NO_VALUE, escape_control, percent_text

_VOID_TAGS = frozenset({"br", "wbr", "meta", "col", "hr"})


class Markup(str):
    """Text that is markup already: from `tag`, `join` or files of this package."""

    __slots__ = ()


Child: TypeAlias = "str | Iterable[str] | None"
Attribute: TypeAlias = "str | float | None"


def tag(name: str, /, *children: Child, **attributes: Attribute) -> Markup:
    """Return an element.

    Args:
        name: the name of the element.
        children: text, which is escaped; markup, which is not; and lists of these.
        attributes: None omits one; `class_` is class, `stroke_width` is stroke-width.
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_attribute_text(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID_TAGS:
        return Markup(f"<{name}{given}>")
    return Markup(f"<{name}{given}>{join(children)}</{name}>")


def join(children: Iterable[Child]) -> Markup:
    """Concatenate children."""
    return Markup("".join(_child_text(child) for child in children))


def _child_text(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return str.__str__(child)
    if isinstance(child, str):
        return escape(escape_control(child))
    return str.__str__(join(child))


def _attribute_text(value: str | float) -> str:
    return escape(escape_control(value)) if isinstance(value, str) else f"{value:g}"


def code_tag(text: str) -> Markup:
    """Return a `code` element."""
    return tag("code", text)


def table_tag(caption: str, *head: str, rows: Iterable[Iterable[Child]]) -> Markup:
    """Return a table that scrolls sideways; columns called `>name` are right-aligned.

    Columns without content are left out. The first cell of a row is its header. The caption is for
    screen readers only, as a heading or summary stands above the table.
    """
    head, cells = _drop_unused_columns(head, rows)
    right = [title.startswith(">") for title in head]
    titles = [
        tag("th", title.lstrip(">"), class_="figure" if figures else None, scope="col")
        for title, figures in zip(head, right, strict=True)
    ]
    body = [tag("tr", _cell_tags(row, right)) for row in cells]
    title = tag("caption", caption, class_="aloud")
    return scroll_box(caption, tag("table", title, tag("thead", tag("tr", titles)),
                                  tag("tbody", body)))  # fmt: skip


def _drop_unused_columns(
    head: Sequence[str], rows: Iterable[Iterable[Child]]
) -> tuple[tuple[str, ...], list[list[Child]]]:
    """Leave out the columns without content."""
    cells = [list(row) for row in rows]
    unset = ("", None, NO_VALUE)
    used = [at for at in range(len(head)) if any(row[at] not in unset for row in cells)]
    return tuple(head[at] for at in used), [[row[at] for at in used] for row in cells]


def scroll_box(name: str, inner: Markup, class_: str = "") -> Markup:
    """Return a box that scrolls sideways, by keyboard too; `name` is its accessible label."""
    kind = " ".join(filter(None, ("scroll", class_)))
    return tag("div", inner, class_=kind, tabindex=0, role="region", aria_label=name)


def _cell_tags(row: Iterable[Child], right: Sequence[bool]) -> list[Markup]:
    found = []
    for number, (cell, figures) in enumerate(zip(row, right, strict=True)):
        name, scope = ("td", None) if number else ("th", "row")
        found.append(tag(name, cell, class_="figure" if figures else None, scope=scope))
    return found


def _cell_class(cell: Child, kind: str | None) -> str | None:
    """Return the class of a cell; an empty cell takes no line in a card."""
    unset = "unset" if cell in ("", NO_VALUE) else None
    return " ".join(filter(None, (unset, kind))) or None


def card_table(caption: str, *head: str, rows: Iterable[Iterable[Child]]) -> Markup:
    """Return a table whose rows become cards on a narrow screen.

    Columns without content are left out. The roles are explicit because browsers drop table
    semantics when cells are laid out as blocks.
    """
    head, cells_of = _drop_unused_columns(head, rows)
    right = [title.startswith(">") for title in head]
    names = [title.lstrip(">") for title in head]
    kinds = ["figure" if figures else None for figures in right]
    titles = [
        tag("th", name, class_=kind, scope="col", role="columnheader")
        for name, kind in zip(names, kinds, strict=True)
    ]
    body = []
    for first, *rest in cells_of:
        cells = [tag("th", first, scope="row", role="rowheader")]
        cells += [
            tag("td", cell, class_=_cell_class(cell, kind), role="cell", data_title=name)
            for cell, kind, name in zip(rest, kinds[1:], names[1:], strict=True)
        ]
        body.append(tag("tr", cells, role="row"))
    inner = tag("table", tag("caption", caption),
                tag("thead", tag("tr", titles, role="row"), role="rowgroup"),
                tag("tbody", body, role="rowgroup"), class_="stacked", role="table")  # fmt: skip
    return scroll_box(caption, inner)


def details_tag(summary: Child, *children: Child) -> Markup:
    """Return a folded section."""
    return tag("details", tag("summary", summary), *children)


_WIDTH, _HEIGHT = 1080, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 12, 12, 26
_SMALL_WIDTH, _SMALL_HEIGHT = 300, 96
_MAX_DOTS = 160  # more would merge into a band
_EXACT_TEXT = "no error"


def draw_curve(points: Sequence[tuple[str, float | None]], marked: str = "") -> Markup:
    """Draw the SQNR in dB along the model, in order of execution; highlight the `marked` point.

    The line is interrupted at points without error.
    """
    known = [value for _, value in points if value is not None and math.isfinite(value)]
    if not known:
        return tag("p", "No layer has a finite error.", class_="quiet")
    low, high = math.floor(min(known) / 10) * 10, math.ceil(max(known) / 10) * 10
    low, high = (low, high) if high > low else (low - 10, low + 10)
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
    """Draw eager's counts filled and the artifact's as an outline, on a square-root scale."""
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
    """Draw the parts of a whole as a bar with a legend."""
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
    """Return the path through the places, interrupted at None."""
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
