"""Renders what doctor, config, init and cache report."""

from __future__ import annotations

import json as encoder
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape

from ..core.installation import Buildable, Check, CheckState, Diagnosis
from ..projects.model_orders import plan_project
from ..projects.project_records import KeyPath, Setting, SettingLayer, Settings, Value
from ..projects.project_template import NewProject
from ..projects.setting_layers import Overrides
from ..reports.text_format import count_text, size_text
from .console import error_console, new_table, print_line, result_console, show_json

if TYPE_CHECKING:
    from rich.console import Console

    from ..pipeline.cache.store_layout import ListedResult

_CHECK_MARKS = {
    CheckState.OK: "[green]ok[/]",
    CheckState.WARN: "[yellow]warn[/]",
    CheckState.MISSING: "[dim]missing[/]",
    CheckState.BROKEN: "[red]broken[/]",
}


def show_diagnosis(diagnosis: Diagnosis, *, quiet: bool = False) -> None:
    """The checks, then the formats and quantizers, then one line that sums it up.

    Where it is to be quiet, only the checks that something came of, and that line.
    """
    console = result_console()
    if quiet:
        found = [
            check
            for check in diagnosis.checks
            if check.state in (CheckState.WARN, CheckState.BROKEN)
        ]
        if found:
            _show_checks(console, found)
        print_line(console, _diagnosis_summary(diagnosis))
        return
    _show_checks(console, diagnosis.checks)
    _show_buildable(console, "format", "precisions", diagnosis.targets)
    if diagnosis.quantizers:
        _show_buildable(console, "quantizer", "for", diagnosis.quantizers)
    print_line(console, _diagnosis_summary(diagnosis))


def _show_checks(console: Console, checks: Sequence[Check]) -> None:
    table = new_table("check", "", "found", "what mends it")
    table.columns[0].no_wrap = True
    for check in checks:
        # What is as it should be, or need not be there, is not to be mended.
        mend = check.mend if check.state is not CheckState.OK else ""
        row = (check.name, _CHECK_MARKS[check.state], check.told, mend)
        table.add_row(escape(row[0]), row[1], escape(row[2]), escape(row[3]))
    console.print(table)


def _show_buildable(console: Console, title: str, makes: str, rows: Sequence[Buildable]) -> None:
    table = new_table(title, "here", makes, "version, or why not", "what mends it")
    table.columns[0].no_wrap = True
    for row in rows:
        mark = "[green]yes[/]" if row.ready else "[red]no[/]"
        table.add_row(row.name, mark, escape(row.makes), escape(row.told), escape(row.mend))
    console.print(table)


def _diagnosis_summary(diagnosis: Diagnosis) -> str:
    ready = sum(row.ready for row in diagnosis.targets)
    can = f"{ready} of {len(diagnosis.targets)} formats can be built here"
    if not diagnosis.failures:
        return can
    names = ", ".join(escape(check.name) for check in diagnosis.failures)
    return f"[red]broken[/]: {names}; {can}"


def print_warnings(lines: Sequence[str]) -> None:
    """Lines that the user should see, on stderr."""
    if not lines:
        return
    with error_console() as console:
        for line in lines:
            print_line(console, f"[yellow]warning:[/] {escape(line)}")


def show_check(file: Path, given: Overrides, model: str | None, *, json: bool, quiet: bool) -> None:
    """Plan a project as a run would, and say in one line that nothing is wrong with it.

    Raises:
        ModelcError: all faults of the file, of what goes over it and of the models as one.
    """
    planned = plan_project(file, given=given, names=() if model is None else (model,))
    if not quiet:
        print_warnings(planned.settings.warnings)
    if json:
        show_json(settings_document(planned.settings, model))
        return
    models = planned.models
    artifacts = sum(step.asked for one in models for step in one.plan)
    told = f"{count_text(len(models), 'model')}, {count_text(artifacts, 'artifact')}"
    print_line(result_console(), f"{escape(str(file))}: {told}, nothing wrong")


