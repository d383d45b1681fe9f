"""`modelc init`: a modelc.toml from what checkpoints say."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options as o


def init(
    checkpoints: Annotated[
        list[Path], typer.Argument(help="Checkpoints; each becomes a model of the project.")
    ],
    model: o.Model = None,
    model_arg: o.ModelArg = None,
    out: Annotated[
        Path,
        typer.Option(
            "-o",
            "--out",
            metavar="FILE",
            help="Where it is written.",
            rich_help_panel=o.Panel.OUTPUT,
        ),
    ] = Path("modelc.toml"),
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Replace a file that is there.", rich_help_panel=o.Panel.OUTPUT
        ),
    ] = False,
    json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,  # noqa: ARG001 - read at the door
) -> None:
    """Write a commented modelc.toml from what checkpoints say, and name the lines to edit.

    Weights are looked at and nothing of them is run; code is imported only where --model names it.
    """
    from ..projects.init import create_project
    from .render_init import project_document, show_new_project
    from .tables import show_json

    begun = create_project(checkpoints, out, model=model, model_args=model_arg or (), force=force)
    if json:
        show_json(project_document(begun))
    elif not quiet:
        show_new_project(begun)
