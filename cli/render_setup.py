"""Render the results of doctor, config, init and cache."""

from __future__ import annotations

import json as encoder
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape

from ..core.installation import Buildable, Check, CheckState, Diagnosis
from ..core.records import size_text
from ..projects.model_orders import plan_project
from ..projects.project_records import PROJECT_FILE, KeyPath, Setting, SettingLayer, Settings, Value
from ..projects.project_template import NewProject
from ..projects.setting_layers import Overrides
from ..reports.text_format import count_text
from .console import (
    error_console,
    new_table,
    print_line,
    ready_mark,
    result_console,
    show_document,
    show_json,
)

if TYPE_CHECKING:
    from rich.console import Console

    from ..converters.library_checks import LibraryHost
    from ..pipeline.cache.store_layout import ListedResult
    from ..pipeline.call_options import CallOptions
    from ..runtimes.runtime_environments import ListedEnvironment

_CHECK_MARKS = {
    CheckState.OK: "[green]ok[/]",
    CheckState.WARN: "[yellow]warn[/]",
    CheckState.MISSING: "[dim]missing[/]",
    CheckState.BROKEN: "[red]broken[/]",
}


def show_diagnosis(diagnosis: Diagnosis, *, quiet: bool = False) -> None:
    """Show the checks, the formats and quantizers, and a summary.

    If `quiet`, only checks with warnings or failures, and the summary.
    """
    console = result_console()
    wrong = (CheckState.WARN, CheckState.BROKEN)
    checks = [check for check in diagnosis.checks if not quiet or check.state in wrong]
    if checks:
        _show_checks(console, checks)
    if not quiet:
        _show_buildable(console, "format", "precisions", diagnosis.targets)
    if diagnosis.quantizers and not quiet:
        _show_buildable(console, "quantizer", "for", diagnosis.quantizers)
    print_line(console, _diagnosis_summary(diagnosis))


def _show_checks(console: Console, checks: Sequence[Check]) -> None:
    table = new_table("check", "", "found", "fix")
    table.columns[0].no_wrap = True
    for check in checks:
        fix = "" if check.state is CheckState.OK else check.fix
        mark = _CHECK_MARKS[check.state]
        table.add_row(escape(check.name), mark, escape(check.detail), escape(fix))
    console.print(table)


def _show_buildable(console: Console, title: str, what: str, rows: Sequence[Buildable]) -> None:
    table = new_table(title, "ready", what, "version or reason", "fix")
    table.columns[0].no_wrap = True
    for row in rows:
        mark = ready_mark(ready=row.ready, builds=row.builds)
        table.add_row(row.name, mark, escape(row.makes), escape(row.detail), escape(row.fix))
    console.print(table)


def _diagnosis_summary(diagnosis: Diagnosis) -> str:
    ready = sum(row.ready for row in diagnosis.targets)
    summary = f"{ready} of {len(diagnosis.targets)} formats can be built here"
    if not diagnosis.failures:
        return summary
    names = ", ".join(escape(check.name) for check in diagnosis.failures)
    return f"[red]broken[/]: {names}; {summary}"


def write_gpu_report(
    host: LibraryHost, diagnosis: Diagnosis, folder: Path | None, path: Path, call: CallOptions
) -> None:
    """Write the report of a GPU host, and print it or what it contains.

    Raises:
        UsageError: the folder has no manifest, or the file cannot be written.
    """
    from ..core.atomic_write import atomic_write
    from ..pipeline.gpu_report import encode_report, make_gpu_report
    from ..pipeline.output_folder import translate_write_errors

    report = make_gpu_report(host, diagnosis, folder)
    text = encode_report(report)
    with translate_write_errors(path.parent):
        atomic_write(path, text)
    if call.json:
        show_document(text)
    elif not call.quiet:
        console = result_console()
        print_line(console, f"wrote {escape(str(path))} ({size_text(len(text))}). It contains:")
        for line in report.contains:
            print_line(console, f"  - {escape(line)}")


def print_warnings(lines: Iterable[str]) -> None:
    """Print warnings on stderr."""
    with error_console() as console:
        for line in lines:
            print_line(console, f"[yellow]warning:[/] {escape(line)}")


def show_check(file: Path, given: Overrides, model: str | None, *, json: bool, quiet: bool) -> None:
    """Plan a project as a run would, and show that it has no errors.

    Raises:
        ModelcError: all errors of the file, the overrides and the models, joined.
    """
    planned = plan_project(file, given=given, names=() if model is None else (model,))
    if not quiet:
        print_warnings(planned.settings.warnings)
    if json:
        show_json(settings_document(planned.settings, model))
        return
    models = planned.models
    artifacts = sum(len(one.asked_names) for one in models)
    counts = f"{count_text(len(models), 'model')}, {count_text(artifacts, 'artifact')}"
    print_line(result_console(), f"{escape(str(file))}: {counts}, no errors")