def show_settings(settings: Settings, model: str | None) -> None:
    """A table for the run, and one for each model, or for the one that is named."""
    console = result_console()
    tables = [] if model else [("the run", settings.run_said)]
    tables += [(one.name, one.said) for one in settings.models if model in (None, one.name)]
    for title, said in tables:
        table = new_table(title, "value", "from")
        for one in _sort_settings(said):
            built_in = one.layer is SettingLayer.BUILT_IN
            style = "dim" if built_in else ""
            table.add_row(
                escape(one.name), escape(_value_text(one.value)), escape(str(one.told)), style=style
            )
        console.print(table)


def settings_document(settings: Settings, model: str | None) -> bytes:
    """The same as JSON: `run`, and `models` by name, each a list of settings."""
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
        {"key": one.name, "value": one.value, "layer": one.layer.value, "from": str(one.told)}
        for one in _sort_settings(said)
    ]


def _sort_settings(said: Mapping[KeyPath, Setting]) -> Iterable[Setting]:
    """What somebody said before what is built in."""
    return sorted(said.values(), key=lambda one: one.layer is SettingLayer.BUILT_IN)


def _value_text(value: Value) -> str:
    """A value as TOML has it; one of a list alone without its brackets."""
    if isinstance(value, tuple):
        return ", ".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def project_document(begun: NewProject) -> bytes:
    """The file, its models, the lines to edit, and what else is wrong."""
    from ..pipeline.manifest_file import encode_json

    left = [{"message": one.text, "hint": one.hint} for one in begun.left]
    return encode_json(
        {"file": str(begun.file), "models": begun.models, "edits": begun.edits, "left": left}
    )


def show_new_project(begun: NewProject) -> None:
    """The models, the lines to edit, and the command that comes next."""
    console = result_console()
    for name, one in zip(begun.models, begun.described, strict=True):
        held = f", {one.parameters:,} numbers in {len(one.tensors)} tensors" if one.tensors else ""
        print_line(console, f"{escape(name)}: {escape(one.kind)}{held}")
    print_line(console, f"wrote {escape(str(begun.file))}")
    for edit in begun.edits:
        what = ", ".join((*edit.sizes, edit.what))
        place = f"{begun.file}:{edit.line} {edit.key}"
        print_line(console, f"[yellow]edit[/] {escape(place)}: {escape(what)}")
    for fault in begun.left:
        print_line(console, f"[yellow]mend[/] {escape(fault.text)}")
        print_line(console, f"     [dim]{escape(fault.hint)}[/]")
    print_line(
        console,
        "then: modelc config, modelc run" if begun.edits or begun.left else "next: modelc run",
    )


_TIME_UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))


def show_cache(rows: Sequence[ListedResult], size: int, folder: Path) -> None:
    """A row for each result, then the size of all and where they are."""
    console = result_console()
    if rows:
        heads = ("model", "artifact", "size", "last used", "key", "result")
        table = new_table(*heads, right=("size",))
        for row in rows:
            used = _age_text(time.time() - row.used)
            names = (row.key[:12], row.name[:12])
            table.add_row(
                escape(row.model), escape(row.artifact), size_text(row.size), used, *names
            )
        console.print(table)
    print_line(
        console, f"{count_text(len(rows), 'result')}, {size_text(size)} in {escape(str(folder))}"
    )


def show_cache_freed(freed: int, left: int) -> None:
    """What went and what stays."""
    print_line(result_console(), f"{size_text(freed)} freed, {size_text(left)} left")


def show_cache_faults(wrong: Sequence[str], left: int) -> None:
    """A line for each thing that was wrong, then one that sums it up."""
    console = result_console()
    for line in wrong:
        print_line(console, f"[red]removed[/]: {escape(line)}")
    told = f"{len(wrong)} wrong and removed" if wrong else "all digests are right"
    print_line(console, f"{told}, {size_text(left)} left")


def _age_text(seconds: float) -> str:
    for step, unit in _TIME_UNITS:
        if seconds >= step:
            return f"{seconds / step:.0f} {unit} ago"
    return "just now"
