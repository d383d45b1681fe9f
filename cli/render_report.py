"""Render what `modelc report` writes: paths of documents, and two runs as a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from rich.markup import escape

from ..core.errors import UsageError
from ..core.manifest import Manifest
from ..pipeline.manifest_file import encode_json
from ..pipeline.report_files import (
    compare_runs,
    load_run,
    render_report,
    write_document,
    write_reports,
)
from ..projects.project_results import compare_projects, is_project_folder, read_results
from ..reports.comparison import Change, Comparison
from ..reports.comparison_documents import (
    CHANGE_TITLES,
    comparison_markdown,
    comparison_page,
    headline,
    run_text,
)
from ..reports.report_formats import REPORT_FORMATS, ReportFormat, find_format
from .console import print_line, result_console, show_json, show_reasons_table
from .render_run import CHANGE_MARKS

_COMPARISON_WRITERS: dict[str, Callable[[Comparison], str]] = {
    "html": comparison_page,
    "md": comparison_markdown,
}


def write_report(
    path: Path, out: Path | None, formats: Sequence[ReportFormat], *, json: bool
) -> None:
    """Write the documents of one run and show their paths; with `json`, show its manifest.

    Raises:
        UsageError: the folder contains no run, or a document cannot be written.
    """
    if is_project_folder(path):
        _write_project(path, out, formats, json=json)
        return
    manifest, folder = load_run(path)
    chosen = list(formats) or _formats_by_suffix(out) or ([] if json else [find_format("html")])
    written = _write_documents(manifest, out or folder, chosen) if chosen else ()
    if json:
        show_json(encode_json(manifest))
    else:
        show_paths(written)


def _write_project(
    folder: Path, out: Path | None, formats: Sequence[ReportFormat], *, json: bool
) -> None:
    """Write the documents of all models and their index beside their manifests."""
    from ..projects.index_page import write_project_reports

    if out is not None:
        raise UsageError(
            f"-o {out}: the linked pages of a project are written to {folder}",
            hint="omit -o, or report the folder of one model",
        )
    chosen = list(formats) or ([] if json else [find_format("html")])
    written = write_project_reports(folder, chosen)
    if json:
        show_json(encode_json(read_results(folder).record))
    else:
        show_paths(written)


def _write_documents(
    manifest: Manifest, out: Path, formats: Sequence[ReportFormat]
) -> tuple[Path, ...]:
    if not _is_document_path(out):
        return write_reports(manifest, out, formats)
    kind = _single_format(formats, out)
    return (write_document(render_report(manifest, kind), out, kind),)


def _is_document_path(out: Path) -> bool:
    """Whether `-o` names a file: it has the suffix of a document and is not a folder."""
    return not out.is_dir() and bool(_formats_by_suffix(out))


def _formats_by_suffix(out: Path | None) -> list[ReportFormat]:
    """Return the format with the suffix of `out`; `.xml` is JUnit."""
    if out is None or out.is_dir() or not out.suffix:
        return []
    return [one for one in REPORT_FORMATS if one.file.endswith(out.suffix)]


def _single_format(formats: Sequence[ReportFormat], out: Path) -> ReportFormat:
    if len(formats) > 1:
        raise UsageError(
            f"-o {out} is one file, but {len(formats)} reports were requested",
            hint="pass a folder to -o, or one --report",
        )
    return formats[0]


def report_run(
    manifest: Manifest, folder: Path, formats: Sequence[ReportFormat], *, json: bool
) -> None:
    """Write the reports of the run that ended; with `json`, do not show their paths.

    Raises:
        UsageError: a report cannot be written.
    """
    written = write_reports(manifest, folder, formats)
    if not json:
        show_paths(written)


def show_paths(paths: Sequence[Path]) -> None:
    """Show the path of each document."""
    console = result_console()
    for path in paths:
        print_line(console, f"report · {escape(str(path))}")


def compare_and_show(
    paths: tuple[Path, Path],
    out: Path | None,
    formats: Sequence[ReportFormat],
    *,
    json: bool,
    latency: bool = False,
) -> bool:
    """Show what changed from the first run to the second; return whether anything is worse.

    Documents are written if `--report` or `-o` is given.

    Raises:
        UsageError: a folder contains no run, or the format does not support comparisons.
    """
    chosen = list(formats) or _formats_by_suffix(out) or ([find_format("md")] if out else [])
    for one in chosen:
        if one.name not in _COMPARISON_WRITERS:
            known = ", ".join(_COMPARISON_WRITERS)
            raise UsageError(
                f"--report {one.name} does not support two runs",
                hint=f"use one of {known}, or --json",
            )
    projects = [is_project_folder(path) for path in paths]
    if all(projects):
        comparison = compare_projects(*map(read_results, paths), latency=latency)
        folder = paths[1]
    else:
        comparison = compare_runs(*paths, latency=latency)
        folder = load_run(paths[1])[1]
    written = _write_comparison(comparison, out or folder, chosen)
    if json:
        show_json(encode_json(comparison))
    else:
        _show_comparison(comparison)
        show_paths(written)
    return comparison.has_regressions


def _write_comparison(
    comparison: Comparison, out: Path, formats: Sequence[ReportFormat]
) -> tuple[Path, ...]:
    if formats and _is_document_path(out):
        kind = _single_format(formats, out)
        return (write_document(_COMPARISON_WRITERS[kind.name](comparison), out, kind),)
    return tuple(
        write_document(
            _COMPARISON_WRITERS[one.name](comparison), out / f"comparison.{one.name}", one
        )
        for one in formats
    )


def _show_comparison(comparison: Comparison) -> None:
    """Show the measures that changed, and count the others."""
    console = result_console()
    print_line(console, f"before: {escape(run_text(comparison.before))}")
    print_line(console, f"after:  {escape(run_text(comparison.after))}")
    for note in comparison.notes:
        print_line(console, f"  [yellow]{escape(note)}[/]")
    shown = [m for m in comparison.measures if m.change in CHANGE_MARKS]
    if shown:
        rows = [
            {
                "artifact": escape(m.artifact),
                "measure": escape(m.measure),
                "before": escape(m.before),
                "after": escape(m.after),
                "": CHANGE_MARKS[m.change],
                "why": escape(m.why),
            }
            for m in shown
        ]
        show_reasons_table(console, rows, right=("before", "after"))
    unchanged = [
        (len(comparison.of(change)), CHANGE_TITLES[change])
        for change in (Change.NOISE, Change.SAME)
    ]
    rest = ", ".join(f"{count} {title.lower()}" for count, title in unchanged if count)
    print_line(console, f"{escape(headline(comparison))}{f' ({rest})' if rest else ''}")
