"""`--report`, which the commands that judge share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..core.errors import ErrorCode, UsageError
from .options import Panel

if TYPE_CHECKING:
    from ..reports.formats import ReportFormat

Report = Annotated[
    list[str] | None,
    typer.Option(
        "--report",
        metavar="NAMES",
        help="Reports to write: html, md, junit, sarif, json; several with commas.",
        rich_help_panel=Panel.OUTPUT,
    ),
]
Latency = Annotated[
    bool,
    typer.Option(
        "--latency",
        help="Beside another run, judge timings too: as ratios to fp32, beyond their noise.",
        rich_help_panel=Panel.ADVANCED,
    ),
]


def parse_formats(texts: list[str] | None) -> tuple[ReportFormat, ...]:
    """The formats that were asked for.

    Raises:
        UsageError: one of them is not known.
    """
    if not texts:
        return ()
    from ..reports import formats

    return formats.parse_formats(texts)


def parse_folder_formats(path: Path, texts: list[str] | None) -> tuple[ReportFormat, ...]:
    """The same where `path` is judged: only a folder has a manifest to report of.

    Raises:
        UsageError: it is a model file.
    """
    if texts and not path.is_dir():
        raise UsageError(
            f"--report has no effect with the model file {path}",
            hint="give its output folder",
            option="report",
            code=ErrorCode.NO_EFFECT,
        )
    return parse_formats(texts)
