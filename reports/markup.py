"""HTML and SVG built so that no text can become markup: text is escaped, only tags are not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TypeAlias

from .words import NO_VALUE, escape_control

_VOID_TAGS = frozenset({"br", "meta", "col", "hr"})


class Markup(str):
    """Text that is markup already. Made by `tag` and `join`, or from files of this room."""

    __slots__ = ()


Child: TypeAlias = "str | Iterable[str] | None"
Attribute: TypeAlias = "str | float | None"


def tag(name: str, /, *children: Child, **attributes: Attribute) -> Markup:
    """One element.

    Args:
        name: of the element.
        children: text, which is escaped, markup, which is not, and lists of these.
        attributes: None leaves one out; `class_` is class, `stroke_width` is stroke-width.
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
    """Children one after the other."""
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
    """Text in a fixed-width face."""
    return tag("code", text)


def table_tag(caption: str, *head: str, rows: Iterable[Iterable[Child]]) -> Markup:
    """A table that scrolls sideways on a narrow screen; columns called `>name` are figures.

    The first cell of a row is its header. The caption is read aloud and not shown: a heading or a
    summary above the table says it to the eye.
    """
    right = [title.startswith(">") for title in head]
    titles = [
        tag("th", title.lstrip(">"), class_="figure" if figures else None, scope="col")
        for title, figures in zip(head, right, strict=True)
    ]
    body = [tag("tr", _cell_tags(row, right)) for row in rows]
    said = tag("caption", caption, class_="aloud")
    return scroll_box(caption, tag("table", said, tag("thead", tag("tr", titles)),
                                  tag("tbody", body)))  # fmt: skip


def scroll_box(name: str, inner: Markup, class_: str = "") -> Markup:
    """What scrolls sideways where it is too wide, by keys as well; `name` is read aloud."""
    kind = " ".join(filter(None, ("scroll", class_)))
    return tag("div", inner, class_=kind, tabindex=0, role="region", aria_label=name)


def _cell_tags(row: Iterable[Child], right: Sequence[bool]) -> list[Markup]:
    found = []
    for number, (cell, figures) in enumerate(zip(row, right, strict=True)):
        name, scope = ("td", None) if number else ("th", "row")
        found.append(tag(name, cell, class_="figure" if figures else None, scope=scope))
    return found


def _cell_class(cell: Child, kind: str | None) -> str | None:
    """The class of a cell; of one without anything, that no card needs a line for it."""
    unset = "unset" if cell in ("", NO_VALUE) else None
    return " ".join(filter(None, (unset, kind))) or None


def card_table(caption: str, *head: str, rows: Iterable[Iterable[Child]]) -> Markup:
    """A table whose rows become cards on a narrow screen, each cell below its column's title.

    Roles are spelled out: a browser forgets that it is a table where cells are laid out as blocks.
    """
    right = [title.startswith(">") for title in head]
    names = [title.lstrip(">") for title in head]
    kinds = ["figure" if figures else None for figures in right]
    titles = [
        tag("th", name, class_=kind, scope="col", role="columnheader")
        for name, kind in zip(names, kinds, strict=True)
    ]
    body = []
    for row in rows:
        first, *rest = row
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
    """What opens at a click."""
    return tag("details", tag("summary", summary), *children)
