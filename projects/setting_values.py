"""Parse one value of modelc.toml, a flag or a variable, with sizes and times."""

from __future__ import annotations

import math
import re
import tomllib
from pathlib import Path

from ..core.errors import ErrorCode, Hint, Option, UsageError, unknown_name_error
from ..core.hub_ids import find_hub_id
from ..core.nested_values import is_loader_spec
from ..pipeline.option_spec import OptionSpec, ValueKind
from .project_records import Value

_BOOLEANS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_MAX_SHOWN = 60  # characters of an invalid value


def parse_value(key: OptionSpec, raw: object, base: Path) -> Value:
    """Parse a value as its key requires; paths are relative to `base`.

    Raises:
        UsageError: the value has another type, or is out of range.
    """
    if not key.many:
        return _parse_one(key, raw, base)
    parts = raw if isinstance(raw, list) else [raw]
    if not parts:
        raise UsageError(
            "the list is empty", hint=f"remove {key.name}", code=ErrorCode.INVALID_VALUE
        )
    return tuple(str(_parse_one(key, part, base)) for part in parts)


def parse_value_text(key: OptionSpec, text: str, base: Path) -> Value:
    """Parse a value like `parse_value`, from text; a list is `[...]` or separated by commas.

    Raises:
        UsageError: the value has another type, or is out of range.
    """
    return parse_value(key, _text_to_raw(key, text), base)


def _text_to_raw(key: OptionSpec, text: str) -> object:
    if key.many:
        return _split_list(key, text)
    if key.kind is ValueKind.TRUTH:
        return _BOOLEANS.get(text.strip().lower(), text)
    try:
        if key.kind is ValueKind.WHOLE:
            return int(text)
        if key.kind is ValueKind.NUMBER:
            return float(text)
    except ValueError:
        return text
    return text


def _split_list(key: OptionSpec, text: str) -> object:
    if text.startswith("["):
        try:
            found: object = tomllib.loads(f"value = {text}")["value"]
        except (ValueError, RecursionError) as error:
            raise UsageError(
                f"{text[:_MAX_SHOWN]!r} is not a list",
                hint='write it as ["one", "two"]',
                code=ErrorCode.INVALID_VALUE,
            ) from error
        return found
    parts = text.split(",") if key.commas else [text]
    return [part.strip() for part in parts]


def _parse_one(key: OptionSpec, raw: object, base: Path) -> str | int | float | bool:
    match key.kind:
        case ValueKind.TRUTH:
            if not isinstance(raw, bool):
                raise _value_error(key, raw, "true or false")
            return raw
        case ValueKind.WHOLE | ValueKind.NUMBER:
            return _parse_number(key, raw)
        case ValueKind.SIZE:
            return parse_bytes(_check_quantity(key, raw))
        case ValueKind.TIME:
            return parse_seconds(_check_quantity(key, raw))
        case ValueKind.DROP:
            raw = _check_quantity(key, raw)
    text = _parse_text(key, raw)
    if key.kind in (ValueKind.PATH, ValueKind.SOURCE, ValueKind.FOLDER):
        return _resolve_path(key, text, base)
    return text


def _parse_number(key: OptionSpec, raw: object) -> int | float:
    kinds = (int,) if key.kind is ValueKind.WHOLE else (int, float)
    if isinstance(raw, bool) or not isinstance(raw, kinds):
        raise _value_error(key, raw, str(key.kind))
    if key.kind is ValueKind.NUMBER:
        raw = _parse_float(key, raw)
    key.check_number(raw)
    return raw


def _parse_float(key: OptionSpec, raw: int | float) -> float:
    try:
        number = float(raw)
    except OverflowError:  # an integer of 400 digits
        number = math.inf
    if not math.isfinite(number):
        raise _value_error(key, raw, "a finite number")
    return number


def _check_quantity(key: OptionSpec, raw: object) -> str:
    """Return the text of a quantity; only text has units."""
    if isinstance(raw, str):
        return raw
    if isinstance(raw, bool) or not isinstance(raw, int | float):
        raise _value_error(key, raw, f"{key.kind}, as a string or a number")
    return repr(raw) if abs(raw) < 2**63 else _toml_text(raw)


def _parse_text(key: OptionSpec, raw: object) -> str:
    if not isinstance(raw, str):
        raise _value_error(key, raw, "a string")
    if not raw.strip() or "\0" in raw:
        raise UsageError(
            "the string is empty", hint=f"remove {key.name}", code=ErrorCode.INVALID_VALUE
        )
    if key.choices and raw not in key.choices:
        raise unknown_name_error(key.name, raw[:_MAX_SHOWN], key.choices)
    if key.check is not None:
        key.check(raw)
    return raw


def _resolve_path(key: OptionSpec, text: str, base: Path) -> str:
    """Resolve a path against `base`; a loader or a word stays, unless a file has its name."""
    is_url = key.kind is ValueKind.FOLDER and "://" in text
    if text in key.words or is_url or (key.name == "checkpoint" and find_hub_id(text)):
        return text
    path = base / text
    if key.kind is ValueKind.SOURCE and is_loader_spec(text) and not _path_exists(path):
        return text
    return str(path)


def _path_exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name that is too long
        return False


def _value_error(key: OptionSpec, raw: object, wanted: str) -> UsageError:
    form = "a list of strings" if key.many else wanted
    is_number = key.kind in (ValueKind.WHOLE, ValueKind.NUMBER) and not key.many
    return UsageError(
        f"{_toml_text(raw)} is not {wanted}",
        hint=Hint("for example ", Option(key.name, f"{key.least or 1:g}"))
        if is_number
        else f"{key.name} takes {form}",
        code=ErrorCode.INVALID_VALUE,
    )


def _toml_text(raw: object) -> str:
    """Format a value as in TOML, shortened."""
    if isinstance(raw, bool):
        return str(raw).lower()
    if isinstance(raw, dict):
        return "a table"
    if isinstance(raw, int) and abs(raw) > 10**_MAX_SHOWN:
        return "a number of more than 60 digits"
    text = repr(raw)
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…"


_QUANTITY = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([A-Za-z]*)", re.ASCII)
_BYTE_UNITS = {
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
}  # fmt: skip
_TIME_UNITS = {"": 1, "s": 1, "min": 60, "h": 3600, "d": 86400}


def parse_bytes(text: str, *, least: int = 1) -> int:
    """Parse `50 MB` as bytes; kB, MB, GB are powers of 1000, KiB, MiB, GiB of 1024.

    Raises:
        UsageError: the text is not a size, or is less than `least` bytes.
    """
    hint = "write it as 50 MB, 2 GiB or a number of bytes"
    return int(_parse_quantity(text, _BYTE_UNITS, "a size", hint, least=least))


def parse_seconds(text: str) -> float:
    """Parse `10 min` as seconds.

    Raises:
        UsageError: the text is not a time.
    """
    return _parse_quantity(
        text, _TIME_UNITS, "a time", "write it as 90 s, 10 min, 2 h or a number of seconds"
    )


def _parse_quantity(
    text: str, units: dict[str, int], what: str, hint: str, *, least: float = 1
) -> float:
    found = _QUANTITY.fullmatch(text.strip())
    unit = units.get(found.group(2).lower()) if found else None
    if found is None or unit is None or not float(found.group(1)) * unit >= least:
        raise UsageError(f"{text!r} is not {what}", hint=hint, code=ErrorCode.INVALID_VALUE)
    return float(found.group(1)) * unit
