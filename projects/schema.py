"""The JSON Schema of modelc.toml, from the option table, for editors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..core.part_records import PART_NAME
from ..pipeline.model_metadata import PLAIN_KEYS
from ..pipeline.option_spec import OptionSpec, ValueKind
from .setting_keys import (
    DEFAULT_KEYS,
    ENSEMBLES,
    GATE_KEYS,
    GATES,
    LIMIT_KEYS,
    META,
    MODEL_KEYS,
    PARTS,
    RUN_KEYS,
    TABLES,
    TOLERANCE,
)

SCHEMA_ID = "urn:modelc:project:1"
SCHEMA_FILE = Path(__file__).parent / "modelc.schema.json"
_NAME_PATTERN = r"^[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9_-])?$"
_SIZE_PATTERN = r"^\s*\d{1,15}(?:\.\d{1,9})?\s*(?:[bB]|[kKmMgGtT](?:[iI])?[bB])?\s*$"
_TIME_PATTERN = r"^\s*\d{1,15}(?:\.\d{1,9})?\s*(?:[sS]|[mM][iI][nN]|[hH])?\s*$"
_TEXT_SCHEMA: dict[str, object] = {"type": "string", "pattern": r"\S"}


def json_schema() -> dict[str, object]:
    """Make the schema."""
    model = _table_schema(MODEL_KEYS)
    model["required"] = ["checkpoint"]
    models = {
        "description": "The models: a table each, whose name is also that of the output folder.",
        "type": "object",
        "propertyNames": {"pattern": _NAME_PATTERN},
        "additionalProperties": model,
    }
    defaults = {**_table_schema(DEFAULT_KEYS), "description": "Settings of every model."}
    run = {name: _describe_key(key) for name, key in RUN_KEYS.items()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        "title": "modelc.toml",
        "description": "Models, the artifacts to build of them, and their gates.",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            **run,
            TOLERANCE: _limits_schema(),
            "defaults": defaults,
            "models": models,
            ENSEMBLES: _ensembles_schema(),
        },
    }


def _table_schema(keys: Mapping[str, OptionSpec]) -> dict[str, object]:
    """Make the schema of a model's table: its keys, `gates` and `tolerance`."""
    plain = {name: _describe_key(key) for name, key in keys.items()}
    tables = {
        GATES: {"description": TABLES[GATES], **_pattern_schema(GATE_KEYS)},
        TOLERANCE: {
            "description": TABLES[TOLERANCE],
            "anyOf": [
                _limits_schema(),
                _TEXT_SCHEMA,
                {"type": "array", "minItems": 1, "items": _TEXT_SCHEMA},
            ],
        },
    }
    tables[META] = _meta_schema()
    if "checkpoint" in keys:  # of one model
        tables[PARTS] = {
            "description": TABLES[PARTS],
            "type": "object",
            "minProperties": 1,
            "propertyNames": {"pattern": f"^{PART_NAME.pattern}$"},
            "additionalProperties": _TEXT_SCHEMA,
        }
    return {"type": "object", "additionalProperties": False, "properties": {**plain, **tables}}


def _ensembles_schema() -> dict[str, object]:
    """Make the schema of `[ensembles.NAME]`."""
    names = {"type": "object", "minProperties": 1, "additionalProperties": _TEXT_SCHEMA}
    step = {
        "type": "object",
        "additionalProperties": False,
        "required": ["model", "inputs", "outputs"],
        "properties": {
            "model": {"description": "Name of a packed model.", **_TEXT_SCHEMA},
            "inputs": {"description": "The ensemble's tensor for each input.", **names},
            "outputs": {"description": "The ensemble's tensor for each output.", **names},
        },
    }
    ensemble = {
        "type": "object",
        "additionalProperties": False,
        "required": ["steps"],
        "properties": {
            "steps": {"type": "array", "minItems": 1, "items": step},
            "outputs": {
                "description": "Tensors to give out; default: those that no step takes.",
                "type": "array",
                "items": _TEXT_SCHEMA,
            },
        },
    }
    return {
        "description": "Models that a server runs one after another, for `modelc pack`.",
        "type": "object",
        "propertyNames": {"pattern": _NAME_PATTERN},
        "additionalProperties": ensemble,
    }


def _meta_schema() -> dict[str, object]:
    """Make the schema of the metadata: a table of its keys, or texts."""
    names = {"type": "array", "minItems": 1, "items": _TEXT_SCHEMA}
    plain: dict[str, object] = dict.fromkeys(PLAIN_KEYS, _TEXT_SCHEMA)
    plain["classes"] = {"anyOf": [_TEXT_SCHEMA, names]}
    plain["preprocess"] = {"anyOf": [_TEXT_SCHEMA, {"type": "object"}]}
    plain["extra"] = {"type": "object", "additionalProperties": _TEXT_SCHEMA}
    table = {"type": "object", "additionalProperties": False, "properties": plain}
    return {"description": TABLES[META], "anyOf": [table, _TEXT_SCHEMA, names]}


def _limits_schema() -> dict[str, object]:
    return _pattern_schema(LIMIT_KEYS)


def _pattern_schema(keys: Mapping[str, OptionSpec]) -> dict[str, object]:
    """Make the schema of a table of keys, with sub-tables of the same keys by any other name."""
    plain = {name: _describe_key(key) for name, key in keys.items()}
    inner = {"type": "object", "additionalProperties": False, "properties": plain}
    return {"type": "object", "properties": plain, "additionalProperties": inner}


def _describe_key(key: OptionSpec) -> dict[str, object]:
    one = _value_schema(key)
    found: dict[str, object] = {"description": key.help.removesuffix(" Repeatable.")}
    if key.many:
        found["anyOf"] = [one, {"type": "array", "minItems": 1, "items": one}]
    else:
        found.update(one)
    if key.default is not None:
        found["default"] = list(key.default) if isinstance(key.default, tuple) else key.default
    return found


def _value_schema(key: OptionSpec) -> dict[str, object]:
    """Make the schema of one value of a key."""
    match key.kind:
        case ValueKind.TRUTH:
            return {"type": "boolean"}
        case ValueKind.WHOLE | ValueKind.NUMBER:
            return _number_schema(key)
        case ValueKind.SIZE | ValueKind.TIME:
            text = {
                "type": "string",
                "pattern": _SIZE_PATTERN if key.kind is ValueKind.SIZE else _TIME_PATTERN,
            }
            return {"anyOf": [text, {"type": "number", "minimum": 1}]}
        case ValueKind.DROP:
            text = {"type": "string", "pattern": r"^\s*\d*\.?\d+\s*%?\s*$"}
            return {"anyOf": [text, {"type": "number", "minimum": 0, "maximum": 0.1}]}
    return {"enum": list(key.choices)} if key.choices else _text_schema(key)


def _number_schema(key: OptionSpec) -> dict[str, object]:
    limits = {"minimum": key.least, "maximum": key.most, "exclusiveMinimum": key.above}
    kind = "integer" if key.kind is ValueKind.WHOLE else "number"
    return {"type": kind, **{name: limit for name, limit in limits.items() if limit is not None}}


def _text_schema(key: OptionSpec) -> dict[str, object]:
    """Make the schema of a text; `to` suggests known names and accepts those of plugins."""
    from ..converters.registry import BUILT_IN

    if key.name != "to":
        return _TEXT_SCHEMA
    names = [target.NAME for target in BUILT_IN]
    each = [f"{t.NAME}:{p}" for t in BUILT_IN for p in t.MADE_FROM]
    return {"anyOf": [{"enum": [*names, *each]}, _TEXT_SCHEMA]}
