"""`modelc report`: documents of a run from its manifest, or two runs beside each other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..core.errors import UsageError
from . import options as o
from . import options_report as r


def report(
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="An output folder, of a model or of a project; two to compare, the older first."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            metavar="FILE_OR_DIR",
            help="Where to; default: the folder.",
            rich_help_panel=o.Panel.OUTPUT,
        ),
    ] = None,
    report: r.Report = None,
    json: o.Json = False,
    quiet: o.Quiet = False,  # noqa: ARG001 - there is only the result
    fail_on_regression: Annotated[
        bool,
        typer.Option(
            "--fail-on-regression",
            help="With two folders: exit 1 if anything is worse.",
            rich_help_panel=o.Panel.VALIDATION,
        ),
    ] = False,
    latency: r.Latency = False,
    debug: o.Debug = False,  # noqa: ARG001 - read at the door
) -> None:
    """Write the reports of a run, or compare two runs, from their manifests alone."""
    from .render_report import compare_and_show, write_report

    formats = r.parse_formats(report)
    if len(paths) == 1:
        if fail_on_regression:
            raise UsageError(
                "--fail-on-regression needs two folders",
                hint="modelc report BEFORE AFTER",
                option="fail-on-regression",
            )
        write_report(paths[0], out, formats, json=json)
        return
    if len(paths) != 2:  # noqa: PLR2004 - one run, or two beside each other
        raise UsageError(
            f"{len(paths)} runs were given", hint="give one, or two to compare: BEFORE AFTER"
        )
    worse = compare_and_show((paths[0], paths[1]), out, formats, json=json, latency=latency)
    raise typer.Exit(1 if worse and fail_on_regression else 0)
