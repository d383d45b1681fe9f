"""Options of validation: tolerances, accuracy on labelled data, and reports."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..core.errors import ErrorCode, UsageError, first_line, unknown_name_error
from ..core.verdict import Limits
from .common_options import Panel

if TYPE_CHECKING:
    from ..reports.report_formats import ReportFormat

PROJECT_FILE = "modelc.toml"
_TOLERANCE_TABLE = "tolerance"

Tolerances = Annotated[
    list[str] | None,
    typer.Option(
        "--tolerance",
        metavar="[OUTPUT:]KEY=VALUE,…",
        help="Limits by name: atol, rtol, min-sqnr, floor-factor, min-cosine, min-agreement; "
        "of one output, as logits:min-sqnr=60. Repeatable.",
        rich_help_panel=Panel.VALIDATION,
    ),
]


def read_limits(
    texts: Sequence[str] | None = None, file: Path = Path(PROJECT_FILE)
) -> tuple[Limits, dict[str, Limits]]:
    """The limits for all outputs, and by output; those in `file` where no option says otherwise.

    Raises:
        UsageError: an unknown key, or a value that is no number.
    """
    from ..pipeline.limit_text import parse_limits

    known: dict[str, dict[str, float]] = {}
    for output, values in (*_limits_in_file(file), *map(parse_limits, texts or ())):
        known.setdefault(output, {}).update(values)
    shared = Limits(**known.pop("", {}))
    return shared, {output: Limits(**values) for output, values in known.items()}


def _limits_in_file(file: Path) -> list[tuple[str, dict[str, float]]]:
    """The `[tolerance]` table: numbers are for all outputs, tables for the output of their name."""
    from ..pipeline.limit_text import limit_field, parse_limit_number
    from ..projects.setting_keys import TOP_LEVEL

    if not file.is_file():
        return []
    try:
        tables = tomllib.loads(file.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise UsageError(f"{file}: {first_line(error)}", hint="correct the file") from error
    for name in tables:
        if name not in TOP_LEVEL:
            raise unknown_name_error(f"key in {file}:", name, TOP_LEVEL)
    table = tables.get(_TOLERANCE_TABLE, {})
    if not isinstance(table, Mapping):
        raise UsageError(
            f"{file}: {_TOLERANCE_TABLE} is no table", hint=f"write [{_TOLERANCE_TABLE}] above it"
        )
    found = [("", {k: v for k, v in table.items() if not isinstance(v, Mapping)})]
    found += [(name, dict(value)) for name, value in table.items() if isinstance(value, Mapping)]
    return [
        (
            name,
            {
                limit_field(key, f"tolerance in {file}:"): parse_limit_number(
                    value, f"{file}: {key}"
                )
                for key, value in values.items()
            },
        )
        for name, values in found
    ]


Data = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="DIR_OR_LOADER",
        help="Labelled samples: a folder a class, labels.csv, arrays with `label`, PKG.MOD:LOADER.",
        rich_help_panel=Panel.ACCURACY,
    ),
]
Metric = Annotated[
    str | None,
    typer.Option(
        "--metric",
        metavar="METRIC",
        help="top1 (default), top5, mse, or PKG.MOD:FN of predictions and labels.",
        rich_help_panel=Panel.ACCURACY,
    ),
]
MaxDrop = Annotated[
    str | None,
    typer.Option(
        "--max-drop",
        metavar="DROP",
        help="Refuse an artifact that loses more: 0.5% or 0.005; points of top1 and top5, "
        "relative for mse.",
        rich_help_panel=Panel.ACCURACY,
    ),
]
Label = Annotated[
    str | None,
    typer.Option(
        "--label",
        metavar="NAME",
        help="The array that holds the labels; default: label, labels, y, target ...",
        rich_help_panel=Panel.ADVANCED,
    ),
]
MetricOutput = Annotated[
    str | None,
    typer.Option(
        "--metric-output",
        metavar="NAME",
        help="The output that the metric reads; default: the first of floats.",
        rich_help_panel=Panel.ADVANCED,
    ),
]


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
    from ..reports import report_formats

    return report_formats.parse_formats(texts)


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
