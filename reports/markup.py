"""HTML and SVG built so that no text can become markup: text is escaped, only tags are not."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TypeAlias

from .words import clean

_VOID = frozenset({"br", "meta", "col", "hr"})


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
        f' {key.rstrip("_").replace("_", "-")}="{_attribute(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Markup(f"<{name}{given}>")
    return Markup(f"<{name}{given}>{join(children)}</{name}>")


def join(children: Iterable[Child]) -> Markup:
    """Children one after the other."""
    return Markup("".join(_inside(child) for child in children))


def _inside(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return str.__str__(child)
    if isinstance(child, str):
        return escape(clean(child))
    return str.__str__(join(child))


def _attribute(value: str | float) -> str:
    return escape(clean(value)) if isinstance(value, str) else f"{value:g}"


def code(text: str) -> Markup:
    """Text in a fixed-width face."""
    return tag("code", text)


def table(*head: str, rows: Iterable[Iterable[Child]], class_: str = "") -> Markup:
    """A table that scrolls sideways on a narrow screen; columns called `>name` are figures."""
    right = [title.startswith(">") for title in head]
    titles = [
        tag("th", title.lstrip(">"), class_="figure" if figures else None, scope="col")
        for title, figures in zip(head, right, strict=True)
    ]
    body = [
        tag(
            "tr",
            [
                cell
                if isinstance(cell, Markup) and cell.startswith("<td")
                else tag("td", cell, class_="figure" if figures else None)
                for cell, figures in zip(row, right, strict=True)
            ],
        )
        for row in rows
    ]
    inner = tag("table", tag("thead", tag("tr", titles)), tag("tbody", body), class_=class_ or None)
    return tag("div", inner, class_="scroll", tabindex=0)


def details(summary: Child, *children: Child) -> Markup:
    """What opens at a click."""
    return tag("details", tag("summary", summary), *children)