def show_settings(settings: Settings, model: str | None) -> None:
    """Show the settings of the run and of each model, or of the named model only."""
    console = result_console()
    tables = [] if model else [("the run", settings.run_said)]
    tables += [(one.name, one.said) for one in settings.models if model in (None, one.name)]
    for title, said in tables:
        table = new_table(title, "value", "from")
        for one in _sort_settings(said):
            built_in = one.layer is SettingLayer.BUILT_IN
            style = "dim" if built_in else ""
            table.add_row(
                escape(one.name),
                escape(_value_text(one.value)),
                escape(str(one.place)),
                style=style,
            )
        console.print(table)


def settings_document(settings: Settings, model: str | None) -> bytes:
    """Return the settings as JSON: `run`, and `models` by name, each a list."""
    document = {
        "file": str(settings.project.file),
        "run": _rows_of_settings(settings.run_said),
        "models": {
            one.name: _rows_of_settings(one.said)
            for one in settings.models
            if model in (None, one.name)
        },
        "warnings": list(settings.warnings),
    }
    return (encoder.dumps(document, indent=1) + "\n").encode()


def _rows_of_settings(said: Mapping[KeyPath, Setting]) -> list[dict[str, object]]:
    return [
        {"key": one.name, "value": one.value, "layer": one.layer.value, "from": str(one.place)}
        for one in _sort_settings(said)
    ]


def _sort_settings(said: Mapping[KeyPath, Setting]) -> Iterable[Setting]:
    """Sort explicit settings before defaults."""
    return sorted(said.values(), key=lambda one: one.layer is SettingLayer.BUILT_IN)


def _value_text(value: Value) -> str:
    """Format a value as in TOML, a list without brackets."""
    if isinstance(value, tuple):
        return ", ".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def project_document(begun: NewProject) -> bytes:
    """Return the file, its models, the lines to edit, and other errors as JSON."""
    from ..pipeline.manifest_file import encode_json

    left = [{"message": one.text, "hint": one.hint} for one in begun.left]
    return encode_json(
        {"file": str(begun.file), "models": begun.models, "edits": begun.edits, "left": left}
    )


def show_new_project(begun: NewProject) -> None:
    """Show the models, the lines to edit, and the next command."""
    console = result_console()
    for name, one in zip(begun.models, begun.described, strict=True):
        counts = f"{one.parameters:,} parameters in {count_text(len(one.tensors), 'tensor')}"
        print_line(
            console, f"{escape(name)}: {escape(one.kind)}{f', {counts}' if one.tensors else ''}"
        )
    print_line(console, f"wrote {escape(str(begun.file))}")
    for edit in begun.edits:
        what = ", ".join((*edit.sizes, edit.what))
        place = f"{begun.file}:{edit.line} {edit.key}"
        print_line(console, f"[yellow]edit[/] {escape(place)}: {escape(what)}")
    for fault in begun.left:
        print_line(console, f"[yellow]fix[/] {escape(fault.text)}")
        print_line(console, f"    [dim]{escape(fault.hint)}[/]")
    unfinished = begun.edits or begun.left
    given = "" if begun.file.name == PROJECT_FILE else f" -f {shlex.quote(str(begun.file))}"
    todo = "complete these lines, then run" if unfinished else "run"
    print_line(console, f"next: {todo} modelc run{escape(given)}")


_TIME_UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))


def show_cache(rows: Sequence[ListedResult], size: int, folder: Path) -> None:
    """Show a row per result, then their total size and folder."""
    console = result_console()
    if rows:
        heads = ("model", "artifact", "size", "last used", "key", "result")
        table = new_table(*heads, right=("size",))
        for row in rows:
            used = _age_text(time.time() - row.used)
            names = (row.key[:12], row.name[:12])
            cells = (escape(row.model), escape(row.artifact), size_text(row.size), used, *names)
            table.add_row(*cells)
        console.print(table)
    results = count_text(len(rows), "result")
    print_line(console, f"{results}, {size_text(size)} in {escape(str(folder))}")


def show_environments(rows: Sequence[ListedEnvironment], folder: Path) -> None:
    """Show a row per environment of another runtime, then their total size and folder."""
    console = result_console()
    if rows:
        table = new_table("runtime", "version", "python", "size", "made", right=("size",))
        for row in rows:
            made = _age_text(time.time() - row.made)
            cells = (row.requirement, row.version, row.python, size_text(row.size), made)
            table.add_row(*map(escape, cells))
        console.print(table)
    size = size_text(sum(row.size for row in rows))
    print_line(console, f"{count_text(len(rows), 'environment')}, {size} in {escape(str(folder))}")


def show_cache_faults(wrong: Sequence[str], left: int) -> None:
    """Show each corrupt result that was removed, and a summary."""
    console = result_console()
    for line in wrong:
        print_line(console, f"[red]removed[/]: {escape(line)}")
    summary = f"{count_text(len(wrong), 'corrupt file')} removed" if wrong else "all digests match"
    print_line(console, f"{summary}, {size_text(left)} left")


def _age_text(seconds: float) -> str:
    for step, unit in _TIME_UNITS:
        if seconds >= step:
            return f"{seconds / step:.0f} {unit} ago"
    return "just now"
