"""One value of modelc.toml, of a flag or of a variable: read as its key says, or refused."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path

from ..core.errors import UsageError
from ..core.loading import is_loader
from ..core.names import unknown
from .keys import Key, Kind
from .quantities import bytes_of, seconds_of
from .records import Value

_TRUTHS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_SHOWN = 60  # signs of a value that is refused


def value_of(key: Key, raw: object, base: Path) -> Value:
    """The value in the form of its key; relative paths are below `base`.

    Raises:
        UsageError: it is of another type, or cannot be.
    """
    if not key.many:
        return _one(key, raw, base)
    parts = raw if isinstance(raw, list) else [raw]
    if not parts:
        raise UsageError("an empty list says nothing", hint=f"leave {key.name} out")
    return tuple(str(_one(key, part, base)) for part in parts)


def value_in_text(key: Key, text: str, base: Path) -> Value:
    """The same of a flag or a variable; a list is one value, `[...]`, or parted by commas.

    Raises:
        UsageError: it is of another type, or cannot be.
    """
    return value_of(key, _raw(key, text), base)


def _raw(key: Key, text: str) -> object:
    if key.many:
        return _list(key, text)
    if key.kind is Kind.TRUTH:
        return _TRUTHS.get(text.strip().lower(), text)
    try:
        if key.kind is Kind.WHOLE:
            return int(text)
        if key.kind is Kind.NUMBER:
            return float(text)
    except ValueError:
        return text
    return text


def _list(key: Key, text: str) -> object:
    if text.startswith("["):
        try:
            found: object = tomllib.loads(f"value = {text}")["value"]
        except (ValueError, RecursionError) as error:
            raise UsageError(
                f"{text[:_SHOWN]!r} is no list", hint='write it as ["one", "two"]'
            ) from error
        return found
    parts = text.split(",") if key.commas else [text]
    return [part.strip() for part in parts]


def _one(key: Key, raw: object, base: Path) -> str | int | float | bool:
    match key.kind:
        case Kind.TRUTH:
            if not isinstance(raw, bool):
                raise _wrong(key, raw, "true or false")
            return raw
        case Kind.WHOLE | Kind.NUMBER:
            return _number(key, raw)
        case Kind.SIZE:
            return bytes_of(_quantity(key, raw))
        case Kind.TIME:
            return seconds_of(_quantity(key, raw))
        case Kind.DROP:
            raw = _quantity(key, raw)
    text = _text(key, raw)
    if key.kind in (Kind.PATH, Kind.SOURCE, Kind.FOLDER):
        return _place(key, text, base)
    return text


def _number(key: Key, raw: object) -> int | float:
    kinds = (int,) if key.kind is Kind.WHOLE else (int, float)
    if isinstance(raw, bool) or not isinstance(raw, kinds):
        raise _wrong(key, raw, str(key.kind))
    if key.kind is Kind.NUMBER:
        raw = _float(key, raw)
    low = key.least is not None and raw < key.least
    low = low or (key.above is not None and raw <= key.above)
    if low or (key.most is not None and raw > key.most):
        raise UsageError(f"it cannot be {_shown(raw)}", hint=f"give {limits_in_words(key)}")
    return raw


def _float(key: Key, raw: int | float) -> float:
    try:
        number = float(raw)
    except OverflowError:  # an integer of 400 digits
        number = math.inf
    if not math.isfinite(number):
        raise _wrong(key, raw, "a finite number")
    return number


def limits_in_words(key: Key) -> str:
    """`a whole number, 1 to 8`."""
    low = f"{key.least:g} or more" if key.least is not None else ""
    low = f"more than {key.above:g}" if key.above is not None else low
    high = f"at most {key.most:g}" if key.most is not None else ""
    return ", ".join(filter(None, (str(key.kind), low, high)))


def _quantity(key: Key, raw: object) -> str:
    """Numbers are written as they are; only text has units."""
    if isinstance(raw, str):
        return raw
    if isinstance(raw, bool) or not isinstance(raw, int | float):
        raise _wrong(key, raw, f"{key.kind}, as text or as a number")
    return repr(raw) if abs(raw) < 2**63 else _shown(raw)


def _text(key: Key, raw: object) -> str:
    if not isinstance(raw, str):
        raise _wrong(key, raw, "text in quotes")
    if not raw.strip() or "\0" in raw:
        raise UsageError("an empty text says nothing", hint=f"leave {key.name} out")
    if key.choices and raw not in key.choices:
        raise unknown(key.name, raw[:_SHOWN], key.choices)
    if key.check is not None:
        key.check(raw)
    return raw


def _place(key: Key, text: str, base: Path) -> str:
    """A path below `base`; a loader or a word stays as it is unless a file has its name."""
    if text in key.words or (key.kind is Kind.FOLDER and "://" in text):
        return text
    path = base / text
    if key.kind is Kind.SOURCE and is_loader(text) and not _exists(path):
        return text
    return str(path)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name that is too long
        return False


def _wrong(key: Key, raw: object, wanted: str) -> UsageError:
    form = "a list of texts" if key.many else wanted
    return UsageError(f"{_shown(raw)} is not {wanted}", hint=f"{key.name} takes {form}")


def _shown(raw: object) -> str:
    """A value as TOML has it, short."""
    if isinstance(raw, bool):
        return str(raw).lower()
    if isinstance(raw, dict):
        return "a table"
    if isinstance(raw, int) and abs(raw) > 10**_SHOWN:
        return "a number of more than 60 digits"
    text = repr(raw)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
