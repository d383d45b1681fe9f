"""The registry of report formats."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ..core.errors import unknown_name_error
from ..core.manifest import Manifest
from . import html_page, junit, markdown, source_findings
from .result_rows import ReplayCommand


def render_json(manifest: Manifest) -> str:
    """Render the manifest as indented JSON; `schema_version` names its schema."""
    import msgspec

    return msgspec.json.format(msgspec.json.encode(manifest), indent=1).decode() + "\n"


_HTML_MARK = f'<meta name="generator" content="{html_page.GENERATOR_NAME}">'


@dataclass(frozen=True, kw_only=True)
class ReportFormat:
    """One kind of document; `mark` near its beginning identifies files that modelc wrote.

    `render` takes a manifest and the commands to show.
    """

    name: str
    file: str
    mark: str
    render: Callable[[Manifest, Sequence[ReplayCommand]], str]


REPORT_FORMATS = (
    ReportFormat(name="html", file="report.html", mark=_HTML_MARK, render=html_page.render_html),
    ReportFormat(name="md", file="report.md", mark=markdown.REPORT_MARK,
           render=markdown.render_markdown),
    ReportFormat(name="junit", file="report.junit.xml", mark='<testsuites name="modelc"',
           render=lambda manifest, _: junit.render_junit(manifest)),
    ReportFormat(name="sarif", file="report.sarif", mark='"name": "modelc"',
           render=lambda manifest, _: source_findings.render_sarif(manifest)),
    ReportFormat(name="json", file="report.json", mark='{\n "modelc": "',
           render=lambda manifest, _: render_json(manifest)),
)  # fmt: skip


def find_format(name: str) -> ReportFormat:
    """Return the format of that name.

    Raises:
        UsageError: the name is unknown.
    """
    found = next((one for one in REPORT_FORMATS if one.name == name), None)
    if found is None:
        raise unknown_name_error("report format", name, [one.name for one in REPORT_FORMATS])
    return found


def parse_formats(texts: Iterable[str]) -> tuple[ReportFormat, ...]:
    """Return the formats of comma-separated names, without duplicates.

    Raises:
        UsageError: a name is unknown or empty.
    """
    names = [name.strip() for text in texts for name in text.split(",")]
    return tuple(dict.fromkeys(find_format(name) for name in names))
