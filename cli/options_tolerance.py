"""`--tolerance` and modelc.toml: limits for all outputs and for single ones."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from ..core.errors import UsageError, first_line
from ..core.names import unknown
from ..core.verdict import Limits

FILE = "modelc.toml"
_TABLE = "tolerance"
_KEYS = {
    "atol": "atol",
    "rtol": "rtol",
    "min-sqnr": "min_sqnr",
    "floor-factor": "floor_factor",
    "min-cosine": "min_cosine",
    "min-agreement": "min_agreement",
}

Tolerances = Annotated[
    list[str] | None,
    typer.Option(
        "--tolerance",
        metavar="[OUTPUT:]KEY=VALUE,…",
        help="Limits by name: atol, rtol, min-sqnr, floor-factor, min-cosine, min-agreement; "
        "of one output, as logits:min-sqnr=60. Repeatable.",
        rich_help_panel="Validation",
    ),
]


def limits_of(texts: Sequence[str], file: Path = Path(FILE)) -> tuple[Limits, dict[str, Limits]]:
    """The limits for all outputs, and by output; those in `file` where no option says otherwise.

    Raises:
        UsageError: an unknown key, or a value that is no number.
    """
    known: dict[str, dict[str, float]] = {}
    for output, values in (*_in_file(file), *map(_parsed, texts)):
        known.setdefault(output, {}).update(values)
    shared = Limits(**known.pop("", {}))
    return shared, {output: Limits(**values) for output, values in known.items()}


def _parsed(text: str) -> tuple[str, dict[str, float]]:
    """`logits:min-sqnr=60,atol=1e-3`, or the same without an output."""
    head, colon, rest = text.rpartition(":")
    values = {}
    for part in (rest if colon else text).split(","):
        key, equals, value = part.partition("=")
        if not equals:
            raise UsageError(
                f"--tolerance {text}: {part!r} is not KEY=VALUE",
                hint="write --tolerance min-sqnr=60, or --tolerance logits:min-sqnr=60",
            )
        values[_key(key.strip())] = _number(value.strip(), f"--tolerance {text}")
    return head, values


def _in_file(file: Path) -> list[tuple[str, dict[str, float]]]:
    """The `[tolerance]` table: numbers are for all outputs, tables for the output of their name."""
    if not file.is_file():
        return []
    try:
        tables = tomllib.loads(file.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise UsageError(f"{file}: {first_line(error)}", hint="correct the file") from error
    for name in tables:
        if name != _TABLE:
            raise unknown(f"key in {file}:", name, [_TABLE])
    table = tables.get(_TABLE, {})
    if not isinstance(table, Mapping):
        raise UsageError(f"{file}: {_TABLE} is no table", hint=f"write [{_TABLE}] above it")
    found = [("", {k: v for k, v in table.items() if not isinstance(v, Mapping)})]
    found += [(name, dict(value)) for name, value in table.items() if isinstance(value, Mapping)]
    return [
        (
            name,
            {
                _key(key, f"tolerance in {file}:"): _number(value, f"{file}: {key}")
                for key, value in values.items()
            },
        )
        for name, values in found
    ]


def _key(text: str, noun: str = "tolerance") -> str:
    if text not in _KEYS:
        raise unknown(noun, text, list(_KEYS))
    return _KEYS[text]


def _number(value: object, where: str) -> float:
    given = value if isinstance(value, str | int | float) and not isinstance(value, bool) else ""
    try:
        return float(given)
    except (ValueError, OverflowError):  # an integer of 400 digits in a file
        hint = "write it as 60 or 1e-3"
        raise UsageError(f"{where}: {value!r} is not a number", hint=hint) from None
