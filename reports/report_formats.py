"""The table of report formats that can be made from a manifest."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..core.errors import UsageError
from ..core.manifest import Manifest
from . import html_page, junit, markdown, source_findings


def render_json(manifest: Manifest) -> str:
    """The manifest as indented JSON; `schema_version` says by which schema to read it."""
    import msgspec

    return msgspec.json.format(msgspec.json.encode(manifest), indent=1).decode() + "\n"


_HTML_MARK = f'<meta name="generator" content="{html_page.GENERATOR_NAME}">'


@dataclass(frozen=True, kw_only=True)
class ReportFormat:
    """One kind of document.

    `mark` stands near the beginning of each, and tells ours from a file of somebody else.
    """

    name: str
    file: str
    summary: str
    mark: str
    render: Callable[[Manifest], str]


REPORT_FORMATS = (
    ReportFormat(name="html", file="report.html", summary="a page that opens from disk",
           mark=_HTML_MARK, render=html_page.render_html),
    ReportFormat(name="md", file="report.md", summary="Markdown for a pull request, under 60 kB",
           mark=markdown.REPORT_MARK, render=markdown.render_markdown),
    ReportFormat(name="junit", file="report.junit.xml", summary="a test case per artifact and feed",
           mark='<testsuites name="modelc"', render=junit.render_junit),
    ReportFormat(name="sarif", file="report.sarif", summary="findings on source lines",
           mark='"name": "modelc"', render=source_findings.render_sarif),
    ReportFormat(name="json", file="report.json", summary="the manifest itself",
           mark='{\n "modelc": "', render=render_json),
)  # fmt: skip


def find_format(name: str) -> ReportFormat:
    """The format of that name.

    Raises:
        UsageError: there is none.
    """
    found = next((one for one in REPORT_FORMATS if one.name == name), None)
    if found is None:
        known = ", ".join(one.name for one in REPORT_FORMATS)
        raise UsageError(f"there is no report {name!r}", hint=f"known are {known}")
    return found


def parse_formats(texts: Iterable[str]) -> tuple[ReportFormat, ...]:
    """The formats of comma-separated names, each once.

    Raises:
        UsageError: one of them is not known, or nothing is named.
    """
    names = [name.strip() for text in texts for name in text.split(",")]
    return tuple(dict.fromkeys(find_format(name) for name in names))
