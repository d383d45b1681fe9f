"""`modelc config`: what holds for a project, and who said so."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options as o
from .options_project import ProjectFile, Set, collect_overrides


def config(
    model: Annotated[
        str | None, typer.Argument(help="One model of the project; default: all.")
    ] = None,
    file: ProjectFile = Path("modelc.toml"),
    sets: Set = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Plan every model and stop: exit 2 where anything is wrong.",
            rich_help_panel=o.Panel.PROJECT,
        ),
    ] = False,
    json: o.Json = False,
    quiet: o.Quiet = False,
    schema: Annotated[
        bool,
        typer.Option(
            "--schema",
            help="Print the JSON Schema of modelc.toml and stop.",
            rich_help_panel=o.Panel.OUTPUT,
        ),
    ] = False,
    debug: o.Debug = False,  # noqa: ARG001 - read at the door
) -> None:
    """Show every setting of a project with where it comes from.

    A flag goes before a MODELC_ variable, that before the model's table, that before the table
    of defaults, that before what is built in.
    """
    from ..core.names import unknown_name_error
    from ..projects.layers import resolve_settings
    from ..projects.reading import read_project
    from ..projects.schema import SCHEMA_FILE
    from .render_config import print_warnings, settings_document, show_check, show_settings
    from .tables import show_document, show_json

    if schema:
        show_document(SCHEMA_FILE.read_bytes())
        return
    if check:
        show_check(file, collect_overrides(sets), model, json=json, quiet=quiet)
        return
    settings = resolve_settings(read_project(file), collect_overrides(sets))
    names = [one.name for one in settings.models]
    if model is not None and model not in names:
        raise unknown_name_error(f"model in {file}:", model, names or ["(none)"])
    if not quiet:
        print_warnings(settings.warnings)
    if json:
        show_json(settings_document(settings, model))
    else:
        show_settings(settings, model)
