"""The JSON Schema of modelc.toml, from the table of keys: editors complete and check by it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .keys import DEFAULTS, FORMER, GATE, GATES, LIMIT, MODEL, RUN, TABLES, TOLERANCE, Key, Kind

SCHEMA_ID = "urn:modelc:project:1"
FILE = Path(__file__).parent / "modelc.schema.json"
_NAME = r"^[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9_-])?$"
_SIZE = r"^\s*\d{1,15}(?:\.\d{1,9})?\s*(?:[bB]|[kKmMgGtT](?:[iI])?[bB])?\s*$"
_TIME = r"^\s*\d{1,15}(?:\.\d{1,9})?\s*(?:[sS]|[mM][iI][nN]|[hH])?\s*$"
_TEXT: dict[str, object] = {"type": "string", "pattern": r"\S"}


def json_schema(helps: Mapping[str, str]) -> dict[str, object]:
    """The schema; `helps` has what an option is for, by its name without dashes in front."""
    model = _table(MODEL, helps)
    model["required"] = ["checkpoint"]
    models = {
        "description": "The models, each in a table of its name, which names its folder as well.",
        "type": "object",
        "propertyNames": {"pattern": _NAME},
        "additionalProperties": model,
    }
    defaults = {**_table(DEFAULTS, helps), "description": "What holds for every model."}
    run = {name: _described(key, key.told) for name, key in RUN.items()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        "title": "modelc.toml",
        "description": "Models, the artifacts to make of them, and what these must keep to.",
        "type": "object",
        "additionalProperties": False,
        "properties": {**run, TOLERANCE: _limits(), "defaults": defaults, "models": models},
    }


def _table(keys: Mapping[str, Key], helps: Mapping[str, str]) -> dict[str, object]:
    """A table of a model: its keys, `gates` and `tolerance`."""
    plain = {name: _described(key, key.told or helps[name]) for name, key in keys.items()}
    tables = {
        GATES: {"description": TABLES[GATES], **_patterned(GATE)},
        TOLERANCE: {
            "description": TABLES[TOLERANCE],
            "anyOf": [_limits(), _TEXT, {"type": "array", "minItems": 1, "items": _TEXT}],
        },
    }
    former = {
        old: {**plain[new], "description": f"The former name of {new}.", "deprecated": True}
        for old, new in FORMER.items()
    }
    known = {**plain, **former, **tables}
    return {"type": "object", "additionalProperties": False, "properties": known}


def _limits() -> dict[str, object]:
    return _patterned(LIMIT)


def _patterned(keys: Mapping[str, Key]) -> dict[str, object]:
    """Keys for all, and tables of them by any other name."""
    plain = {name: _described(key, key.told) for name, key in keys.items()}
    inner = {"type": "object", "additionalProperties": False, "properties": plain}
    return {"type": "object", "properties": plain, "additionalProperties": inner}


def _described(key: Key, told: str) -> dict[str, object]:
    one = _one(key)
    found: dict[str, object] = {"description": told.removesuffix(" Repeatable.")}
    if key.many:
        found["anyOf"] = [one, {"type": "array", "minItems": 1, "items": one}]
    else:
        found.update(one)
    if key.usual is not None:
        found["default"] = list(key.usual) if isinstance(key.usual, tuple) else key.usual
    return found


def _one(key: Key) -> dict[str, object]:
    """One value of a key."""
    match key.kind:
        case Kind.TRUTH:
            return {"type": "boolean"}
        case Kind.WHOLE | Kind.NUMBER:
            return _number(key)
        case Kind.SIZE | Kind.TIME:
            text = {"type": "string", "pattern": _SIZE if key.kind is Kind.SIZE else _TIME}
            return {"anyOf": [text, {"type": "number", "minimum": 1}]}
        case Kind.DROP:
            text = {"type": "string", "pattern": r"^\s*\d*\.?\d+\s*%?\s*$"}
            return {"anyOf": [text, {"type": "number", "minimum": 0, "maximum": 0.1}]}
    return {"enum": list(key.choices)} if key.choices else _named(key)


def _number(key: Key) -> dict[str, object]:
    limits = {"minimum": key.least, "maximum": key.most, "exclusiveMinimum": key.above}
    kind = "integer" if key.kind is Kind.WHOLE else "number"
    return {"type": kind, **{name: limit for name, limit in limits.items() if limit is not None}}


def _named(key: Key) -> dict[str, object]:
    """A text; of what has names, an editor completes them, and others may be installed."""
    from ..converters.registry import BUILT_IN

    if key.name != "to":
        return _TEXT
    names = [target.NAME for target in BUILT_IN]
    each = [f"{t.NAME}:{p}" for t in BUILT_IN for p in t.MADE_FROM]
    return {"anyOf": [{"enum": [*names, *each]}, _TEXT]}
