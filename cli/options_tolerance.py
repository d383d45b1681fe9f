"""`--tolerance` and modelc.toml: limits for all outputs and for single ones."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from ..core.errors import UsageError, first_line
from ..core.names import unknown_name_error
from ..core.verdict import Limits
from .options import Panel

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
    from ..projects.keys import TOP_LEVEL

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
