"""Read limits and report formats from the command line and modelc.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import ErrorCode, UsageError, first_line, unknown_name_error
from ..core.verdict import Limits

if TYPE_CHECKING:
    from ..reports.report_formats import ReportFormat

PROJECT_FILE = "modelc.toml"
_TOLERANCE_TABLE = "tolerance"


def read_limits(
    texts: Sequence[str] | None = None, file: Path = Path(PROJECT_FILE)
) -> tuple[Limits, dict[str, Limits]]:
    """Read the limits for all outputs, and by output; `texts` override those in `file`.

    Raises:
        UsageError: a key is unknown, or a value is not a number.
    """
    from ..pipeline.limit_text import parse_limits

    known: dict[str, dict[str, float]] = {}
    for output, values in (*_limits_in_file(file), *map(parse_limits, texts or ())):
        known.setdefault(output, {}).update(values)
    shared = Limits(**known.pop("", {}))
    return shared, {output: Limits(**values) for output, values in known.items()}


def _limits_in_file(file: Path) -> list[tuple[str, dict[str, float]]]:
    """Read the `[tolerance]` table: numbers for all outputs, a table for each output."""
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
            f"{file}: {_TOLERANCE_TABLE} is not a table",
            hint=f"write [{_TOLERANCE_TABLE}] above it",
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


def parse_formats(texts: Sequence[str]) -> tuple[ReportFormat, ...]:
    """Parse the formats of `--report`.

    Raises:
        UsageError: a format is unknown.
    """
    if not texts:
        return ()
    from ..reports import report_formats

    return report_formats.parse_formats(list(texts))


def parse_folder_formats(path: Path, texts: Sequence[str]) -> tuple[ReportFormat, ...]:
    """Parse the formats of `--report` for `validate`; only a folder has a manifest to report.

    Raises:
        UsageError: `path` is a model file.
    """
    if texts and not path.is_dir():
        raise UsageError(
            f"--report has no effect with the model file {path}",
            hint="give its output folder",
            option="report",
            code=ErrorCode.NO_EFFECT,
        )
    return parse_formats(texts)
