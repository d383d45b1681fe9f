"""Settings with where they come from, as tables on stdout or as one document."""

from __future__ import annotations

import json as encoder
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rich.markup import escape

from ..projects.layers import Overrides
from ..projects.orders import plan_project
from ..projects.records import KeyPath, Setting, SettingLayer, Settings, Value
from ..reports.words import count_text
from .screen import error_console
from .tables import new_table, print_line, result_console, show_json


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
