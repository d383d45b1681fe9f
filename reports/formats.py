"""The documents that can be made from a manifest: one table."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..core.errors import UsageError
from ..core.manifest import Manifest
from . import html_page, json_document, junit, markdown, sarif

_HTML = f'<meta name="generator" content="{html_page.GENERATOR}">'


@dataclass(frozen=True, kw_only=True)
class Format:
    """One kind of document.

    `mark` stands near the beginning of each, and tells ours from a file of somebody else.
    """

    name: str
    file: str
    summary: str
    mark: str
    render: Callable[[Manifest], str]


FORMATS = (
    Format(name="html", file="report.html", summary="a page that opens from disk",
           mark=_HTML, render=html_page.render),
    Format(name="md", file="report.md", summary="Markdown for a pull request, under 60 kB",
           mark=markdown.MARK, render=markdown.render),
    Format(name="junit", file="report.junit.xml", summary="a test case per artifact and feed",
           mark='<testsuites name="modelc"', render=junit.render),
    Format(name="sarif", file="report.sarif", summary="findings on source lines",
           mark='"name": "modelc"', render=sarif.render),
    Format(name="json", file="report.json", summary="the manifest itself",
           mark='{\n "modelc": "', render=json_document.render),
)  # fmt: skip


def format_named(name: str) -> Format:
    """The format of that name.

    Raises:
        UsageError: there is none.
    """
    found = next((one for one in FORMATS if one.name == name), None)
    if found is None:
        known = ", ".join(one.name for one in FORMATS)
        raise UsageError(f"there is no report {name!r}", hint=f"known are {known}")
    return found


def formats_of(texts: Iterable[str]) -> tuple[Format, ...]:
    """The formats of comma-separated names, each once.

    Raises:
        UsageError: one of them is not known, or nothing is named.
    """
    names = [name.strip() for text in texts for name in text.split(",")]
    return tuple(dict.fromkeys(format_named(name) for name in names))
