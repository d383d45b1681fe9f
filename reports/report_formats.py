"""The registry of report formats."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..core.errors import UsageError
from ..core.manifest import Manifest
from . import html_page, junit, markdown, source_findings


def render_json(manifest: Manifest) -> str:
    """Render the manifest as indented JSON; `schema_version` names its schema."""
    import msgspec

    return msgspec.json.format(msgspec.json.encode(manifest), indent=1).decode() + "\n"


_HTML_MARK = f'<meta name="generator" content="{html_page.GENERATOR_NAME}">'


@dataclass(frozen=True, kw_only=True)
class ReportFormat:
    """One kind of document; `mark` near its beginning identifies files that modelc wrote."""

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
    """Return the format of that name.

    Raises:
        UsageError: the name is unknown.
    """
    found = next((one for one in REPORT_FORMATS if one.name == name), None)
    if found is None:
        known = ", ".join(one.name for one in REPORT_FORMATS)
        raise UsageError(f"unknown report format {name!r}", hint=f"use one of {known}")
    return found


def parse_formats(texts: Iterable[str]) -> tuple[ReportFormat, ...]:
    """Return the formats of comma-separated names, without duplicates.

    Raises:
        UsageError: a name is unknown or empty.
    """
    names = [name.strip() for text in texts for name in text.split(",")]
    return tuple(dict.fromkeys(find_format(name) for name in names))
